-- peek: the earliest scores of an index, to divide a limit among queues of several slots.
-- KEYS: queue roots
-- ARGV: now or '', packed {'d' (due), 'a' (lease deadlines) or 'z' (deadlines of pending jobs), limit}
-- returns: per queue sequence and score of members whose score has passed, earliest first
-- flags: no-writes
local now = now_from(args[1])
local request = cmsgpack.unpack(args[2])
local answer = {}
for index, root in ipairs(keys) do
  local found = redis.call('ZRANGEBYSCORE', root .. ':' .. request[1], '-inf', now, 'WITHSCORES', 'LIMIT', 0, request[2])
  for at = 1, #found, 2 do
    found[at] = text(number_of(found[at]))
  end
  answer[index] = found
end
return answer
