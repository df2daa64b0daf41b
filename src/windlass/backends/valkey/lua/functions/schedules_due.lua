-- schedules_due: schedules whose next slot has come, earliest first.
-- KEYS: queue roots
-- ARGV: now or '', limit
-- returns: now, the next slot after these (-1: none), then stored text (see `87_schedules.lua`) of each
-- flags: no-writes
local now, limit = now_from(args[1]), tonumber(args[2])
local coming = {}
for index, root in ipairs(keys) do
  local found = redis.call('ZRANGE', root .. ':schedules:due', 0, limit, 'WITHSCORES')
  for at = 1, #found, 2 do
    coming[#coming + 1] = { tonumber(found[at + 1]), index, found[at] }
  end
end
table.sort(coming, function(one, two)
  if one[1] ~= two[1] then
    return one[1] < two[1]
  end
  return one[2] < two[2] or (one[2] == two[2] and one[3] < two[3])
end)
local answer, at = { now, -1 }, 1
while coming[at] and coming[at][1] <= now and at <= limit do
  answer[at + 2] = redis.call('HGET', keys[coming[at][2]] .. ':schedules', coming[at][3])
  at = at + 1
end
if coming[at] then
  answer[2] = coming[at][1]
end
return answer
