-- trim_events: removes all events of a queue except for the newest.
-- KEYS: queue root
-- ARGV: packed {how many to keep}
-- returns: how many were removed
-- flags: allow-oom
local keep = cmsgpack.unpack(args[1])[1]
local marks = redis.call('HMGET', keys[1], 'ev', 'ev0')
local last = tonumber(marks[1] or 0)
local oldest = math.max(tonumber(marks[2] or 1), last - KEPT.EVENTS + 1)
local from = last - keep + 1
if from <= oldest then
  return 0
end
redis.call('HSET', keys[1], 'ev0', text(from))
redis.call('XTRIM', keys[1] .. ':v', 'MINID', text(from))
return from - oldest
