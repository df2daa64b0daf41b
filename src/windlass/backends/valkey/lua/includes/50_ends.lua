-- The transitions of jobs. The rules of `windlass.core.transitions` and `windlass.core.settle_rules`.

local function keep_error(q, id, head, failure, attempt)
  local known = redis.call('HGET', q.e, id)
  local errors = damaged.unpacked(known, {})
  errors[#errors + 1] = { q.now, attempt or head[HEAD.ATTEMPTS] + 1, unpack(failure, FAILURE.ERROR_CLASS, FAILURE.FINGERPRINT) }
  if #errors > KEPT.ERRORS then
    table.remove(errors, 1)
  end
  redis.call('HSET', q.e, id, cmsgpack.pack(errors))
  redis.call('ZADD', q.J, text(head[HEAD.SEQ]), id)
end

local function drop_lease(head, settled)
  if settled then
    head[HEAD.SETTLED_TOKEN] = head[HEAD.TOKEN]
  end
  head[HEAD.TOKEN] = ''
end

local function finish(q, id, head, state, reason)
  local blocked = head[HEAD.STATE] == STATE.BLOCKED
  leave(q, id, head)
  if head[HEAD.TOKEN] ~= '' then
    drop_lease(head, true)
  end
  head[HEAD.STATE], head[HEAD.DUE], head[HEAD.FINISHED], head[HEAD.REASON] = state, 0, q.now, reason
  head[HEAD.EXPIRES] = 0
  enter(q, id, head)
  unique.free(q, id, head, blocked)
  if head[HEAD.LINKED] == 1 then
    flow.note_end(q, id, head)
  end
end

local function put_back(q, id, head, state, delay)
  leave(q, id, head)
  drop_lease(head, true)
  if delay > 0 then
    line.begin_time(q, head)
    head[HEAD.STATE], head[HEAD.DUE], head[HEAD.READY] = state, q.now + delay, q.now + delay
  else
    line.clear_time(head)
    head[HEAD.STATE], head[HEAD.READY], head[HEAD.PLACE] = STATE.WAITING, q.now, fresh_place(q, head)
  end
  enter(q, id, head)
end

local function promote(q, id, head)
  leave(q, id, head)
  line.count_time(q, head)
  head[HEAD.STATE] = STATE.WAITING
  head[HEAD.READY] = head[HEAD.DUE] ~= 0 and math.min(head[HEAD.DUE], q.now) or q.now
  head[HEAD.DUE], head[HEAD.PLACE] = 0, fresh_place(q, head)
  note(q, EVENT.PROMOTED, id, head)
  enter(q, id, head)
  update_group(q)
end

-- When a new job is due.
function line.first_due(job, now)
  local wanted = unique.of(job[JOB.OPTIONS])
  if wanted and wanted[UNIQUE.MODE] == MODE.DEBOUNCE then
    return now + wanted[UNIQUE.TTL]
  end
  return job[JOB.RUN_AT] >= 0 and job[JOB.RUN_AT] or now + job[JOB.DELAY]
end

-- When a new job expires; 0: never.
function line.first_deadline(job, now)
  local bound, total = job[JOB.EXPIRES_IN], line.total_of(job[JOB.OPTIONS])
  if total and (bound < 0 or total < bound) then
    bound = total
  end
  return bound >= 0 and now + bound or 0
end

-- Makes a pending job due `delay` from now (0: ready at once).
function line.change_delay(q, id, head, delay)
  if head[HEAD.STATE] == STATE.BLOCKED then -- the delay counts once the job is unblocked
    head[HEAD.DUE], q.dirty[id] = delay > 0 and q.now + delay or 0, head
    note(q, EVENT.CHANGED, id, head, 'delay')
    return
  end
  if delay <= 0 then
    if head[HEAD.STATE] ~= STATE.WAITING and head[HEAD.STATE] ~= STATE.PARKED then
      promote(q, id, head)
    end
    return
  end
  leave(q, id, head)
  line.count_time(q, head)
  if head[HEAD.STATE] == STATE.WAITING or head[HEAD.STATE] == STATE.PARKED then
    head[HEAD.STATE] = STATE.SCHEDULED
  end
  head[HEAD.DUE], head[HEAD.READY] = q.now + delay, q.now + delay
  note(q, EVENT.SCHEDULED, id, head, head[HEAD.DUE])
  enter(q, id, head)
end

local function promote_members(q, members)
  local ids = {}
  for index, member in ipairs(members) do
    ids[index] = id_of(member)
  end
  if #ids > 0 then
    load(q, ids)
    reserve(q, #ids)
    for index, id in ipairs(ids) do
      local head = q.heads[id]
      if not head then -- the record is gone
        put(q.zrem, q.d, members[index])
      elseif not ENDS[head[HEAD.STATE]] then -- else it could not be read and was failed
        promote(q, id, head)
      end
    end
    apply_pending(q)
  end
  return #ids
end

-- Cancels a pending job.
function line.cancel(q, id, head, reason)
  record(q, id, head, RAN.CANCELLED)
  finish(q, id, head, STATE.CANCELLED, reason)
  note(q, EVENT.CANCELLED, id, head, reason)
  update_group(q)
end

local function expire(q, id, head)
  local message = head[HEAD.DELIVERIES] > 0 and SAID.EXPIRES_TOTAL or SAID.EXPIRES_IN
  record(q, id, head, RAN.EXPIRED, nil, { SAID.EXPIRED, message, '', '' })
  finish(q, id, head, STATE.FAILED, 'expired')
  note(q, EVENT.FAILED, id, head, 'expired', SAID.EXPIRED)
  update_group(q)
end

local function lease(q, id, head, token, worker, lease_ms)
  leave(q, id, head)
  if not q.fresh[id] then
    put(q.hdel, q.g, id)
  end
  local own = options_of(head)[OPTION.LEASE]
  if head[HEAD.EXPIRES] ~= 0 and head[HEAD.DELIVERIES] == 0 then -- `expires_in` only limits the time to the first start
    local total = line.total_of(head[HEAD.OPTIONS]) -- a retry by hand or a later add may have restarted this time
    head[HEAD.EXPIRES] = total and math.max(head[HEAD.ENQUEUED] + total, head[HEAD.EXPIRES]) or 0
  end
  line.forget_stale(head)
  head[HEAD.STATE], head[HEAD.TOKEN], head[HEAD.WORKER], head[HEAD.STARTED] = STATE.ACTIVE, token, worker, q.now
  head[HEAD.DELIVERIES] = head[HEAD.DELIVERIES] + 1
  note(q, EVENT.STARTED, id, head, head[HEAD.ATTEMPTS] + 1, worker)
  unique.started(q, id, head)
  enter(q, id, head, q.now + (own > 0 and own or lease_ms))
end

local NO_ERROR = { '', '', '', '', '' }

local function complete(q, id, head, item)
  record(q, id, head, RAN.COMPLETED, item)
  local ttl = options_of(head)[OPTION.RESULT_TTL]
  head[HEAD.RESULT_UNTIL] = q.now + (ttl >= 0 and ttl or KEPT.RESULT_MS)
  finish(q, id, head, STATE.COMPLETED, '')
  if item[END.RESULT] ~= 0 then
    put(q.hset, q.r, id, item[END.RESULT])
  end
  note(q, EVENT.COMPLETED, id, head)
  stubs.note(q, id, head)
end

local function fail(q, id, head, item)
  local failure = item[END.ERROR] ~= 0 and item[END.ERROR] or NO_ERROR
  keep_error(q, id, head, failure)
  record(q, id, head, RAN.FAILED, item, failure)
  head[HEAD.ATTEMPTS] = head[HEAD.ATTEMPTS] + item[END.USES_ATTEMPT]
  finish(q, id, head, STATE.FAILED, item[END.REASON])
  note(q, EVENT.FAILED, id, head, item[END.REASON], failure[FAILURE.ERROR_CLASS], failure[FAILURE.BRIEF])
end

local function try_again(q, id, head, item)
  local failure = item[END.ERROR] ~= 0 and item[END.ERROR] or NO_ERROR
  keep_error(q, id, head, failure)
  record(q, id, head, RAN.RETRYING, item, failure)
  head[HEAD.ATTEMPTS] = head[HEAD.ATTEMPTS] + 1
  put_back(q, id, head, STATE.RETRYING, item[END.DELAY])
  note(q, EVENT.RETRYING, id, head, head[HEAD.ATTEMPTS], failure[FAILURE.ERROR_CLASS], failure[FAILURE.BRIEF], head[HEAD.DUE])
end

local function snooze(q, id, head, item)
  record(q, id, head, RAN.SNOOZED, item)
  put_back(q, id, head, STATE.SCHEDULED, item[END.DELAY])
  local reason = item[END.REASON] ~= '' and item[END.REASON] or 'snoozed'
  if head[HEAD.DUE] == 0 then
    note(q, EVENT.RELEASED, id, head, reason)
  else
    note(q, EVENT.SCHEDULED, id, head, head[HEAD.DUE], reason)
  end
end

local function release(q, id, head, item)
  record(q, id, head, RAN.RELEASED, item)
  head[HEAD.MISSES] = head[HEAD.MISSES] + item[END.MISS]
  if item[END.DELAY] > 0 then
    put_back(q, id, head, STATE.SCHEDULED, item[END.DELAY])
  else
    leave(q, id, head)
    drop_lease(head, true)
    line.begin_time(q, head)
    head[HEAD.STATE] = STATE.WAITING
    enter(q, id, head)
  end
  note(q, EVENT.RELEASED, id, head, item[END.REASON], head[HEAD.DUE])
end

local function end_cancelled(q, id, head, item)
  local reason = item[END.REASON]
  if head[HEAD.CANCEL] ~= '' then
    reason = string.sub(head[HEAD.CANCEL], 2)
  end
  record(q, id, head, RAN.CANCELLED, item)
  finish(q, id, head, STATE.CANCELLED, reason)
  note(q, EVENT.CANCELLED, id, head, reason)
end

-- By outcome; wait and suspend are in `56_suspend.lua`.
local SETTLE = {
  [OUTCOME.COMPLETE] = complete, [OUTCOME.COMPLETE_AND_HOLD] = complete, [OUTCOME.FAIL] = fail, [OUTCOME.RETRY] = try_again,
  [OUTCOME.SNOOZE] = snooze, [OUTCOME.RELEASE] = release, [OUTCOME.CANCEL] = end_cancelled,
}

-- Sets options that the job left open to those of the worker's task.
function line.fill(head, filled)
  local options = { unpack(options_of(head)) }
  for at, value in ipairs(filled) do
    if value > -2 then
      options[OPTION.RESULT_TTL + at - 1] = value
    end
  end
  head[HEAD.OPTIONS] = options
end

-- Ends the attempt of an active job whose token was checked.
local function settle(q, id, head, item)
  local filled = item[END.FILLED] or 0
  if filled ~= 0 then
    line.fill(head, filled)
  end
  local ends = SETTLE[item[END.OUTCOME]]
  if head[HEAD.CANCEL] ~= '' and ends ~= complete and ends ~= fail then
    ends = end_cancelled
  end
  ends(q, id, head, item)
  update_group(q)
  local group = groups.of(head)
  if group and (item[END.HOLD] or 0) > 0 then
    groups.hold(q, group, item[END.HOLD])
  end
end

-- Releases a lease whose claim never reached its worker. The last settled token stays: this was no settlement.
local function give_back(q, id, head)
  local settled = head[HEAD.SETTLED_TOKEN]
  settle(q, id, head, { 0, id, head[HEAD.TOKEN], OUTCOME.RELEASE, -1, 0, 0, 'reconciled', 0, 0 })
  head[HEAD.SETTLED_TOKEN] = settled
end

local function fail_stalled(q, id, head)
  local message = 'the worker went silent ' .. head[HEAD.STALLS] .. ' times, last ' .. head[HEAD.WORKER]
  local failure = { SAID.STALLED, message, '', SAID.STALLED }
  keep_error(q, id, head, failure)
  record(q, id, head, RAN.FAILED, nil, failure)
  drop_lease(head, false)
  finish(q, id, head, STATE.FAILED, 'stalled')
  note(q, EVENT.FAILED, id, head, 'stalled', SAID.STALLED, message)
  update_group(q)
end

-- Takes back an expired lease; returns false if the job has failed because of too many stalls. The job keeps its place in
-- line, unless `stall_delay` delays it.
local function recover(q, id, head)
  head[HEAD.STALLS] = head[HEAD.STALLS] + 1
  if head[HEAD.CANCEL] ~= '' then
    local reason = string.sub(head[HEAD.CANCEL], 2)
    record(q, id, head, RAN.CANCELLED)
    drop_lease(head, false)
    finish(q, id, head, STATE.CANCELLED, reason)
    note(q, EVENT.CANCELLED, id, head, reason)
    update_group(q)
    return true
  end
  if head[HEAD.STALLS] > options_of(head)[OPTION.MAX_STALLS] then
    fail_stalled(q, id, head)
    return false
  end
  record(q, id, head, RAN.STALLED)
  leave(q, id, head)
  drop_lease(head, false)
  line.begin_time(q, head)
  head[HEAD.STATE] = STATE.WAITING
  local delay = options_of(head)[OPTION.STALL_DELAY] or 0
  if delay > 0 then
    head[HEAD.STATE], head[HEAD.DUE], head[HEAD.READY] = STATE.RETRYING, q.now + delay, q.now + delay
  end
  note(q, EVENT.STALLED, id, head, head[HEAD.WORKER], head[HEAD.STALLS], head[HEAD.DUE])
  enter(q, id, head)
  update_group(q)
  return true
end
