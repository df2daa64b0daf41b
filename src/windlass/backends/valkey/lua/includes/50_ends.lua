-- Every change that a job can go through. The same rules as `windlass.core.transitions`, in the same order.

local function keep_error(q, id, head, failure, attempt)
  local known = redis.call('HGET', q.e, id)
  local errors = damaged.unpacked(known, {})
  errors[#errors + 1] = { q.now, attempt or head[ATTEMPTS] + 1, failure[1], failure[2], failure[3], failure[4] }
  if #errors > ERRORS_KEPT then
    table.remove(errors, 1)
  end
  redis.call('HSET', q.e, id, cmsgpack.pack(errors))
end

local function drop_lease(head, settled)
  if settled then
    head[SETTLED] = head[TOKEN]
  end
  head[TOKEN] = ''
end

local function finish(q, id, head, state, reason)
  leave(q, id, head)
  if head[TOKEN] ~= '' then
    drop_lease(head, true)
  end
  head[STATE], head[DUE], head[EXPIRES], head[FINISHED], head[REASON] = state, 0, 0, q.now, reason
  enter(q, id, head)
  unique.free(q, id, head)
  if head[LINKED] == 1 then
    flow.note_end(q, id, head)
  end
end

local function put_back(q, id, head, state, delay)
  leave(q, id, head)
  drop_lease(head, true)
  if delay > 0 then
    head[STATE], head[DUE], head[READY] = state, q.now + delay, q.now + delay
  else
    head[STATE], head[READY], head[PLACE] = WAITING, q.now, fresh_place(q, head)
  end
  enter(q, id, head)
end

local function promote(q, id, head)
  leave(q, id, head)
  head[STATE] = WAITING
  head[READY] = head[DUE] ~= 0 and math.min(head[DUE], q.now) or q.now
  head[DUE], head[PLACE] = 0, fresh_place(q, head)
  note(q, E_PROMOTED, id, head)
  enter(q, id, head)
  file(q)
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
      if not head then -- its record is gone
        put(q.zrem, q.d, members[index])
      elseif not ENDS[head[STATE]] then -- it could be read
        promote(q, id, head)
      end
    end
    settle_down(q)
  end
  return #ids
end

local function expire(q, id, head)
  record(q, id, head, O_EXPIRED, nil, { 'JobExpired', '', '', '' })
  finish(q, id, head, FAILED, 'expired')
  note(q, E_FAILED, id, head, 'expired', 'JobExpired')
  file(q)
end

local function lease(q, id, head, token, worker, lease_ms)
  leave(q, id, head)
  if not q.fresh[id] then
    put(q.hdel, q.g, id)
  end
  local own = options_of(head)[LEASE]
  if head[EXPIRES] ~= 0 and head[DELIVERIES] == 0 then -- `expires_in` has served
    local total = total_of(head[OPTIONS])
    head[EXPIRES] = total and head[ENQUEUED] + total or 0
  end
  head[STATE], head[TOKEN], head[WORKER], head[STARTED] = ACTIVE, token, worker, q.now
  head[DELIVERIES] = head[DELIVERIES] + 1
  note(q, E_STARTED, id, head, head[ATTEMPTS] + 1, worker)
  unique.started(q, id, head)
  enter(q, id, head, q.now + (own > 0 and own or lease_ms))
end

-- An end is {queue, id, token, outcome, duration, result or 0, delay, reason, uses attempt, miss, error, hold its group}.
local END_DURATION, END_RESULT, END_DELAY, END_REASON, END_USES, END_MISS, END_ERROR, END_HOLD = 5, 6, 7, 8, 9, 10, 11, 12
local NO_ERROR = { '', '', '', '', '' }

local function complete(q, id, head, item)
  record(q, id, head, O_COMPLETED, item[END_DURATION])
  local ttl = options_of(head)[RESULT_TTL]
  head[RESULT_UNTIL] = q.now + (ttl >= 0 and ttl or DEFAULT_RESULT_TTL_MS)
  finish(q, id, head, COMPLETED, '')
  if item[END_RESULT] ~= 0 then
    put(q.hset, q.r, id, item[END_RESULT])
  end
  note(q, E_COMPLETED, id, head)
end

local function fail(q, id, head, item)
  local failure = item[END_ERROR] ~= 0 and item[END_ERROR] or NO_ERROR
  keep_error(q, id, head, failure)
  record(q, id, head, O_FAILED, item[END_DURATION], failure)
  head[ATTEMPTS] = head[ATTEMPTS] + item[END_USES]
  finish(q, id, head, FAILED, item[END_REASON])
  note(q, E_FAILED, id, head, item[END_REASON], failure[1], failure[5])
end

local function try_again(q, id, head, item)
  local failure = item[END_ERROR] ~= 0 and item[END_ERROR] or NO_ERROR
  keep_error(q, id, head, failure)
  record(q, id, head, O_RETRYING, item[END_DURATION], failure)
  head[ATTEMPTS] = head[ATTEMPTS] + 1
  put_back(q, id, head, RETRYING, item[END_DELAY])
  note(q, E_RETRYING, id, head, head[ATTEMPTS], failure[1], failure[5], head[DUE])
end

local function snooze(q, id, head, item)
  record(q, id, head, O_SNOOZED, item[END_DURATION])
  put_back(q, id, head, SCHEDULED, item[END_DELAY])
  local reason = item[END_REASON] ~= '' and item[END_REASON] or 'snoozed'
  if head[DUE] == 0 then
    note(q, E_RELEASED, id, head, reason)
  else
    note(q, E_SCHEDULED, id, head, head[DUE], reason)
  end
end

local function release(q, id, head, item)
  record(q, id, head, O_RELEASED, item[END_DURATION])
  head[MISSES] = head[MISSES] + item[END_MISS]
  if item[END_DELAY] > 0 then
    put_back(q, id, head, SCHEDULED, item[END_DELAY])
  else
    leave(q, id, head)
    drop_lease(head, true)
    head[STATE] = WAITING
    enter(q, id, head)
  end
  note(q, E_RELEASED, id, head, item[END_REASON], head[DUE])
end

local function end_cancelled(q, id, head, item)
  local reason = item[END_REASON]
  if head[CANCEL] ~= '' then
    reason = string.sub(head[CANCEL], 2)
  end
  record(q, id, head, O_CANCELLED, item[END_DURATION])
  finish(q, id, head, CANCELLED, reason)
  note(q, E_CANCELLED, id, head, reason)
end

-- A completion that also holds its group.
local COMPLETE_AND_HOLD = 9

-- By number: complete, fail, retry, snooze, release, cancel; wait and suspend are in `56_suspend.lua`.
local SETTLE = { complete, fail, try_again, snooze, release, end_cancelled }

-- Ends the attempt of an active job whose token was checked.
local function settle(q, id, head, item)
  local outcome = item[4] == COMPLETE_AND_HOLD and 1 or item[4]
  if head[CANCEL] ~= '' and outcome >= 3 then
    outcome = 6
  end
  SETTLE[outcome](q, id, head, item)
  file(q)
  local group = groups.of(head)
  if group and (item[END_HOLD] or 0) > 0 then
    groups.hold(q, group, item[END_HOLD])
  end
end

-- Gives back a lease that its worker never heard of: nobody settled anything.
local function give_back(q, id, head)
  local settled = head[SETTLED]
  settle(q, id, head, { 0, id, head[TOKEN], 5, -1, 0, 0, 'reconciled', 0, 0 })
  head[SETTLED] = settled
end

local function fail_stalled(q, id, head)
  local message = 'the worker went silent ' .. head[STALLS] .. ' times, last ' .. head[WORKER]
  local failure = { 'JobStalled', message, '', 'JobStalled' }
  keep_error(q, id, head, failure)
  record(q, id, head, O_FAILED, nil, failure)
  drop_lease(head, false)
  finish(q, id, head, FAILED, 'stalled')
  note(q, E_FAILED, id, head, 'stalled', 'JobStalled', message)
  file(q)
end

-- Takes back an expired lease; false when the job has now failed because that happened too often.
local function recover(q, id, head)
  head[STALLS] = head[STALLS] + 1
  if head[CANCEL] ~= '' then
    local reason = string.sub(head[CANCEL], 2)
    record(q, id, head, O_CANCELLED)
    drop_lease(head, false)
    finish(q, id, head, CANCELLED, reason)
    note(q, E_CANCELLED, id, head, reason)
    file(q)
    return true
  end
  if head[STALLS] > options_of(head)[MAX_STALLS] then
    fail_stalled(q, id, head)
    return false
  end
  record(q, id, head, O_STALLED)
  leave(q, id, head)
  drop_lease(head, false)
  head[STATE] = WAITING
  note(q, E_STALLED, id, head, head[WORKER], head[STALLS])
  enter(q, id, head)
  file(q)
  return true
end
