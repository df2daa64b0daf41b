-- beat: stores a worker's heartbeat, or removes the worker.
-- KEYS: namespace root
-- ARGV: now or '', worker id, 1 if the worker stops, its description
-- returns: the last command for the worker, or nil
-- flags: allow-oom
local now = now_from(args[1])
local id, gone = args[2], args[3] == '1'
if gone then
  redis.call('HDEL', keys[1] .. ':workers', id)
  redis.call('ZREM', keys[1] .. ':beats', id)
  redis.call('HDEL', keys[1] .. ':commands', id)
  return false
end
local known = redis.call('HGET', keys[1] .. ':workers', id)
local started = known and string.match(known, '^(%d+) ') or text(now)
redis.call('HSET', keys[1] .. ':workers', id, started .. ' ' .. args[4])
redis.call('ZADD', keys[1] .. ':beats', now, id)
return redis.call('HGET', keys[1] .. ':commands', id)
