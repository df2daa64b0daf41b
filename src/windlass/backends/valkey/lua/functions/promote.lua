-- promote: promotes due jobs, earliest first over all queues; admits parked jobs of groups whose time has come.
-- KEYS: queue roots
-- ARGV: now or '', packed {limit, limit of admitted jobs (-1: what is left of the first)}
-- returns: how many were promoted, next due in (-1: none), how many were admitted
-- emits: promoted
-- flags: allow-oom
local now = now_from(args[1])
local limit, admit_limit = unpack(cmsgpack.unpack(args[2]))
local queues = open_all(keys, now)
local chosen = sweep.passed(queues, 'd', limit)
local next_due, moved = -1, 0
for index, q in ipairs(queues) do
  promote_members(q, chosen[index])
end
admit_limit = admit_limit < 0 and limit - chosen.count or admit_limit
for _, q in ipairs(queues) do
  moved = moved + groups.advance_timed(q, admit_limit - moved)
  apply_pending(q)
  local due = next_due_in(q)
  if due and (next_due < 0 or due < next_due) then
    next_due = due
  end
end
close_all(queues)
return { chosen.count, next_due, moved }
