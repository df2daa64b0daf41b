-- workers: those with a heartbeat in the last while.
-- KEYS: namespace root
-- ARGV: now or '', how long a worker may be silent
-- returns: time of the last beat and stored text ('<started> <description>') of every worker
-- flags: no-writes
local now = now_from(args[1])
local answer = {}
local found = redis.call('ZRANGEBYSCORE', keys[1] .. ':beats', '(' .. text(now - args[2]), '+inf', 'WITHSCORES')
for at = 1, #found, 2 do
  answer[at] = found[at + 1]
  answer[at + 1] = redis.call('HGET', keys[1] .. ':workers', found[at])
end
return answer
