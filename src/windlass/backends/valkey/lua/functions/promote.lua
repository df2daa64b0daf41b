-- promote: makes due jobs waiting, earliest first over all queues given.
-- KEYS: queue roots
-- ARGV: now or '', packed {limit}
-- returns: how many, next due in (-1: none)
-- emits: promoted
local now = now_from(args[1])
local limit = cmsgpack.unpack(args[2])[1]
local queues = open_all(keys, now)
local chosen = passed(queues, 'd', limit)
local next_due = -1
for index, q in ipairs(queues) do
  promote_members(q, chosen[index])
  local due = next_due_in(q)
  if due and (next_due < 0 or due < next_due) then
    next_due = due
  end
end
close_all(queues)
return { chosen.count, next_due }
