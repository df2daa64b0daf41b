-- Changes by people and programs. Statuses: 0 ok, 1 not found, 2 illegal, 3 lost.

local function cancel(q, id, reason, dead)
  local head = q.heads[id]
  if not head then
    return 3
  elseif ENDS[head[STATE]] then
    return 2
  elseif head[STATE] == ACTIVE then
    if head[CANCEL] == '' then
      head[CANCEL] = '=' .. reason
      q.dirty[id] = head
      note(q, E_CANCELLING, id, head, reason)
    end
    q.workers[head[WORKER]] = true
    return 1
  end
  if dead and head[STATE] == RETRYING then
    record(q, id, head, O_FAILED, nil, { 'JobKilled', '', '', '' })
    finish(q, id, head, FAILED, reason)
    note(q, E_FAILED, id, head, reason, 'JobKilled')
  else
    record(q, id, head, O_CANCELLED)
    finish(q, id, head, CANCELLED, reason)
    note(q, E_CANCELLED, id, head, reason)
  end
  file(q)
  return 0
end

-- Puts a finished job back with a fresh budget; hurries a retrying one.
local function retry(q, id, head)
  if head[STATE] == RETRYING then
    promote(q, id, head)
    return 0
  elseif not ENDS[head[STATE]] or head[REASON] == BAD_RECORD then
    return 2
  end
  leave(q, id, head)
  put(q.hdel, q.r, id)
  q.inline[id] = nil
  local blocked = head[LINKED] == 1 and flow.forgive(q, id)
  head[STATE] = blocked and BLOCKED or WAITING
  head[ATTEMPTS], head[STALLS], head[MISSES] = 0, 0, 0
  head[MANUAL] = head[MANUAL] + 1
  local total = total_of(head[OPTIONS])
  head[FINISHED], head[EXPIRES], head[CANCEL] = 0, total and q.now + total or 0, ''
  head[RESULT_UNTIL], head[REASON] = 0, ''
  head[READY], head[PLACE] = q.now, fresh_place(q, head)
  unique.take_again(q, id, head)
  note(q, blocked and E_BLOCKED or E_ENQUEUED, id, head, 'retried')
  enter(q, id, head)
  file(q)
  return 0
end

local function change_payload(q, id, head, payload)
  load_records(q, { id })
  local stored = q.records[id]
  local at = tail_at(stored)
  local meta_size = struct.unpack('>I4', stored, at)
  stored = stored:sub(1, at + 3 + meta_size) .. payload
  put(q.hset, q.j, id, stored)
  q.records[id] = stored
  note(q, E_CHANGED, id, head, 'data')
end

local function change_priority(q, id, head, priority)
  leave(q, id, head)
  head[PRIORITY], head[PLACE] = priority, fresh_place(q, head)
  note(q, E_CHANGED, id, head, 'priority', priority)
  enter(q, id, head)
  settle_down(q) -- but not filed: the delay may be changed, too
end

local function change_delay(q, id, head, delay)
  if head[STATE] == BLOCKED then -- counts once nothing else holds it
    head[DUE], q.dirty[id] = delay > 0 and q.now + delay or 0, head
    note(q, E_CHANGED, id, head, 'delay')
    return
  end
  if delay <= 0 then
    if head[STATE] ~= WAITING and head[STATE] ~= PARKED then
      promote(q, id, head)
    end
    return
  end
  leave(q, id, head)
  if head[STATE] == WAITING or head[STATE] == PARKED then
    head[STATE] = SCHEDULED
  end
  head[DUE], head[READY] = q.now + delay, q.now + delay
  note(q, E_SCHEDULED, id, head, head[DUE])
  enter(q, id, head)
end

-- Whether a request with (or without) `token` may change the job.
local function may_change(head, token, moves, delays)
  if token ~= '' then
    if check_token(head, token) ~= 0 then
      return 3
    end
    return moves and 2 or 0
  end
  local refused = head[STATE] == ACTIVE or ENDS[head[STATE]] or (delays and head[STATE] == SUSPENDED)
  return refused and 2 or 0
end
