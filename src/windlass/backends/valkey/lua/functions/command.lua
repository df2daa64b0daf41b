-- command: stores a command for a worker, which gets it with its next heartbeat; a hint makes it send one soon.
-- KEYS: namespace root
-- ARGV: worker id, command
-- returns: 1, or 0 if there is no such worker
-- flags: allow-oom
if redis.call('HEXISTS', keys[1] .. ':workers', args[1]) == 0 then
  return 0
end
redis.call('HSET', keys[1] .. ':commands', args[1], args[2])
redis.call('SPUBLISH', keys[1] .. ':worker:' .. args[1], '')
return 1
