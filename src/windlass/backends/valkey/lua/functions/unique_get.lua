-- unique_get: who holds a unique key.
-- KEYS: queue root
-- ARGV: now or '', key
-- returns: nil, or id and until (-1: no time)
-- flags: no-writes
local q = open(keys[1], now_from(args[1]))
local entry = unique.get(q, args[2])
return entry and { entry[1], entry[2] } or false
