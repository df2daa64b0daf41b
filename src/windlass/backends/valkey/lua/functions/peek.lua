-- peek: the earliest scores of an index, to share a limit between queues of several slots.
-- KEYS: queue roots
-- ARGV: now or '', packed {'d' (due), 'a' (lease deadlines) or 'z' (what may expire), limit}
-- returns: per queue, sequence and score of those that have passed, earliest first
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
