-- change: changes priority, due time or payload of a pending job, or with its token the payload of an active one.
-- KEYS: queue root
-- ARGV: now or '', packed {id, token or '', has priority, priority, delay or -1, has payload}, payload
-- returns: status, one of CHANGED, and state
-- emits: changed, scheduled, promoted
local q = open(keys[1], now_from(args[1]))
local id, token, ranked, priority, delay, filled = unpack(cmsgpack.unpack(args[2]))
damaged.check({ q }, { { 1, id } })
local head = head_of(q, id)
if not head then
  return { CHANGED.NOT_FOUND, 0 }
end
local status = changes.may_change(head, token, ranked == 1 or delay >= 0, delay >= 0)
local group = groups.of(head)
if status == CHANGED.OK and ranked == 1 and priority ~= head[HEAD.PRIORITY] and group and groups.is_ordered(q, group) then
  status = CHANGED.ORDERED
end
if status == CHANGED.OK then
  if filled == 1 then
    changes.change_payload(q, id, head, args[3])
  end
  if ranked == 1 and priority ~= head[HEAD.PRIORITY] then
    changes.change_priority(q, id, head, priority)
  end
  if delay >= 0 then
    line.change_delay(q, id, head, delay)
  end
  groups.recheck(q, id, head)
  update_group(q)
  q.ready = q.ready or head[HEAD.STATE] < STATE.ACTIVE
end
close(q)
return { status, head[HEAD.STATE] }
