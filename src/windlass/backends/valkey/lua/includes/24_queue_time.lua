-- Queue time: what a job waited for before an attempt. The rules of `windlass.core.queue_time`. A head has this field once the
-- job has left a state in which it waited; a plain job never has it.

local CAUSE = {
  [STATE.SCHEDULED] = QUEUE_TIME.SCHEDULED, [STATE.RETRYING] = QUEUE_TIME.SCHEDULED, [STATE.PARKED] = QUEUE_TIME.PARKED,
  [STATE.BLOCKED] = QUEUE_TIME.BLOCKED, [STATE.SUSPENDED] = QUEUE_TIME.BLOCKED,
}

function line.set_time(head, time)
  flow.add_fields(head)
  head[HEAD.TURN] = head[HEAD.TURN] or 0
  head[HEAD.QUEUE_TIME] = time
end

-- Starts counting again after an attempt has ended.
function line.begin_time(q, head)
  line.set_time(head, { q.now, 0, 0, 0, 0 })
end

-- Removes the queue time: only the wait in line counts, from the ready time on.
function line.clear_time(head)
  head[HEAD.QUEUE_TIME] = nil
end

-- Removes a queue time from before the last start: a client of an earlier release, which does not know the field, has put the
-- job back. A job that was put back in the millisecond of its start has not waited since.
function line.forget_stale(head)
  local known, started = head[HEAD.QUEUE_TIME] or 0, head[HEAD.STARTED]
  if known == 0 or known[QUEUE_TIME.UNTIL] > started then
    return
  end
  local waited = known[QUEUE_TIME.SCHEDULED] + known[QUEUE_TIME.PARKED] + known[QUEUE_TIME.BLOCKED] + known[QUEUE_TIME.IN_LINE]
  if known[QUEUE_TIME.UNTIL] < started or waited > 0 then
    line.clear_time(head)
  end
end

-- Adds the time since the last count to the cause that belongs to the state of the job.
function line.count_time(q, head)
  line.forget_stale(head)
  local state, known = head[HEAD.STATE], head[HEAD.QUEUE_TIME] or 0
  local cause, time = CAUSE[state], known
  if known == 0 then
    time = { (cause and head[HEAD.DELIVERIES] == 0) and head[HEAD.ENQUEUED] or head[HEAD.READY], 0, 0, 0, 0 }
  end
  local ending, held = q.now, 0
  if cause and state ~= STATE.BLOCKED and state ~= STATE.PARKED and head[HEAD.DUE] ~= 0 then
    ending = math.min(head[HEAD.DUE], q.now)
  end
  if cause then
    held = math.max(ending - time[QUEUE_TIME.UNTIL], 0)
    time[cause] = time[cause] + held
  end
  time[QUEUE_TIME.IN_LINE] = time[QUEUE_TIME.IN_LINE] + math.max(q.now - time[QUEUE_TIME.UNTIL], 0) - held
  time[QUEUE_TIME.UNTIL] = q.now
  line.set_time(head, time)
end

-- The queue time of a job when it started; 0 if it was in line all the time.
function line.time_at_start(head)
  local known = head[HEAD.QUEUE_TIME] or 0
  if known == 0 then
    return 0
  end
  local time, started = { unpack(known) }, head[HEAD.STARTED]
  time[QUEUE_TIME.IN_LINE] = time[QUEUE_TIME.IN_LINE] + math.max(started - time[QUEUE_TIME.UNTIL], 0)
  time[QUEUE_TIME.UNTIL] = started
  return time
end
