-- Indexes by state. A job is in exactly one of them.

-- Functions for the indexes :I and :J, see `91_indexes.lua`.
local indexes = {}

local ENDS = { [STATE.COMPLETED] = 'C', [STATE.FAILED] = 'F', [STATE.CANCELLED] = 'X' }

-- Reserves `amount` consecutive sequence numbers and returns the first. It is greater than all earlier numbers of these
-- queues. Numbers are the server's time in microseconds, or more if needed. So they are ordered across queues, and are not
-- used again even if a failover loses the last writes.
-- Also returns the positions of queues that are new, and marks these as known if `adding`. `micros` is the server's time, if
-- the caller has it.
local function take_numbers(queues, amount, adding, micros)
  local first, new = micros, {}
  if not first then
    local time = redis.call('TIME')
    first = time[1] * 1000000 + time[2]
  end
  for index, q in ipairs(queues) do
    local marks = redis.call('HMGET', q.root, 'seq', 'known', 'turns')
    q.turns = marks[3]
    first = math.max(first, 1 + (marks[1] or 0))
    if not marks[1] then
      indexes.begin(q.root)
    end
    if not marks[2] then
      new[#new + 1] = index
    end
  end
  for _, q in ipairs(queues) do
    redis.call('HSET', q.root, 'seq', text(first + amount - 1), unpack(adding and { 'known', 1 } or {}))
  end
  return first, new
end

local function reserve(q, amount)
  q.next_place = take_numbers({ q }, amount)
  q.last_place = q.next_place + amount - 1
end

-- Writes new waiting jobs of priority 0 to :f, in the order of their sequences.
local function write_plain(q)
  local plain = q.plain or {}
  for at = 1, #plain, 2 do
    redis.call('XADD', q.f, plain[at], 'i', plain[at + 1])
  end
  q.plain = {}
end

-- Executes pending writes, also of added jobs, so that later reads of the same call see them.
local function make_visible(q)
  apply_pending(q)
  write_plain(q)
end

-- A new place for a job: the last one of its priority, or the first one for `lifo`, whose places are negative. The job gets a
-- new turn with it when it enters the line.
local function fresh_place(q, head)
  if not q.next_place or q.next_place > q.last_place then
    reserve(q, 1)
  end
  local place = q.next_place
  q.next_place = place + 1
  q.joins[head] = true
  local options = head[HEAD.OPTIONS]
  local lifo = head[HEAD.PLACE] < 0
  if options ~= 0 and options[OPTION.LIFO] then -- an add with the same unique key may have changed the options
    lifo = options[OPTION.LIFO] == 1
  end
  return lifo and -place or place
end

-- Until when a finished record must stay: dependents may need its result.
local function spare_until(options, finished)
  return finished + math.max(KEPT.GRACE_MS, options[OPTION.RESULT_TTL])
end

-- When a finished record may be removed for its age; nil if never.
local function keep_until(head)
  local options, finished = options_of(head), head[HEAD.FINISHED]
  local age = head[HEAD.STATE] == STATE.FAILED and options[OPTION.KEEP_FAILED] or options[OPTION.KEEP_COMPLETED]
  if age < 0 then
    return nil
  end
  return math.max(finished + age, spare_until(options, finished))
end

-- The index of a finished job.
local function end_key(q, head)
  if head[HEAD.STATE] == STATE.COMPLETED and head[HEAD.OPTIONS] == 0 then
    return q.P
  end
  return q[ENDS[head[HEAD.STATE]]]
end

-- The `expires_total` in these options, or nil.
function line.total_of(options)
  local total = options ~= 0 and options[OPTION.EXPIRES_TOTAL] or -1
  return total >= 0 and total or nil
end

-- Whether a pending job has expired. Heads of earlier releases keep the deadline of `expires_in` after the first run, when it
-- no longer counts.
function line.is_expired(q, head)
  local state, at = head[HEAD.STATE], head[HEAD.EXPIRES]
  if at == 0 or at > q.now or state == STATE.ACTIVE or ENDS[state] then
    return false
  end
  return head[HEAD.DELIVERIES] == 0 or line.total_of(head[HEAD.OPTIONS]) ~= nil
end

-- Removes a job from the index of its state. `gone`: its record will be removed, too.
local function leave(q, id, head, gone)
  local state, group = head[HEAD.STATE], groups.of(head)
  if head[HEAD.EXPIRES] ~= 0 then
    put(q.zrem, q.z, member_of(q, id, head))
  end
  local group_change = rawget(q, 'group_change')
  if group_change and group_change.head ~= head then
    update_group(q)
  end
  if state == STATE.NOWHERE or (group and groups.leave(q, id, head, group)) then
    return
  end
  if state == STATE.WAITING then
    if q.fresh[id] and head[HEAD.PRIORITY] == 0 and head[HEAD.PLACE] > 0 then -- it is in :f
      if q.picking then
        q.cursor, q.last, q.picked = text(head[HEAD.SEQ]), false, q.picked + 1
      else
        q.xdel[#q.xdel + 1] = text(head[HEAD.SEQ])
        if not gone then
          put(q.zadd, q.i, head[HEAD.SEQ], id)
        end
      end
    else
      line.remove(q, id, head)
    end
  elseif state == STATE.PARKED then
    redis.call('ZREM', groups.line_key(q, groups.get(q, group)), place_member_of(id, head))
    redis.call('ZREM', q.Q, member_of(q, id, head))
  elseif state == STATE.ACTIVE then
    put(q.zrem, q.a, member_of(q, id, head))
    q.freed = true
  elseif ENDS[state] then
    put(q.zrem, end_key(q, head), member_of(q, id, head))
    put(q.zrem, q.o, member_of(q, id, head))
  elseif state == STATE.BLOCKED or (state == STATE.SUSPENDED and head[HEAD.DUE] == 0) then
    put(q.zrem, state == STATE.BLOCKED and q.b or q.u, member_of(q, id, head))
  else
    put(q.zrem, q.d, member_of(q, id, head))
    if state ~= STATE.SCHEDULED then
      put(q.srem, state == STATE.RETRYING and q.t or q.T, id)
    end
  end
end

-- Marks the indexes of a new queue as complete.
function indexes.begin(root)
  redis.call('HSET', root, 'ix', 'all 0')
end

-- Adds a job to the index of flows if it is the root of one.
function indexes.add_top(q, id, head)
  local options = head[HEAD.OPTIONS]
  if options ~= 0 and (options[OPTION.ROOT] or 0) ~= 0 and options[OPTION.ROOT] == name_of(q) .. '/' .. id then
    put(q.zadd, q.I, head[HEAD.SEQ], id)
  end
end

-- Adds a changed job to the index of its state. `deadline` is that of the lease of an active job.
local function enter(q, id, head, deadline)
  local state, group = head[HEAD.STATE], groups.of(head)
  q.dirty[id], q.fresh[id] = head, nil
  indexes.add_top(q, id, head)
  if head[HEAD.EXPIRES] ~= 0 and state ~= STATE.ACTIVE and not ENDS[state] then
    put(q.zadd, q.z, head[HEAD.EXPIRES], member_of(q, id, head))
  end
  if group and groups.enter(q, id, head, group) then
    return
  end
  if state == STATE.WAITING then
    if q.joins[head] then
      q.joins[head] = nil
      line.join(q, id, head)
    else
      line.put(q, id, head)
    end
    q.ready = true
  elseif state == STATE.PARKED then
    local key = groups.line_key(q, groups.get(q, group))
    redis.call('ZADD', key, 0 - head[HEAD.PRIORITY], place_member_of(id, head))
    redis.call('ZADD', q.Q, text(head[HEAD.ENQUEUED]), member_of(q, id, head))
  elseif state == STATE.ACTIVE then
    put(q.zadd, q.a, deadline, member_of(q, id, head))
  elseif ENDS[state] then
    local key = end_key(q, head)
    put(q.zadd, key, head[HEAD.FINISHED], member_of(q, id, head))
    local until_ms = keep_until(head)
    if until_ms and key ~= q.P then
      put(q.zadd, q.o, until_ms, member_of(q, id, head))
    end
    q.done = true
  elseif state == STATE.BLOCKED or (state == STATE.SUSPENDED and head[HEAD.DUE] == 0) then
    put(q.zadd, state == STATE.BLOCKED and q.b or q.u, head[HEAD.ENQUEUED], member_of(q, id, head))
  else
    q.first_due = nil
    put(q.zadd, q.d, head[HEAD.DUE], member_of(q, id, head))
    if state ~= STATE.SCHEDULED then
      put(q.sadd, state == STATE.RETRYING and q.t or q.T, id)
    end
    q.ready = true
  end
end

-- Deletes a record and everything that belongs to it. With `keep_id` the id stays known.
local function drop(q, id, head)
  if not (q.fresh[id] and head[HEAD.STATE] == STATE.WAITING) then
    q.xdel_passed[#q.xdel_passed + 1] = text(head[HEAD.SEQ])
  end
  leave(q, id, head, true)
  if head[HEAD.LINKED] then
    flow.drop(q, id, head)
  end
  unique.free(q, id, head, head[HEAD.STATE] == STATE.BLOCKED)
  for _, key in ipairs({ q.i, q.I, q.J }) do
    put(q.zrem, key, id)
  end
  for _, key in ipairs({ q.j, q.m, q.r, q.g, q.e }) do
    put(q.hdel, key, id)
  end
  q.unlink[#q.unlink + 1] = q.root .. ':l:' .. id
  local kept = options_of(head)[OPTION.KEEP_ID]
  if kept >= 0 and head[HEAD.ENQUEUED] + kept > q.now then
    put(q.zadd, q.k, head[HEAD.ENQUEUED] + kept, id)
  end
  q.heads[id], q.fresh[id], q.dirty[id] = false, nil, nil
  q.packed[id], q.records[id], q.members[id], q.inline[id] = nil, nil, nil, nil
  local group = groups.of(head)
  if group and not ENDS[head[HEAD.STATE]] then
    q.group_change = { id = id, head = head, name = group }
    update_group(q)
  end
end

-- Removes a record on request. An unfinished job gets a row in the history.
local function remove(q, id, head)
  if not ENDS[head[HEAD.STATE]] then
    record(q, id, head, RAN.CANCELLED)
  end
  note(q, EVENT.REMOVED, id, head, head[HEAD.STATE])
  drop(q, id, head)
end

-- The number of waiting jobs.
local function waiting(q)
  local passed = redis.call('HGET', q.root, 'passed') or 0
  return redis.call('XLEN', q.f) - passed + redis.call('ZCARD', q.w)
end

-- The first `amount` entries of :f that were not picked yet.
local function next_fresh(q, amount)
  return redis.call('XRANGE', q.f, '(' .. cursor_of(q), '+', 'COUNT', amount)
end

-- Whether any job waits. It reads the line unless `front` has just noted that in `q.more`.
local function any_waiting(q)
  if q.more ~= nil then
    return q.more
  end
  return redis.call('ZCARD', q.w) > 0 or #next_fresh(q, 1) > 0
end

-- Milliseconds until the next job of `q` is due, or a limit of the queue or a group allows one to start; nil if none. 0 while
-- new limits are applied to its groups.
local function next_due_in(q)
  local at = q.first_due
  if at == nil then
    local first = redis.call('ZRANGE', q.d, 0, 0, 'WITHSCORES')
    at = first[2] and tonumber(first[2])
  end
  local marks = limits.settings(q)
  if marks.has_groups then
    local opens = tonumber(redis.call('ZRANGE', q.H, 0, 0, 'WITHSCORES')[2])
    at = marks.refit and q.now or opens and math.min(at or opens, opens) or at
  end
  if marks.own and any_waiting(q) then
    local room, opens = limits.room(q)
    if room == 0 and opens then
      at = math.min(at or opens, opens)
    end
  end
  return at and math.max(at - q.now, 0)
end
