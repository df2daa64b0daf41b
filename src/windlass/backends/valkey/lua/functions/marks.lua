-- marks: marks from a time on, oldest first.
-- KEYS: namespace root
-- ARGV: time
-- returns: id, time and label of each
-- flags: no-writes
local key, answer = keys[1] .. ':marks', {}
local found = redis.call('ZRANGEBYSCORE', key .. ':times', args[1], '+inf', 'WITHSCORES')
for at = 1, #found, 2 do
  answer[#answer + 1] = found[at]
  answer[#answer + 1] = found[at + 1]
  answer[#answer + 1] = redis.call('HGET', key, found[at])
end
return answer
