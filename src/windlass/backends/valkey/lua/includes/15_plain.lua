-- Plain jobs. A plain job has priority 0, was ready when it was added, never expires and has default options; nearly all jobs
-- are plain. They are stored as bytes of a fixed layout, so that nothing is unpacked and packed again from `add` to
-- `completed`. On any other change a plain job gets a full head.
--
--   record in :j      255, sequence (7 bytes), enqueued (6), length and text of task (1 + n), tail as sent
--   head in :m        1, sequence, enqueued, started (6), length and text of token, of worker, of task; once it has
--                     completed, also finished (6), then 0 (no result), 1 and the result, or 2 (the result is in :r)
-- The head is called lean. It describes the first attempt of the first delivery.

local INLINE = 200 -- results up to this many bytes are in the head
local LEAN_FORMAT = '>I7I6I6Bc0Bc0Bc0'
local TOKEN_AT = 21 -- in a lean head
local RECORD_PARTS = '>c7c6Bc0'

-- The head of a job that has not changed since it was added.
local function new_head(state, seq, enqueued, task)
  local head = { unpack(BLANK_HEAD) }
  head[HEAD.STATE], head[HEAD.SEQ], head[HEAD.PLACE], head[HEAD.TASK] = state, seq, seq, task
  head[HEAD.ENQUEUED], head[HEAD.READY] = enqueued, enqueued
  return head
end

local function is_plain(record)
  return record:byte() == MARK.PLAIN
end

local function is_lean(packed)
  return packed:byte() == MARK.LEAN
end

-- The first and the last position of the task in a lean head. Nothing follows it while the job is active.
local function task_in(packed)
  local worker_at = 22 + packed:byte(21)
  local task_at = worker_at + 1 + packed:byte(worker_at)
  return task_at + 1, task_at + packed:byte(task_at)
end

-- The full head from a lean one; a result in the lean head goes to `q.inline`.
local function unpack_lean(q, id, packed)
  local seq, enqueued, started, token, worker, task, after = struct.unpack(LEAN_FORMAT, packed, 2)
  local done = after <= #packed
  local head = new_head(done and STATE.COMPLETED or STATE.ACTIVE, seq, enqueued, task)
  head[HEAD.DELIVERIES], head[HEAD.WORKER], head[HEAD.STARTED] = 1, worker, started
  head[done and HEAD.SETTLED_TOKEN or HEAD.TOKEN] = token
  if done then
    head[HEAD.FINISHED] = struct.unpack('>I6', packed, after)
    head[HEAD.RESULT_UNTIL] = head[HEAD.FINISHED] + KEPT.RESULT_MS
    q.inline[id] = packed:byte(after + 6) == 1 and packed:sub(after + 7) or nil
  end
  return head
end

-- As `check_token`, for a lean head.
local function check_lean(packed, token)
  if struct.unpack('>Bc0', packed, TOKEN_AT) ~= token then
    return SETTLED.LOST
  end
  local _, task_end = task_in(packed)
  return task_end < #packed and SETTLED.ALREADY or SETTLED.OK
end

-- Lists of writes for reuse: filling them again costs less than growing new ones.
local SPARE, SPARE_SIZE = {}, 200

-- The pending writes for plain jobs that were leased or completed. Only the first `n` items (or pairs) of each list are valid.
local function writes_of(q, kind)
  local writes = q[kind]
  if not writes then
    writes, SPARE[kind] = SPARE[kind] or { heads = {}, active = {}, done = {} }, nil
    writes.n, q[kind] = 0, writes
  end
  return writes
end

-- Keeps lists of moderate size for the next call.
local function recycle(q, kind)
  local writes = q[kind]
  q[kind] = false
  if writes.n <= SPARE_SIZE then
    SPARE[kind] = writes
  end
end

-- Fills `list` with pairs of `score` and member, in reverse order: the server searches a small sorted set from its front, so
-- the next member is found before those that were just added.
local function reversed_pairs(members, n, score, list)
  for at = 1, n do
    list[at + at - 1], list[at + at] = score, members[n + 1 - at]
  end
  return list
end

local function write_lean(q)
  local completed, leased = q.completed, q.leased
  if completed then
    local heads, n = completed.heads, completed.n
    send('ZREM', q.a, completed.active, n)
    send('ZADD', q.P, completed.done, 2 * n)
    send('HSET', q.m, heads, 2 * n)
    q.published = (q.published or n > 8) and {} or { unpack(heads, 1, 2 * n) } -- only one small batch, see `result_notice`
    recycle(q, 'completed')
  end
  if leased then
    send('ZADD', q.a, reversed_pairs(leased.active, leased.n, leased.deadline, leased.done), 2 * leased.n)
    send('HSET', q.m, leased.heads, 2 * leased.n)
    recycle(q, 'leased')
  end
end

-- Executes the pending writes, so that later reads of the same call see them.
local function apply_pending(q)
  write_lean(q)
  write_indexes(q)
  write_heads(q)
end
