-- groups_list: groups with jobs or settings, by name; reads at most 1,000 of them.
-- KEYS: queue root
-- ARGV: now or '', limit, name after which to start ('': from the first)
-- returns: 1 if there may be more, the name to continue from, then for each name, size, waiting, parked, active, when the
--          next parked job may start (-1: no known time), 1 if paused
-- flags: no-writes
local q = open(keys[1], now_from(args[1]))
local limit, names = tonumber(args[2]), groups.names(q, args[3])
local answer, last = { 0, '' }, ''
for _, name in ipairs(names) do
  local g = groups.get(q, name)
  local r = g.r
  local listed = r[GROUP.SIZE] > 0 or r[GROUP.PAUSED] == 1 or r[GROUP.HOLD] > q.now or r[GROUP.OWN] ~= 0
  if listed and #answer == 2 + 7 * limit then
    answer[1], answer[2] = 1, answer[#answer - 6]
    return answer
  elseif listed then
    local id = groups.first(q, g)
    local at = id and groups.opens_at(q, g, groups.limits(q, g), head_of(q, id))
    for _, value in ipairs({ name, r[GROUP.SIZE], r[GROUP.WAITING], r[GROUP.PARKED], r[GROUP.ACTIVE], at or -1, r[GROUP.PAUSED] }) do
      answer[#answer + 1] = value
    end
  end
  last = name
end
if #names == STEP then
  answer[1], answer[2] = 1, last
end
return answer
