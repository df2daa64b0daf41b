-- metrics_progress: how far the history of queues is rolled up.
-- KEYS: queue roots
-- ARGV: none
-- returns: per queue the last row that was rolled up, number of the last row, number of the oldest
-- flags: no-writes
local answer = {}
for _, root in ipairs(keys) do
  local marks = redis.call('HMGET', root, 'ro', 'hi', 'hi0')
  answer[#answer + 1] = tonumber(marks[1] or 0)
  answer[#answer + 1] = tonumber(marks[2] or 0)
  answer[#answer + 1] = tonumber(marks[3] or 1)
end
return answer
