-- schedules_list: schedules of queues by queue and name; reads at most 1,000 of them.
-- KEYS: queue roots
-- ARGV: now or '', packed {limit, name or '', 1 if they must have the given source, source}, the name after
--       which to start in the first queue, or ''
-- returns: now, 0 (there is no more) or the position of the queue where it stopped, the last name that was read there,
--          then stored text (see `87_schedules.lua`) of each
-- flags: no-writes
local now = now_from(args[1])
local limit, name, sourced, source = unpack(cmsgpack.unpack(args[2]))
local answer, looked = { now, 0, '' }, 0
for index, root in ipairs(keys) do
  local names = { name }
  if name == '' then
    local from = (index == 1 and args[3] ~= '') and '(' .. args[3] or '-'
    names = redis.call('ZRANGEBYLEX', root .. ':schedules:names', from, '+', 'LIMIT', 0, STEP - looked)
  end
  local q = open(root, now)
  for _, one in ipairs(names) do
    local state = schedules.get(q, one)
    looked = looked + 1
    if state and (sourced == 0 or state[SCHEDULE.SOURCE] == source) then
      answer[#answer + 1] = redis.call('HGET', root .. ':schedules', one)
    end
    if looked == STEP or #answer == 3 + limit then
      answer[2], answer[3] = index, one
      return answer
    end
  end
end
return answer
