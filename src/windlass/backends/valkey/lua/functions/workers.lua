-- workers: the workers with a recent heartbeat.
-- KEYS: namespace root
-- ARGV: now or '', milliseconds after which a worker is left out
-- returns: time of the last beat, stored text ('<started> <description>') and last command (or '') per worker
-- flags: no-writes
local now = now_from(args[1])
local answer = {}
local found = redis.call('ZRANGEBYSCORE', keys[1] .. ':beats', '(' .. text(now - args[2]), '+inf', 'WITHSCORES')
for at = 1, #found, 2 do
  answer[#answer + 1] = found[at + 1]
  answer[#answer + 1] = redis.call('HGET', keys[1] .. ':workers', found[at])
  answer[#answer + 1] = redis.call('HGET', keys[1] .. ':commands', found[at]) or ''
end
return answer
