-- sweep: removes workers without a heartbeat for long, and expired leaders.
-- KEYS: namespace root
-- ARGV: now or '', how long a worker without a heartbeat is kept
-- returns: workers removed
-- flags: allow-oom
local now = now_from(args[1])
local silent = redis.call('ZRANGEBYSCORE', keys[1] .. ':beats', '-inf', now - args[2], 'LIMIT', 0, STEP)
if #silent > 0 then
  redis.call('ZREM', keys[1] .. ':beats', unpack(silent))
  redis.call('HDEL', keys[1] .. ':workers', unpack(silent))
  redis.call('HDEL', keys[1] .. ':commands', unpack(silent))
end
local leaders = redis.call('HGETALL', keys[1] .. ':leaders')
for at = 1, #leaders, 2 do
  if cmsgpack.unpack(leaders[at + 1])[2] <= now then
    redis.call('HDEL', keys[1] .. ':leaders', leaders[at])
  end
end
return #silent
