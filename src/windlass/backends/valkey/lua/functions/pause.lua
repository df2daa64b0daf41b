-- pause: pauses or resumes a queue.
-- KEYS: queue root
-- ARGV: now or '', packed {1 (pause) or 0 (resume)}
-- returns: 1 if that changed something, 1 if the queue is new
-- emits: paused, resumed
-- flags: allow-oom
local q = open(keys[1], now_from(args[1]))
local wanted = cmsgpack.unpack(args[2])[1]
if redis.call('HEXISTS', q.root, 'paused') == wanted then
  return { 0, 0 }
end
local known = redis.call('HSETNX', q.root, 'known', 1)
if wanted == 1 then
  redis.call('HSET', q.root, 'paused', 1)
else
  redis.call('HDEL', q.root, 'paused')
end
note(q, wanted == 1 and EVENT.PAUSED or EVENT.RESUMED, '')
q.ready = true
close(q)
return { 1, known }
