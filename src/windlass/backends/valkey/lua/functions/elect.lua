-- elect: acquires, renews or resigns the leadership of a role.
-- KEYS: namespace root
-- ARGV: now or '', role, holder, ttl (-1: resign)
-- returns: 1 if that was granted
-- flags: allow-oom
local now = now_from(args[1])
local key, role, holder, ttl = keys[1] .. ':leaders', args[2], args[3], tonumber(args[4])
local known = redis.call('HGET', key, role)
local leader = known and cmsgpack.unpack(known) or { '', 0 }
if ttl < 0 then
  if leader[1] ~= holder or leader[2] <= now then
    return 0
  end
  redis.call('HDEL', key, role)
  return 1
elseif leader[1] ~= holder and leader[2] > now then
  return 0
end
redis.call('HSET', key, role, cmsgpack.pack({ holder, now + ttl }))
return 1
