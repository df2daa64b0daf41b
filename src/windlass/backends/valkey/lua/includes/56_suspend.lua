-- Attempts that end by waiting for children or for a signal; signals.

-- Whether a job that waits for children waits in vain: it has no open child, and got no new one since it last waited without
-- one. It would do so forever. See `windlass.core.flow_rules.wait_for_none`.
function flow.waits_for_none(q, id, head)
  if flow.has_open(q, id) or redis.call('EXISTS', q.root .. ':B:' .. id) == 1 then
    return false
  end
  local waited = SAID.WAITED .. redis.call('HLEN', q.root .. ':D:' .. id)
  if head[HEAD.REASON] == waited then
    return true
  end
  head[HEAD.REASON] = waited
  return false
end

function flow.wait(q, id, head, item)
  if flow.waits_for_none(q, id, head) then
    local failed, class, message = { unpack(item) }, SAID.CHILDLESS, SAID.CHILDLESS_MESSAGE
    failed[END.ERROR] = { class, message, '', class, message }
    SETTLE[item[END.REASON] ~= '' and OUTCOME.FAIL or OUTCOME.RETRY](q, id, head, failed)
    return
  end
  record(q, id, head, RAN.SNOOZED, item)
  leave(q, id, head)
  drop_lease(head, true)
  line.begin_time(q, head)
  head[HEAD.STATE] = STATE.BLOCKED
  note(q, EVENT.BLOCKED, id, head)
  enter(q, id, head)
  update_group(q)
  apply_pending(q)
  flow.review(q, id, head)
end

-- The name of the signal is in the reason of the settlement.
function flow.suspend(q, id, head, item)
  record(q, id, head, RAN.SNOOZED, item)
  flow.add_fields(head)
  head[HEAD.AWAITS] = item[END.REASON]
  if head[HEAD.SIGNALS] > 0 and redis.call('HEXISTS', q.root .. ':S:' .. id, item[END.REASON]) == 1 then
    put_back(q, id, head, STATE.WAITING, 0)
    note(q, EVENT.RELEASED, id, head, 'signalled')
    return
  end
  leave(q, id, head)
  drop_lease(head, true)
  line.begin_time(q, head)
  head[HEAD.STATE], head[HEAD.DUE] = STATE.SUSPENDED, item[END.DELAY] > 0 and q.now + item[END.DELAY] or 0
  note(q, EVENT.SUSPENDED, id, head, item[END.REASON], head[HEAD.DUE])
  enter(q, id, head)
end

SETTLE[OUTCOME.WAIT], SETTLE[OUTCOME.SUSPEND] = flow.wait, flow.suspend

-- Stores a signal for a job. Returns one of CHANGED, or -1 if the job has too many names.
function flow.signal(q, id, head, name, value, most)
  local key = q.root .. ':S:' .. id
  if ENDS[head[HEAD.STATE]] then
    return CHANGED.ILLEGAL
  end
  flow.add_fields(head)
  local is_new = redis.call('HEXISTS', key, name) == 0
  if is_new and head[HEAD.SIGNALS] >= most then
    return -1
  end
  redis.call('HSET', key, name, value)
  if is_new then
    head[HEAD.SIGNALS] = head[HEAD.SIGNALS] + 1
  end
  if head[HEAD.STATE] == STATE.SUSPENDED and head[HEAD.AWAITS] == name then
    promote(q, id, head)
    return CHANGED.OK
  end
  if head[HEAD.STATE] == STATE.WAITING and q.fresh[id] then -- jobs in :f have no head in :m
    leave(q, id, head)
    enter(q, id, head)
  else
    q.dirty[id], q.fresh[id] = head, nil
  end
  note(q, EVENT.CHANGED, id, head, 'signal')
  groups.recheck(q, id, head)
  return CHANGED.OK
end

-- All signals of a job: name, value, ...; false if it has none.
function flow.signals(q, id, head)
  if (head[HEAD.SIGNALS] or 0) == 0 then
    return false
  end
  return redis.call('HGETALL', q.root .. ':S:' .. id)
end
