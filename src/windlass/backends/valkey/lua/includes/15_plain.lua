-- Plain jobs: those with nothing special about them, which are nearly all. They travel and rest as bytes of fixed
-- layout, so that nothing has to be unpacked and packed again on their way from `add` to `completed`. As soon as
-- anything else happens to one, it gets a head like all others.
--
-- A plain job has priority 0, was ready at once, never expires and has the usual options.
--   record in :j      255, sequence (7 bytes), enqueued (6), length and text of task (1 + n), tail as sent
--   head in :m        1, sequence, enqueued, started (6), length and text of token, of worker, of task; and when it
--                     completed, also finished (6), then 0 (no result), 1 and the result, or 2 (the result is in :r)
-- Such a head stands for the first attempt of the first delivery.

local PLAIN, LEAN = 255, 1
local INLINE = 200 -- results up to so many bytes stay in the head
local LEAN_FORMAT = '>I7I6I6Bc0Bc0Bc0'

local function is_plain(record)
  return record:byte() == PLAIN
end

local function is_lean(packed)
  return packed:byte() == LEAN
end

-- The first and the last position of the task in a lean head. Behind it: nothing while it is active.
local function task_in(packed)
  local worker_at = 22 + packed:byte(21)
  local task_at = worker_at + 1 + packed:byte(worker_at)
  return task_at + 1, task_at + packed:byte(task_at)
end

-- The whole head behind lean bytes; the result, if it is among them, goes to `q.inline`.
local function unpack_lean(q, id, packed)
  local seq, enqueued, started, token, worker, task, after = struct.unpack(LEAN_FORMAT, packed, 2)
  local done = after <= #packed
  local head = {
    done and COMPLETED or ACTIVE, seq, seq, 0, enqueued, enqueued, 0, 0, task, 0,
    0, 1, 0, 0, 0, done and '' or token, done and token or '', worker, started, 0, '', 0, '',
  }
  if done then
    head[FINISHED] = struct.unpack('>I6', packed, after)
    head[RESULT_UNTIL] = head[FINISHED] + DEFAULT_RESULT_TTL_MS
    q.inline[id] = packed:byte(after + 6) == 1 and packed:sub(after + 7) or nil
  end
  return head
end

-- What `check_token` answers for a whole head; and, when that is 0, the task.
local function check_lean(packed, token)
  if packed:byte(21) ~= #token or packed:find(token, 22, true) ~= 22 then
    return 2
  end
  local first, last = task_in(packed)
  if last < #packed then
    return 1
  end
  return 0, packed:sub(first, last)
end

-- What is to be written for plain jobs that were leased or completed: `n` of them.
local function writes_of(q, kind)
  local writes = q[kind]
  if not writes then
    writes = { n = 0, heads = {}, active = {}, done = {} }
    q[kind] = writes
  end
  return writes
end

local function write_lean(q)
  if q.completed then
    send('ZREM', q.a, q.completed.active)
    send('ZADD', q.P, q.completed.done)
    send('HSET', q.m, q.completed.heads)
    q.told = q.told and {} or q.completed.heads -- only what completed in one go is told, see `30_notes.lua`
    q.completed = nil
  end
  if q.leased then
    send('ZADD', q.a, q.leased.active)
    send('HSET', q.m, q.leased.heads)
    q.leased = nil
  end
end

-- Makes everything that was decided so far visible to later reads of the same call.
local function settle_down(q)
  write_lean(q)
  write_indexes(q)
  write_heads(q)
end
