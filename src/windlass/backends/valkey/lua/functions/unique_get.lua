-- unique_get: the job that holds a unique key.
-- KEYS: queue root
-- ARGV: now or '', key
-- returns: nil, or id and until (-1: no time)
-- flags: no-writes
local q = open(keys[1], now_from(args[1]))
local entry = unique.get(q, args[2])
return entry and { entry[ENTRY.HOLDER], entry[ENTRY.UNTIL] } or false
