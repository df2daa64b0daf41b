-- hold: starts nothing of a queue or of a group before now + ms.
-- KEYS: queue root
-- ARGV: now or '', packed {ms (0: continue), 1 when it is about a group}, group
-- returns: until when, 1 when the queue became known
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
