-- mark_add: adds a mark at the present time; an existing one is not changed.
-- KEYS: namespace root
-- ARGV: now or '', id, label, most marks to keep
-- returns: its time, its label
local key, now = keys[1] .. ':marks', now_from(args[1])
local known = redis.call('HGET', key, args[2])
if known then
  return { tonumber(redis.call('ZSCORE', key .. ':times', args[2])), known }
end
redis.call('HSET', key, args[2], args[3])
redis.call('ZADD', key .. ':times', text(now), args[2])
local extra = redis.call('ZCARD', key .. ':times') - args[4]
if extra > 0 then
  local old = redis.call('ZRANGE', key .. ':times', 0, extra - 1)
  redis.call('ZREM', key .. ':times', unpack(old))
  redis.call('HDEL', key, unpack(old))
end
return { now, args[3] }
