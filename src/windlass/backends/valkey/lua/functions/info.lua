-- info: counts of a queue.
-- KEYS: queue roots
-- ARGV: now or '', packed {1: also find the oldest waiting job}
-- returns: per queue {known, paused, waiting, scheduled and retrying, active, completed, failed, cancelled, retrying,
--          ready time of the oldest waiting job or -1, blocked, suspended without and with a timeout, parked}
-- flags: no-writes
local queues = open_all(keys, now_from(args[1]))
local deep = cmsgpack.unpack(args[2])[1] == 1
local answer = {}
for index, q in ipairs(queues) do
  local flags = redis.call('HMGET', q.root, 'known', 'paused')
  local due = redis.call('ZCARD', q.d)
  answer[index] = {
    flags[1] and 1 or 0, flags[2] and 1 or 0, waiting(q), due, redis.call('ZCARD', q.a),
    redis.call('ZCARD', q.P) + redis.call('ZCARD', q.C), redis.call('ZCARD', q.F), redis.call('ZCARD', q.X),
    redis.call('SCARD', q.t), deep and listing.oldest_ready(q) or -1,
    redis.call('ZCARD', q.b), redis.call('ZCARD', q.u), redis.call('SCARD', q.T), redis.call('ZCARD', q.Q),
  }
end
return answer
