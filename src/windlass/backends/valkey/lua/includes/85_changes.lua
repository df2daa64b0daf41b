-- Changes on request: cancel, retry, change.

local changes = {}

function changes.cancel(q, id, reason, dead)
  local head = q.heads[id]
  if not head then
    return CANCEL.NOT_FOUND
  elseif ENDS[head[HEAD.STATE]] then
    return CANCEL.FINISHED
  elseif head[HEAD.STATE] == STATE.ACTIVE then
    if head[HEAD.CANCEL] == '' then
      head[HEAD.CANCEL] = '=' .. reason
      q.dirty[id] = head
      note(q, EVENT.CANCELLING, id, head, reason)
    end
    q.workers[head[HEAD.WORKER]] = true
    return CANCEL.CANCELLING
  end
  if dead and head[HEAD.STATE] == STATE.RETRYING then
    record(q, id, head, RAN.FAILED, nil, { SAID.KILLED, '', '', '' })
    finish(q, id, head, STATE.FAILED, reason)
    note(q, EVENT.FAILED, id, head, reason, SAID.KILLED)
    update_group(q)
  else
    line.cancel(q, id, head, reason)
  end
  return CANCEL.CANCELLED
end

-- Whether a finished job may be retried.
function changes.may_run_again(head)
  return ENDS[head[HEAD.STATE]] and head[HEAD.REASON] ~= BAD_RECORD
end

-- Retries a finished job with attempts and stalls reset; makes a retrying one ready now. `known`, `again`: see
-- `flow.recheck_children`.
function changes.retry(queues, q, id, head, known, again)
  if head[HEAD.STATE] == STATE.RETRYING then
    promote(q, id, head)
    return CHANGED.OK
  elseif not changes.may_run_again(head) then
    return CHANGED.ILLEGAL
  end
  leave(q, id, head)
  put(q.hdel, q.r, id)
  q.inline[id] = nil
  local blocked = head[HEAD.LINKED] == 1 and flow.recheck_children(queues, q, id, head, known, again)
  head[HEAD.STATE] = blocked and STATE.BLOCKED or STATE.WAITING
  if blocked then
    line.begin_time(q, head)
  else
    line.clear_time(head)
  end
  head[HEAD.ATTEMPTS], head[HEAD.STALLS], head[HEAD.MISSES] = 0, 0, 0
  head[HEAD.MANUAL_RETRIES] = head[HEAD.MANUAL_RETRIES] + 1
  local total = line.total_of(head[HEAD.OPTIONS])
  head[HEAD.FINISHED], head[HEAD.EXPIRES], head[HEAD.CANCEL] = 0, total and q.now + total or 0, ''
  head[HEAD.RESULT_UNTIL], head[HEAD.REASON] = 0, ''
  head[HEAD.READY], head[HEAD.PLACE] = q.now, fresh_place(q, head)
  unique.take_again(q, id, head)
  note(q, blocked and EVENT.BLOCKED or EVENT.ENQUEUED, id, head, 'retried')
  enter(q, id, head)
  update_group(q)
  return CHANGED.OK
end

function changes.change_payload(q, id, head, payload)
  load_records(q, { id })
  local stored = q.records[id]
  local at = tail_at(stored)
  local meta_size = struct.unpack('>I4', stored, at)
  stored = stored:sub(1, at + 3 + meta_size) .. payload
  put(q.hset, q.j, id, stored)
  q.records[id] = stored
  note(q, EVENT.CHANGED, id, head, 'data')
end

function changes.change_priority(q, id, head, priority)
  leave(q, id, head)
  head[HEAD.PRIORITY], head[HEAD.PLACE] = priority, fresh_place(q, head)
  note(q, EVENT.CHANGED, id, head, 'priority', priority)
  enter(q, id, head)
  apply_pending(q) -- not its group yet: the delay may change, too
end

-- Whether a request with (or without) `token` may change the job: one of CHANGED.
function changes.may_change(head, token, moves, delays)
  if token ~= '' then
    if batch.check_token(head, token) ~= SETTLED.OK then
      return CHANGED.LOST
    end
    return moves and CHANGED.ILLEGAL or CHANGED.OK
  end
  local refused = head[HEAD.STATE] == STATE.ACTIVE or ENDS[head[HEAD.STATE]] or (delays and head[HEAD.STATE] == STATE.SUSPENDED)
  return refused and CHANGED.ILLEGAL or CHANGED.OK
end
