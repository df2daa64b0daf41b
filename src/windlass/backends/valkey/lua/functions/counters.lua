-- counters: lifetime counters of queues.
-- KEYS: queue roots
-- ARGV: none
-- returns: per queue the counters of its root: 'c:<outcome>:<task>', total, ...
-- flags: no-writes
local answer = {}
for index, root in ipairs(keys) do
  local rows, fields = {}, redis.call('HGETALL', root)
  for at = 1, #fields, 2 do
    if string.sub(fields[at], 1, 2) == 'c:' then
      rows[#rows + 1] = fields[at]
      rows[#rows + 1] = fields[at + 1]
    end
  end
  answer[index] = rows
end
return answer
