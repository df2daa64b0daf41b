-- promote: makes due jobs waiting, earliest first over all queues given; lets in what time allows in their groups.
-- KEYS: queue roots
-- ARGV: now or '', packed {limit, limit of those let in (-1: what is left of the first)}
-- returns: how many became due, next due in (-1: none), how many were let in
-- emits: promoted
-- flags: allow-oom
local now = now_from(args[1])
local limit, lets_in = unpack(cmsgpack.unpack(args[2]))
local queues = open_all(keys, now)
local chosen = sweep.passed(queues, 'd', limit)
local next_due, moved = -1, 0
for index, q in ipairs(queues) do
  promote_members(q, chosen[index])
end
lets_in = lets_in < 0 and limit - chosen.count or lets_in
for _, q in ipairs(queues) do
  moved = moved + groups.advance_timed(q, lets_in - moved)
  apply_pending(q)
  local due = next_due_in(q)
  if due and (next_due < 0 or due < next_due) then
    next_due = due
  end
end
close_all(queues)
return { chosen.count, next_due, moved }
