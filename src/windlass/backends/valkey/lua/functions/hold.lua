-- hold: starts no job of a queue or of a group before now + ms.
-- KEYS: queue root
-- ARGV: now or '', packed {ms (0: ends the hold), 1 for a group}, group
-- returns: until when, 1 if the queue is new
-- emits: promoted, failed
-- flags: allow-oom
local q = open(keys[1], now_from(args[1]))
local ms, grouped = unpack(cmsgpack.unpack(args[2]))
local until_ms
if grouped == 1 then
  until_ms = groups.hold(q, args[3], ms)
else
  until_ms = limits.hold(q, ms)
end
local known = redis.call('HSETNX', q.root, 'known', 1)
close(q)
return { until_ms, known }
