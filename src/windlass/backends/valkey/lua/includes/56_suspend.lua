-- Ends of an attempt that wait for something: children, or a signal.

function flow.wait(q, id, head, item)
  record(q, id, head, O_SNOOZED, item[END_DURATION])
  leave(q, id, head)
  drop_lease(head, true)
  head[STATE] = BLOCKED
  note(q, E_BLOCKED, id, head)
  enter(q, id, head)
  file(q)
  settle_down(q)
  flow.review(q, id, head)
end

-- The name of the signal comes as the reason of the end.
function flow.suspend(q, id, head, item)
  record(q, id, head, O_SNOOZED, item[END_DURATION])
  flow.widen(head)
  head[AWAITS] = item[END_REASON]
  if head[SIGNALS] > 0 and redis.call('HEXISTS', q.root .. ':S:' .. id, item[END_REASON]) == 1 then
    put_back(q, id, head, WAITING, 0)
    note(q, E_RELEASED, id, head, 'signalled')
    return
  end
  leave(q, id, head)
  drop_lease(head, true)
  head[STATE], head[DUE] = SUSPENDED, item[END_DELAY] > 0 and q.now + item[END_DELAY] or 0
  note(q, E_SUSPENDED, id, head, item[END_REASON], head[DUE])
  enter(q, id, head)
end

SETTLE[7], SETTLE[8] = flow.wait, flow.suspend

-- Keeps a signal with a job. Returns the status of a change, or -1 when there are too many names.
function flow.signal(q, id, head, name, value, most)
  local key = q.root .. ':S:' .. id
  if ENDS[head[STATE]] then
    return 2
  end
  flow.widen(head)
  local is_new = redis.call('HEXISTS', key, name) == 0
  if is_new and head[SIGNALS] >= most then
    return -1
  end
  redis.call('HSET', key, name, value)
  if is_new then
    head[SIGNALS] = head[SIGNALS] + 1
  end
  if head[STATE] == SUSPENDED and head[AWAITS] == name then
    promote(q, id, head)
    return 0
  end
  if head[STATE] == WAITING and q.fresh[id] then -- those that wait in :f have no head of their own
    leave(q, id, head)
    enter(q, id, head)
  else
    q.dirty[id], q.fresh[id] = head, nil
  end
  note(q, E_CHANGED, id, head, 'signal')
  groups.poke(q, id, head)
  return 0
end

-- All signals of a job: name, value, ...; false when it has none.
function flow.signals(q, id, head)
  if (head[SIGNALS] or 0) == 0 then
    return false
  end
  return redis.call('HGETALL', q.root .. ':S:' .. id)
end
