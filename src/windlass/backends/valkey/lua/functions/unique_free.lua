-- unique_free: frees a unique key, no matter which job holds it.
-- KEYS: queue root
-- ARGV: now or '', key
-- returns: 1 if a job held it
-- flags: allow-oom
local q = open(keys[1], now_from(args[1]))
local entry = unique.get(q, args[2])
unique.drop(q, args[2])
return entry and 1 or 0
