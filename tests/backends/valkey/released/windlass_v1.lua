#!lua name=windlass_v1
-- Positions of a job's head, its states, and the bounds of every step.
--
-- A head is an array without holes: what the server must know of a job. Times that are not set are 0,
-- texts that are not set are ''. The first ten fields are written by `add`; the rest begin at 0 or ''.
-- In a head as added, PLACE 0 means "as SEQ" and READY 0 "as ENQUEUED".



-- OPTIONS is 0 (all defaults) or this array; -1 stands for "none".
local DEFAULTS = { -1, 2, -1, 86400000, 10000, 15552000000, 10000, -1, 0, 0 }


-- Events and attempt outcomes by number, as `codes.py` reads them.

local OUTCOMES =
  { 'completed', 'retrying', 'failed', 'cancelled', 'snoozed', 'released', 'stalled', 'expired' }

local function text(number)
  return string.format('%.0f', number)
end

-- One queue during one call: its keys, the heads read so far, and what is still to be written.
--
-- Every key of a queue is its root (declared in KEYS) plus a suffix, so all of them share its hash tag:
--   (root)  hash    seq, cur, passed, ev, ev0, hi, hi0, ro, ro_ms, paused, known, and counters c:<outcome>:<task>
--   :j      hash    id -> record as added, see `15_plain.lua` and `70_add.lua`
--   :m      hash    id -> head, once anything about the job changed
--   :f      stream  jobs of priority 0 that were added ready, by sequence. Those up to `cur` were picked: they
--                   stay for listings until their record goes, and `passed` tells how many they are
--   :w      zset    all others that wait: score -priority, member place (see `place_of`) + id
--   :d      zset    scheduled and retrying: score due time, member sequence + id
--   :t      set     ids of those that are retrying
--   :a      zset    active: score lease deadline, member sequence + id
--   :P      zset    completed with the usual options: score finish time, member sequence + id
--   :C :F :X zset   other completed, failed, cancelled: the same
--   :o      zset    finished, but those in :P: score the time from which the record is too old
--   :k      zset    ids kept beyond their record: score until when
--   :i      zset    every job that is not in :f, by sequence, for listings
--   :r :g :e hash   id -> result, progress, errors
--   :l:<id> list    log lines
--   :v :h   stream  events and history, one entry per call, id = number of its last row; see `30_notes.lua`
-- and what `12_flows.lua`, `87_schedules.lua` and `94_metrics.lua` tell.

local TABLES = {
  heads = true, fresh = true, records = true, packed = true, members = true, lean = true, inline = true,
  dirty = true, events = true, history = true, counts = true, workers = true,
  zadd = true, zrem = true, hset = true, hdel = true, sadd = true, srem = true,
  xdel = true, xdel_passed = true, unlink = true,
}

-- Keys and tables are made when they are first asked for: q.j, q.m, q.heads, ...
local PARTS = {
  __index = function(q, name)
    local part = nil
    if #name == 1 then
      part = q.root .. ':' .. name
    elseif TABLES[name] then
      part = {}
    end
    q[name] = part
    return part
  end,
}

-- The time of this call in milliseconds; when it is the server's, also in microseconds.
local function now_from(argument)
  if argument ~= '' then
    return tonumber(argument)
  end
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000), time[1] * 1000000 + time[2]
end

local function open(root, now)
  return setmetatable({ root = root, now = now, picked = 0, noted = 0, recorded = 0 }, PARTS)
end

local function open_all(roots, now)
  local queues = {}
  for index, root in ipairs(roots) do
    queues[index] = open(root, now)
  end
  return queues
end

local function name_of(q)
  return string.match(q.root, ':([^:}]*)}$')
end

-- Calls `command` with a list of any length, in parts that fit Lua's stack; returns the sum of the answers.
local function send(command, key, list)
  local sum, size = 0, #list
  for first = 1, size, 4000 do
    local answer = redis.call(command, key, unpack(list, first, math.min(first + 3999, size)))
    sum = sum + (type(answer) == 'number' and answer or 0)
  end
  return sum
end

local function read(command, key, list)
  local found = {}
  for first = 1, #list, 4000 do
    local part = redis.call(command, key, unpack(list, first, math.min(first + 3999, #list)))
    for index = 1, #part do
      found[first + index - 1] = part[index]
    end
  end
  return found
end

local function list_of(kind, key)
  local list = kind[key]
  if not list then
    list = {}
    kind[key] = list
  end
  return list
end

-- Remembers to write: `put(q.zadd, key, score, member)`, `put(q.zrem, key, member)`, ...
local function put(kind, key, one, two)
  local list = list_of(kind, key)
  local size = #list
  if type(one) == 'number' then -- scores repeat: making text of them is what costs
    if list.score ~= one then
      list.score, list.score_text = one, text(one)
    end
    one = list.score_text
  end
  list[size + 1] = one
  if two then
    list[size + 2] = two
  end
end

local WRITES = { 'zrem', 'srem', 'hdel', 'hset', 'zadd', 'sadd' } -- what goes first, what comes after

-- Everything in :f up to this number was picked.
local function cursor_of(q)
  q.cursor = q.cursor or tonumber(redis.call('HGET', q.root, 'cur') or 0)
  return q.cursor
end

local function write_indexes(q)
  if rawget(q, 'xdel') then
    send('XDEL', q.f, q.xdel)
    q.xdel = nil
  end
  local passed = q.picked
  if rawget(q, 'xdel_passed') then
    passed = passed - send('XDEL', q.f, q.xdel_passed)
    q.xdel_passed = nil
  end
  if q.picked > 0 then
    redis.call('HSET', q.root, 'cur', text(q.cursor)) -- everything up to there was picked
    q.picked = 0
  end
  if passed ~= 0 then
    redis.call('HINCRBY', q.root, 'passed', passed)
  end
  for _, step in ipairs(WRITES) do
    local lists = rawget(q, step)
    if lists then
      for key, list in pairs(lists) do
        send(step, key, list)
      end
      q[step] = nil
    end
  end
  if rawget(q, 'unlink') then
    send('UNLINK', q.unlink[1], q.unlink)
    q.unlink = nil
  end
end

local function write_heads(q)
  if not rawget(q, 'dirty') then
    return
  end
  local list = {}
  for id, head in pairs(q.dirty) do
    local packed = cmsgpack.pack(head)
    q.packed[id] = packed
    if q.inline[id] then -- its result was part of the head
      redis.call('HSET', q.r, id, q.inline[id])
      q.inline[id] = nil
    end
    list[#list + 1] = id
    list[#list + 1] = packed
  end
  if #list > 0 then
    send('HSET', q.m, list)
  end
  q.dirty = nil
end

-- Jobs that wait for jobs, for signals, and live output: their keys, and what every call begins with.
--
-- An edge lives with the dependent; the child only knows whom to tell. Both may be in different slots.
--   :b      zset    blocked: score enqueued, member sequence + id
--   :u      zset    suspended without a limit: the same. With a limit they are in :d, and their ids in
--   :T      set
--   :D:<id> hash    edges of a dependent: child (<queue>:<id>) -> edge, see `55_flows.lua`
--   :O:<id> set     children that it waits for
--   :B:<id> zset    children that make it fail, in the order of its edges
--   :N:<n>  zset    links of the child with sequence n, in the order of their making: <sequence>:<queue>:<id> of the
--                   dependent; '' marks how far they were told
--   :x      stream  outbox: ends that are yet to be told, under numbers (`xn` of the root) that links have, too: an
--                   end concerns links with smaller numbers
--   :y      hash    sequence -> how many ends of that job are in the outbox
--   :L      zset    dependents of which some child was not linked yet: score since when
--   :S:<id> hash    signals: name -> time (6 bytes), length and text of codec (1 + n), data
--   :p:<id> stream  live output: id = number of the chunk
--   :q      hash    id -> packed {last, oldest, size, delivery, base} of its output

-- A head has these only once one of them is needed, see `flow.widen`.


-- Functions of this subject; `alone`: there is one server, so every queue can be reached from here; `ended`: jobs
-- with links that ended during this call, in order.
local flow = {}

-- Takes the guard off the keys of a call, see `loader.guard_key`.
local function begin(keys)
  flow.ended = nil
  flow.alone = string.sub(keys[#keys], -2) ~= ':?'
  if not flow.alone then
    keys[#keys] = nil
  end
end

function flow.widen(head)
  if not head[24] then
    head[24], head[25], head[26], head[27] = 0, '', 0, 0
  end
end

-- Plain jobs: those with nothing special about them, which are nearly all. They travel and rest as bytes of fixed
-- layout, so that nothing has to be unpacked and packed again on their way from `add` to `completed`. As soon as
-- anything else happens to one, it gets a head like all others.
--
-- A plain job has priority 0, was ready at once, never expires and has the usual options.
--   record in :j      255, sequence (7 bytes), enqueued (6), length and text of task (1 + n), tail as sent
--   head in :m        1, sequence, enqueued, started (6), length and text of token, of worker, of task; and when it
--                     completed, also finished (6), then 0 (no result), 1 and the result, or 2 (the result is in :r)
-- Such a head stands for the first attempt of the first delivery.

local LEAN_FORMAT = '>I7I6I6Bc0Bc0Bc0'

local function is_plain(record)
  return record:byte() == 255
end

local function is_lean(packed)
  return packed:byte() == 1
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
    done and 7 or 6, seq, seq, 0, enqueued, enqueued, 0, 0, task, 0,
    0, 1, 0, 0, 0, done and '' or token, done and token or '', worker, started, 0, '', 0, '',
  }
  if done then
    head[20] = struct.unpack('>I6', packed, after)
    head[22] = head[20] + 3600000
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

-- Reading jobs. A head is in :m once anything about the job changed, else at the front of its record in :j.

local function unpack_fresh(record)
  if is_plain(record) then
    local seq, enqueued, task = struct.unpack('>I7I6Bc0', record, 2)
    return {
      1, seq, seq, 0, enqueued, enqueued, 0, 0, task, 0,
      0, 0, 0, 0, 0, '', '', '', 0, 0, '', 0, '',
    }
  end
  local _, head = cmsgpack.unpack_one(record, 2)
  if head[3] == 0 then
    head[3] = head[2]
  end
  if head[6] == 0 then
    head[6] = head[5]
  end
  for index = 11, 15 do
    head[index] = 0
  end
  head[16], head[17], head[18] = '', '', ''
  head[19], head[20] = 0, 0
  head[21], head[22], head[23] = '', 0, ''
  return head
end

-- Reads jobs that nothing happened to since they were added.
local function load_fresh(q, ids)
  local found = read('HMGET', q.j, ids)
  for index, id in ipairs(ids) do
    if found[index] then
      q.heads[id] = unpack_fresh(found[index])
      q.fresh[id] = true
      q.records[id] = found[index]
    end
  end
end

-- Where the tail of a record (see `70_add.lua`) begins.
local function tail_at(record)
  if is_plain(record) then
    return 16 + record:byte(15)
  end
  return 3 + struct.unpack('>I2', record)
end

-- Reads the heads of `ids` that are not known yet; false marks a job that is not there.
-- `as_they_are`: plain heads stay bytes, in q.lean.
local function load(q, ids, as_they_are)
  local wanted = {}
  for _, id in ipairs(ids) do
    if q.heads[id] == nil then
      wanted[#wanted + 1] = id
      q.heads[id] = false
    end
  end
  local fresh = {}
  local found = read('HMGET', q.m, wanted)
  for index, id in ipairs(wanted) do
    local packed = found[index]
    if packed and as_they_are and is_lean(packed) then
      q.lean[id], q.heads[id] = packed, nil
    elseif packed then
      q.heads[id] = is_lean(packed) and unpack_lean(q, id, packed) or cmsgpack.unpack(packed)
      q.packed[id] = packed
    else
      fresh[#fresh + 1] = id
    end
  end
  load_fresh(q, fresh)
end

local function load_records(q, ids)
  local wanted = {}
  for _, id in ipairs(ids) do
    if not q.records[id] then
      wanted[#wanted + 1] = id
    end
  end
  local found = read('HMGET', q.j, wanted)
  for index, id in ipairs(wanted) do
    q.records[id] = found[index]
  end
end

local function head_of(q, id)
  if q.heads[id] == nil then
    load(q, { id })
  end
  return q.heads[id]
end

local function options_of(head)
  local options = head[10]
  return options ~= 0 and options or DEFAULTS
end

local function member_of(q, id, head)
  local member = q.members[id]
  if not member then
    member = struct.pack('>I7', head[2]) .. id
    q.members[id] = member
  end
  return member
end

-- Places of `lifo` jobs are below 0; the offset keeps the order of bytes the order of places.
local function place_member_of(id, head)
  return struct.pack('>I7', head[3] + 4503599627370496) .. id
end

local function place_of(member)
  return struct.unpack('>I7', member) - 4503599627370496
end

local function id_of(member)
  return string.sub(member, 8)
end

local function number_of(member)
  return struct.unpack('>I7', member)
end

-- What a reader sees: id, record, head, result, progress, errors, lease deadline, signals.
local function view(q, id)
  local head = head_of(q, id)
  load_records(q, { id })
  local result = false
  if head[22] > q.now then
    result = q.inline[id] or redis.call('HGET', q.r, id)
  end
  local lease = head[1] == 6 and redis.call('ZSCORE', q.a, member_of(q, id, head)) or false
  local packed = q.packed[id] or ''
  local progress, errors = redis.call('HGET', q.g, id), redis.call('HGET', q.e, id)
  return { id, q.records[id], packed, result, progress, errors, lease, flow.signals(q, id, head) }
end

-- Events, history, counters and hints: what a change writes besides the job itself.
--
-- Events are {code, id, task, ...}; `codes.py` names what follows. Equal events of several jobs in a row are one
-- row {-code, ids with spaces between, task, ...}. History rows are {run id, id, attempt, delivery, task, tags or
-- 0, worker, enqueued, ready, started, duration or -1, outcome [, error class, fingerprint]}.
--
-- Both are written as one stream entry per call, whose id is the number of its last row. Its fields, in order: `b`,
-- packed {time, rows}; in history also `p`, completed plain jobs: time (6 bytes), then length and text of the id
-- (2 + n), duration (6) and the head while it was active, again and again.

local function note(q, code, id, head, ...)
  q.events[#q.events + 1] = { code, id, head and head[9] or '', ... }
  q.noted, q.run = q.noted + 1, nil
end

-- An event of which many in a row are equal but for the id.
local function note_run(q, code, id, task, one, two)
  local run = q.run
  if not run or run[1] ~= -code or run[3] ~= task then
    run = { -code, {}, task, one, two }
    q.events[#q.events + 1], q.run = run, run
  end
  local ids = run[2]
  ids[#ids + 1] = id
  q.noted = q.noted + 1
end

local function count(q, outcome, task, more)
  local tasks = list_of(q.counts, outcome)
  tasks[task] = (tasks[task] or 0) + (more or 1)
end

-- The row for a job as it stands before the change that ends its attempt.
local function record(q, id, head, outcome, duration, failure)
  local ran = head[16] ~= ''
  local run_id = head[16]
  if not ran then
    run_id = table.concat({ 'end', name_of(q), id, text(head[2]), text(head[14]) }, '.')
  end
  local row = {
    run_id, id, ran and head[11] + 1 or 0, head[12], head[9], options_of(head)[9],
    ran and head[18] or '', head[5], head[6], ran and head[19] or 0, duration or -1, outcome,
  }
  if failure then
    row[13], row[14] = failure[1], failure[4]
  end
  local rows = q.history[#q.history]
  if not rows or rows.plain then
    rows = {}
    q.history[#q.history + 1] = rows
  end
  rows[#rows + 1] = row
  q.recorded = q.recorded + 1
  count(q, OUTCOMES[outcome], head[9])
end

-- The row of a plain job whose first attempt completed; `packed` is its head while active.
local function record_plain(q, id, packed, duration)
  local rows = q.history[#q.history]
  if not rows or not rows.plain then
    rows = { struct.pack('>I6', q.now), plain = true }
    q.history[#q.history + 1] = rows
  end
  local size = #rows
  rows[size + 1], rows[size + 2] = struct.pack('>I2c0i6', #id, id, duration), packed
  q.recorded = q.recorded + 1
end

local function append_events(q)
  for _, row in ipairs(q.events) do
    if row[1] < 0 then
      row[2] = table.concat(row[2], ' ')
    end
  end
  local last = redis.call('HINCRBY', q.root, 'ev', q.noted)
  redis.call('XADD', q.v, text(last), 'b', cmsgpack.pack({ q.now, q.events }))
  if last > 10000 and math.floor(last / 100) > math.floor((last - q.noted) / 100) then
    redis.call('XTRIM', q.v, 'MINID', text(last - 10000 + 1))
  end
  redis.call('SPUBLISH', q.root .. ':event', '')
  q.events, q.noted, q.run = nil, 0, nil
end

local function append_history(q)
  local last = redis.call('HINCRBY', q.root, 'hi', q.recorded)
  local fields = {}
  for _, rows in ipairs(q.history) do
    fields[#fields + 1] = rows.plain and 'p' or 'b'
    fields[#fields + 1] = rows.plain and table.concat(rows) or cmsgpack.pack({ q.now, rows })
  end
  redis.call('XADD', q.h, text(last), unpack(fields))
  q.history, q.recorded = nil, 0
end

local function hint(q)
  if q.ready then
    redis.call('SPUBLISH', q.root .. ':ready', '')
  end
  if q.done then
    redis.call('SPUBLISH', q.root .. ':done', '')
  end
end

-- Writes everything of one queue that is still open.
local function close_one(q)
  settle_down(q)
  if q.noted > 0 then
    append_events(q)
  end
  if q.recorded > 0 then
    append_history(q)
  end
  for outcome, tasks in pairs(rawget(q, 'counts') or {}) do
    for task, total in pairs(tasks) do
      redis.call('HINCRBY', q.root, 'c:' .. outcome .. ':' .. task, total)
    end
  end
  hint(q)
end

-- Tells what ended and writes everything that is still open. Every function that changes something ends with this.
local function close_all(queues)
  flow.tell(queues)
  for _, q in ipairs(queues) do
    close_one(q)
  end
end

local function close(q)
  local queues = { q }
  close_all(queues)
  return queues
end

-- Where jobs stand: each state has one index, and a job is in exactly one of them.

local ENDS = { [7] = 'C', [8] = 'F', [9] = 'X' }

-- The first of `amount` numbers, greater than any that these queues gave before. Numbers are the server's
-- microseconds, raised where needed: so they are in order over all queues, and never come again although a
-- failover may lose the last writes.
-- Also returns the positions of queues that are not known as queues yet, and makes them known if `adding`.
-- `micros`: the server's time, if it is known already.
local function take_numbers(queues, amount, adding, micros)
  local first, new = micros, {}
  if not first then
    local time = redis.call('TIME')
    first = time[1] * 1000000 + time[2]
  end
  for index, q in ipairs(queues) do
    local marks = redis.call('HMGET', q.root, 'seq', 'known')
    first = math.max(first, 1 + (marks[1] or 0))
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

-- A new place for a job: the last one of its priority, or (`lifo`: its places are below 0) the very first.
local function fresh_place(q, head)
  if not q.next_place or q.next_place > q.last_place then
    reserve(q, 1)
  end
  local place = q.next_place
  q.next_place = place + 1
  return head[3] < 0 and -place or place
end

local function spare_until(options, finished)
  return finished + math.max(60000, options[3])
end

-- When a finished record is too old; nil when never.
local function keep_until(head)
  local options, finished = options_of(head), head[20]
  local age = head[1] == 8 and options[6] or options[4]
  if age < 0 then
    return nil
  end
  return math.max(finished + age, spare_until(options, finished))
end

-- Where a finished job is listed.
local function end_key(q, head)
  if head[1] == 7 and head[10] == 0 then
    return q.P
  end
  return q[ENDS[head[1]]]
end

-- Takes a job out of the index of its present state. `gone`: its record goes too.
local function leave(q, id, head, gone)
  local state = head[1]
  if state == 1 then
    if q.fresh[id] and head[4] == 0 and head[3] > 0 then
      if q.picking then
        q.cursor, q.picked = head[2], q.picked + 1
      else
        q.xdel[#q.xdel + 1] = text(head[2])
        if not gone then
          put(q.zadd, q.i, head[2], id)
        end
      end
    else
      put(q.zrem, q.w, place_member_of(id, head))
    end
  elseif state == 6 then
    put(q.zrem, q.a, member_of(q, id, head))
  elseif ENDS[state] then
    put(q.zrem, end_key(q, head), member_of(q, id, head))
    put(q.zrem, q.o, member_of(q, id, head))
  elseif state == 4 or (state == 10 and head[7] == 0) then
    put(q.zrem, state == 4 and q.b or q.u, member_of(q, id, head))
  else
    put(q.zrem, q.d, member_of(q, id, head))
    if state ~= 2 then
      put(q.srem, state == 3 and q.t or q.T, id)
    end
  end
end

-- Enters a changed job where its state says it can be found. `deadline`: of its lease, when active.
local function enter(q, id, head, deadline)
  local state = head[1]
  q.dirty[id], q.fresh[id] = head, nil
  if state == 1 then
    put(q.zadd, q.w, 0 - head[4], place_member_of(id, head))
    q.ready = true
  elseif state == 6 then
    put(q.zadd, q.a, deadline, member_of(q, id, head))
  elseif ENDS[state] then
    local key = end_key(q, head)
    put(q.zadd, key, head[20], member_of(q, id, head))
    local until_ms = keep_until(head)
    if until_ms and key ~= q.P then
      put(q.zadd, q.o, until_ms, member_of(q, id, head))
    end
    q.done = true
  elseif state == 4 or (state == 10 and head[7] == 0) then
    put(q.zadd, state == 4 and q.b or q.u, head[5], member_of(q, id, head))
  else
    put(q.zadd, q.d, head[7], member_of(q, id, head))
    if state ~= 2 then
      put(q.sadd, state == 3 and q.t or q.T, id)
    end
    q.ready = true
  end
end

-- Deletes a record with all that belongs to it; an id that was promised to be kept stays known.
local function drop(q, id, head)
  if not (q.fresh[id] and head[1] == 1) then
    q.xdel_passed[#q.xdel_passed + 1] = text(head[2])
  end
  leave(q, id, head, true)
  if head[24] then
    flow.drop(q, id, head)
  end
  put(q.zrem, q.i, id)
  for _, key in ipairs({ q.j, q.m, q.r, q.g, q.e }) do
    put(q.hdel, key, id)
  end
  q.unlink[#q.unlink + 1] = q.root .. ':l:' .. id
  local kept = options_of(head)[8]
  if kept >= 0 and head[5] + kept > q.now then
    put(q.zadd, q.k, head[5] + kept, id)
  end
  q.heads[id], q.fresh[id], q.dirty[id] = false, nil, nil
  q.packed[id], q.records[id], q.members[id], q.inline[id] = nil, nil, nil, nil
end

-- Removes a record on somebody's wish; one that had not finished leaves its end in history.
local function remove(q, id, head)
  if not ENDS[head[1]] then
    record(q, id, head, 4)
  end
  note(q, 16, id, head, head[1])
  drop(q, id, head)
end

-- How many jobs wait.
local function waiting(q)
  local passed = redis.call('HGET', q.root, 'passed') or 0
  return redis.call('XLEN', q.f) - passed + redis.call('ZCARD', q.w)
end

-- The first `amount` jobs of :f that were not picked yet.
local function unpicked(q, amount)
  return redis.call('XRANGE', q.f, '(' .. text(cursor_of(q)), '+', 'COUNT', amount)
end

-- Whether any job waits; looks at the line itself.
local function anybody_waits(q)
  return redis.call('ZCARD', q.w) > 0 or #unpicked(q, 1) > 0
end

-- Milliseconds until the next job of `q` is due, or nil.
local function next_due_in(q)
  local first = redis.call('ZRANGE', q.d, 0, 0, 'WITHSCORES')
  return first[2] and math.max(tonumber(first[2]) - q.now, 0)
end

-- Every change that a job can go through. The same rules as `windlass.core.transitions`, in the same order.

local function keep_error(q, id, head, failure, attempt)
  local known = redis.call('HGET', q.e, id)
  local errors = known and cmsgpack.unpack(known) or {}
  errors[#errors + 1] = { q.now, attempt or head[11] + 1, failure[1], failure[2], failure[3], failure[4] }
  if #errors > 32 then
    table.remove(errors, 1)
  end
  redis.call('HSET', q.e, id, cmsgpack.pack(errors))
end

local function drop_lease(head, settled)
  if settled then
    head[17] = head[16]
  end
  head[16] = ''
end

local function finish(q, id, head, state, reason)
  leave(q, id, head)
  if head[16] ~= '' then
    drop_lease(head, true)
  end
  head[1], head[7], head[20], head[23] = state, 0, q.now, reason
  enter(q, id, head)
  if head[24] == 1 then
    flow.note_end(q, id, head)
  end
end

local function put_back(q, id, head, state, delay)
  leave(q, id, head)
  drop_lease(head, true)
  if delay > 0 then
    head[1], head[7], head[6] = state, q.now + delay, q.now + delay
  else
    head[1], head[6], head[3] = 1, q.now, fresh_place(q, head)
  end
  enter(q, id, head)
end

local function promote(q, id, head)
  leave(q, id, head)
  head[1] = 1
  head[6] = head[7] ~= 0 and math.min(head[7], q.now) or q.now
  head[7], head[3] = 0, fresh_place(q, head)
  note(q, 3, id, head)
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
    for _, id in ipairs(ids) do
      promote(q, id, q.heads[id])
    end
    settle_down(q)
  end
  return #ids
end

local function expire(q, id, head)
  record(q, id, head, 8, nil, { 'JobExpired', '', '', '' })
  finish(q, id, head, 8, 'expired')
  note(q, 8, id, head, 'expired', 'JobExpired')
end

local function lease(q, id, head, token, worker, lease_ms)
  leave(q, id, head)
  if not q.fresh[id] then
    put(q.hdel, q.g, id)
  end
  local own = options_of(head)[1]
  head[1], head[16], head[18], head[19] = 6, token, worker, q.now
  head[12] = head[12] + 1
  note(q, 4, id, head, head[11] + 1, worker)
  enter(q, id, head, q.now + (own > 0 and own or lease_ms))
end

-- An end is {queue, id, token, outcome, duration, result or 0, delay, reason, uses attempt, miss, error}.
local NO_ERROR = { '', '', '', '', '' }

local function complete(q, id, head, item)
  record(q, id, head, 1, item[5])
  local ttl = options_of(head)[3]
  head[22] = q.now + (ttl >= 0 and ttl or 3600000)
  finish(q, id, head, 7, '')
  if item[6] ~= 0 then
    put(q.hset, q.r, id, item[6])
  end
  note(q, 7, id, head)
end

local function fail(q, id, head, item)
  local failure = item[11] ~= 0 and item[11] or NO_ERROR
  keep_error(q, id, head, failure)
  record(q, id, head, 3, item[5], failure)
  head[11] = head[11] + item[9]
  finish(q, id, head, 8, item[8])
  note(q, 8, id, head, item[8], failure[1], failure[5])
end

local function try_again(q, id, head, item)
  local failure = item[11] ~= 0 and item[11] or NO_ERROR
  keep_error(q, id, head, failure)
  record(q, id, head, 2, item[5], failure)
  head[11] = head[11] + 1
  put_back(q, id, head, 3, item[7])
  note(q, 6, id, head, head[11], failure[1], failure[5], head[7])
end

local function snooze(q, id, head, item)
  record(q, id, head, 5, item[5])
  put_back(q, id, head, 2, item[7])
  local reason = item[8] ~= '' and item[8] or 'snoozed'
  if head[7] == 0 then
    note(q, 12, id, head, reason)
  else
    note(q, 2, id, head, head[7], reason)
  end
end

local function release(q, id, head, item)
  record(q, id, head, 6, item[5])
  head[15] = head[15] + item[10]
  if item[7] > 0 then
    put_back(q, id, head, 2, item[7])
  else
    leave(q, id, head)
    drop_lease(head, true)
    head[1] = 1
    enter(q, id, head)
  end
  note(q, 12, id, head, item[8], head[7])
end

local function end_cancelled(q, id, head, item)
  local reason = item[8]
  if head[21] ~= '' then
    reason = string.sub(head[21], 2)
  end
  record(q, id, head, 4, item[5])
  finish(q, id, head, 9, reason)
  note(q, 9, id, head, reason)
end

-- What is put behind the head of a plain job that completed now.
local function plain_end(q, id, result)
  if result ~= 0 and #result > 200 then
    put(q.hset, q.r, id, result)
    return q.done_head .. string.char(2)
  elseif q.last_result ~= result then -- many are equal
    q.last_result = result
    q.last_end = q.done_head .. (result == 0 and string.char(0) or string.char(1) .. result)
  end
  return q.last_end
end

-- The same as `complete` for a plain job, of which `packed` is the head.
local function complete_plain(q, id, packed, task, duration, result)
  record_plain(q, id, packed, duration)
  if not q.done_head then
    q.done_head, q.done_at, q.done = struct.pack('>I6', q.now), text(q.now), true
  end
  local done, member = packed .. plain_end(q, id, result), packed:sub(2, 8) .. id
  q.lean[id] = done
  local writes = writes_of(q, 'completed')
  local n = writes.n
  writes.heads[2 * n + 1], writes.heads[2 * n + 2] = id, done
  writes.done[2 * n + 1], writes.done[2 * n + 2] = q.done_at, member
  writes.active[n + 1], writes.n = member, n + 1
  count(q, 'completed', task)
  note_run(q, 7, id, task)
end

-- By number: complete, fail, retry, snooze, release, cancel; wait and suspend are in `56_suspend.lua`.
local SETTLE = { complete, fail, try_again, snooze, release, end_cancelled }

-- Ends the attempt of an active job whose token was checked.
local function settle(q, id, head, item)
  local outcome = item[4]
  if head[21] ~= '' and outcome >= 3 then
    outcome = 6
  end
  SETTLE[outcome](q, id, head, item)
end

-- Gives back a lease that its worker never heard of: nobody settled anything.
local function give_back(q, id, head)
  local settled = head[17]
  settle(q, id, head, { 0, id, head[16], 5, -1, 0, 0, 'reconciled', 0, 0 })
  head[17] = settled
end

local function fail_stalled(q, id, head)
  local message = 'the worker went silent ' .. head[13] .. ' times, last ' .. head[18]
  local failure = { 'JobStalled', message, '', 'JobStalled' }
  keep_error(q, id, head, failure)
  record(q, id, head, 3, nil, failure)
  drop_lease(head, false)
  finish(q, id, head, 8, 'stalled')
  note(q, 8, id, head, 'stalled', 'JobStalled', message)
end

-- Takes back an expired lease; false when the job has now failed because that happened too often.
local function recover(q, id, head)
  head[13] = head[13] + 1
  if head[21] ~= '' then
    local reason = string.sub(head[21], 2)
    record(q, id, head, 4)
    drop_lease(head, false)
    finish(q, id, head, 9, reason)
    note(q, 9, id, head, reason)
    return true
  end
  if head[13] > options_of(head)[2] then
    fail_stalled(q, id, head)
    return false
  end
  record(q, id, head, 7)
  leave(q, id, head)
  drop_lease(head, false)
  head[1] = 1
  note(q, 11, id, head, head[18], head[13])
  enter(q, id, head)
  return true
end

-- Edges: what a child's end does to those that wait for it. The same rules as `windlass.core.flows`.
--
-- An edge is the length (2 bytes) of packed {number, child's sequence (0: not known yet), on failure, status, codec,
-- reason, error, 1 when there is a value}, that, and the value. A fate, how a child ended, is {sequence, 1 when it
-- completed, codec, reason, error, 1 when there is a value, value}.


-- The queue of that name, if it can be reached from this call.
function flow.reach(queues, name)
  if not queues.names then
    queues.names = {}
    for _, q in ipairs(queues) do
      queues.names[name_of(q)] = q
    end
  end
  local found = queues.names[name]
  if not found and flow.alone then
    found = open(string.match(queues[1].root, '^(.*:)[^:}]*}$') .. name .. '}', queues[1].now)
    queues.names[name] = found
    queues[#queues + 1] = found
  end
  return found
end

-- The first 500 bytes, without a broken character at the end.
local function brief(message)
  if #message <= 500 then
    return message
  end
  local last = 500
  while last > 0 and message:byte(last + 1) >= 128 and message:byte(last + 1) < 192 do
    last = last - 1
  end
  return message:sub(1, last)
end

function flow.fate(q, id, head)
  local codec = options_of(head)[10]
  local fate = { head[2], 0, codec ~= 0 and codec or 'json', 'removed', '', 0, '' }
  if head[1] == 7 then
    local value = q.inline[id] or redis.call('HGET', q.r, id)
    fate[2], fate[4] = 1, ''
    if value then
      fate[6], fate[7] = 1, value
    end
  elseif head[1] == 8 then
    local known = redis.call('HGET', q.e, id)
    local errors = known and cmsgpack.unpack(known) or {}
    local last = errors[#errors]
    fate[4] = head[23] ~= '' and head[23] or 'failed'
    fate[5] = last and brief(last[3] .. ': ' .. last[4]) or ''
  elseif head[1] == 9 then
    fate[4] = 'cancelled'
  end
  return fate
end

-- Says in the head that an edge names this job.
function flow.mark(q, id, head)
  flow.widen(head)
  if head[24] == 1 then
    return
  end
  head[24] = 1
  if head[1] == 1 and q.fresh[id] then -- those that wait in :f have no head of their own
    leave(q, id, head)
    enter(q, id, head)
  else
    q.dirty[id], q.fresh[id] = head, nil
  end
end

function flow.links(q, seq)
  return q.root .. ':N:' .. text(seq)
end

-- Lets a dependent (<sequence>:<queue>:<id>) be told when a job ends. Returns its fate when it has ended, true when
-- it has not, false when there is no such job.
function flow.link(q, id, dependent)
  local head = head_of(q, id)
  if not head then
    return false
  end
  flow.mark(q, id, head)
  local key = flow.links(q, head[2])
  if not redis.call('ZSCORE', key, dependent) then
    redis.call('ZADD', key, redis.call('HINCRBY', q.root, 'xn', 1), dependent)
  end
  return not ENDS[head[1]] or flow.fate(q, id, head)
end

function flow.read_edge(q, id, child)
  local stored = redis.call('HGET', q.root .. ':D:' .. id, child)
  if not stored then
    return nil
  end
  local _, edge = cmsgpack.unpack_one(stored, 2)
  return edge, stored
end

function flow.write_edge(q, id, child, edge, value)
  local packed = cmsgpack.pack(edge)
  redis.call('HSET', q.root .. ':D:' .. id, child, struct.pack('>I2', #packed) .. packed .. value)
end

function flow.is_broken(edge)
  return edge[4] == 2 and edge[3] == 0
end

-- Writes a child's end into an edge.
function flow.close_edge(q, id, child, edge, fate)
  local status = 1
  if fate[2] == 0 then
    status = edge[3] == 1 and 3 or 2
  end
  local on = edge[3]
  local closed = { edge[1], fate[1], on, status, fate[3], fate[4], fate[5], fate[6] }
  flow.write_edge(q, id, child, closed, fate[7])
  if flow.is_broken(closed) then
    redis.call('ZADD', q.root .. ':B:' .. id, closed[1], child)
  end
  return closed
end

function flow.has_open(q, id)
  return redis.call('EXISTS', q.root .. ':O:' .. id) == 1
end

function flow.block(q, id, head)
  local state = head[1]
  if state == 4 or state == 10 or state == 6 or ENDS[state] then
    return
  end
  leave(q, id, head)
  head[1] = 4
  note(q, 20, id, head)
  enter(q, id, head)
  settle_down(q)
end

function flow.unblock(q, id, head)
  if head[7] > q.now then
    leave(q, id, head)
    head[1], head[6] = 2, head[7]
    note(q, 2, id, head, head[7])
    enter(q, id, head)
  else
    leave(q, id, head)
    head[1], head[6], head[7], head[3] = 1, q.now, 0, fresh_place(q, head)
    note(q, 3, id, head)
    enter(q, id, head)
  end
end

-- Ends a blocked job whose child did not complete.
function flow.fail(q, id, head, child, edge)
  local name, child_id = string.match(child, '^([^:]*):(.*)$')
  local message = 'job ' .. child_id .. ' of queue ' .. name .. ' did not complete: ' .. edge[6]
  local failure = { 'DependencyFailed', message, '', 'DependencyFailed' }
  keep_error(q, id, head, failure, 0)
  record(q, id, head, 3, nil, failure)
  finish(q, id, head, 8, 'dependency_failed')
  note(q, 8, id, head, 'dependency_failed', 'DependencyFailed', brief(message))
end

-- Decides about a job that was blocked just now.
function flow.review(q, id, head)
  local broken = redis.call('ZRANGE', q.root .. ':B:' .. id, 0, 0)[1]
  if broken then
    flow.fail(q, id, head, broken, flow.read_edge(q, id, broken))
  elseif not flow.has_open(q, id) then
    flow.unblock(q, id, head)
  end
end

-- One edge of a job was closed.
function flow.after_edge(q, id, head, child, edge)
  if head[1] ~= 4 then
    return
  end
  local goes_on = edge[4] == 2 and edge[3] == 2
  if flow.is_broken(edge) then
    flow.fail(q, id, head, child, edge)
  elseif goes_on or not flow.has_open(q, id) then
    flow.unblock(q, id, head)
  end
end

-- Tells the dependent with that sequence how its child ended; 1 when that was news.
function flow.settle_edge(q, id, seq, child, fate)
  local head = head_of(q, id)
  if not head or head[2] ~= seq or redis.call('SREM', q.root .. ':O:' .. id, child) == 0 then
    return 0
  end
  local edge = flow.close_edge(q, id, child, flow.read_edge(q, id, child), fate)
  flow.after_edge(q, id, head, child, edge)
  return 1
end

-- A finished dependent is put back: what made it fail does not count any more. Whether it waits for something.
function flow.forgive(q, id)
  local key = q.root .. ':B:' .. id
  for _, child in ipairs(redis.call('ZRANGE', key, 0, -1)) do
    local edge = flow.read_edge(q, id, child)
    edge[4] = 3
    flow.write_edge(q, id, child, edge, '')
  end
  redis.call('UNLINK', key)
  return flow.has_open(q, id)
end

-- --- ends ---------------------------------------------------------------------------------------------

-- A job with links finished, or its record goes before it did.
function flow.note_end(q, id, head, gone)
  flow.ended = flow.ended or {}
  table.insert(flow.ended, { q = q, id = id, head = head, gone = gone })
end

-- Puts what is yet to be told into the outbox.
function flow.put_out(q, id, fate)
  local number = redis.call('HINCRBY', q.root, 'xn', 1)
  local told = cmsgpack.pack({ fate[1], fate[2], fate[3], fate[4], fate[5], fate[6] })
  redis.call('XADD', q.x, text(number), 'i', id, 'f', told, 'v', fate[7])
  redis.call('HINCRBY', q.y, text(fate[1]), 1)
  q.left = true
end

-- Tells the dependents of one end that can be reached, at most `budget`. Returns how many heard news and how many
-- were looked at. The rest goes to the outbox.
function flow.spread(queues, one, budget)
  local q, id, seq = one.q, one.id, one.head[2]
  local key = flow.links(q, seq)
  local from = '(' .. (redis.call('ZSCORE', key, '') or 0)
  if redis.call('HEXISTS', q.y, text(seq)) == 1 then -- an earlier end of it comes first
    flow.put_out(q, id, flow.fate(q, id, one.head))
    return 0, 0
  end
  local members = redis.call('ZRANGEBYSCORE', key, from, '+inf', 'WITHSCORES', 'LIMIT', 0, budget)
  local news, fate, last, left = 0, nil, nil, false
  for at = 1, #members, 2 do
    local number, name, dependent = string.match(members[at], '^(%d+):([^:]*):(.*)$')
    local target = flow.reach(queues, name)
    fate = fate or flow.fate(q, id, one.head)
    if target then
      news = news + flow.settle_edge(target, dependent, tonumber(number), name_of(q) .. ':' .. id, fate)
    else
      left = true
    end
    last = not left and members[at + 1] or last
  end
  if last then
    redis.call('ZADD', key, last, '')
  end
  if left or redis.call('ZCOUNT', key, last and ('(' .. last) or from, '+inf') > 0 then
    flow.put_out(q, id, fate or flow.fate(q, id, one.head))
  elseif one.gone then
    redis.call('UNLINK', key)
  end
  return news, #members / 2
end

-- Tells what ended during this call, and what ends because of that, at most `budget` edges. Returns how many heard
-- news.
function flow.tell(queues, budget)
  local count, room, at = 0, budget or 1000, 1
  if not flow.ended then
    return 0
  end
  for _, q in ipairs(queues) do
    settle_down(q)
  end
  while flow.ended[at] do
    local news, seen = flow.spread(queues, flow.ended[at], math.max(room, 0))
    count, room, at = count + news, room - seen, at + 1
  end
  flow.ended = nil
  return count
end

-- The names of queues whose outbox holds something since this call.
function flow.left(queues)
  local names = {}
  for _, q in ipairs(queues) do
    if rawget(q, 'left') then
      names[#names + 1] = name_of(q)
    end
  end
  return names
end

-- A record goes, and all that belongs to it.
function flow.drop(q, id, head)
  if head[24] == 1 then
    for _, part in ipairs({ ':D:', ':O:', ':B:' }) do
      q.unlink[#q.unlink + 1] = q.root .. part .. id
    end
    put(q.zrem, q.L, id)
    if not ENDS[head[1]] then
      flow.note_end(q, id, head, true)
    elseif redis.call('HEXISTS', q.y, text(head[2])) == 0 then
      q.unlink[#q.unlink + 1] = flow.links(q, head[2])
    end
  end
  if head[26] > 0 then
    q.unlink[#q.unlink + 1] = q.root .. ':S:' .. id
  end
  if head[27] == 1 then
    q.unlink[#q.unlink + 1] = q.root .. ':p:' .. id
    put(q.hdel, q.q, id)
  end
end

-- Ends of an attempt that wait for something: children, or a signal.

function flow.wait(q, id, head, item)
  record(q, id, head, 5, item[5])
  leave(q, id, head)
  drop_lease(head, true)
  head[1] = 4
  note(q, 20, id, head)
  enter(q, id, head)
  settle_down(q)
  flow.review(q, id, head)
end

-- The name of the signal comes as the reason of the end.
function flow.suspend(q, id, head, item)
  record(q, id, head, 5, item[5])
  flow.widen(head)
  head[25] = item[8]
  if head[26] > 0 and redis.call('HEXISTS', q.root .. ':S:' .. id, item[8]) == 1 then
    put_back(q, id, head, 1, 0)
    note(q, 12, id, head, 'signalled')
    return
  end
  leave(q, id, head)
  drop_lease(head, true)
  head[1], head[7] = 10, item[7] > 0 and q.now + item[7] or 0
  note(q, 21, id, head, item[8], head[7])
  enter(q, id, head)
end

SETTLE[7], SETTLE[8] = flow.wait, flow.suspend

-- Keeps a signal with a job. Returns the status of a change, or -1 when there are too many names.
function flow.signal(q, id, head, name, value, most)
  local key = q.root .. ':S:' .. id
  if ENDS[head[1]] then
    return 2
  end
  flow.widen(head)
  local is_new = redis.call('HEXISTS', key, name) == 0
  if is_new and head[26] >= most then
    return -1
  end
  redis.call('HSET', key, name, value)
  if is_new then
    head[26] = head[26] + 1
  end
  if head[1] == 10 and head[25] == name then
    promote(q, id, head)
    return 0
  end
  if head[1] == 1 and q.fresh[id] then -- those that wait in :f have no head of their own
    leave(q, id, head)
    enter(q, id, head)
  else
    q.dirty[id], q.fresh[id] = head, nil
  end
  note(q, 15, id, head, 'signal')
  return 0
end

-- All signals of a job: name, value, ...; false when it has none.
function flow.signals(q, id, head)
  if (head[26] or 0) == 0 then
    return false
  end
  return redis.call('HGETALL', q.root .. ':S:' .. id)
end

-- Choosing who is first in line.
--
-- Order is (priority from high to low, place). The zset :w holds it exactly; the stream :f, behind its cursor, holds
-- the fresh jobs of priority 0. Both are read from the front and merged.

-- Returns ids in order, those of them that are fresh, and the others.
local function front(q, amount)
  local ranked = redis.call('ZRANGE', q.w, 0, amount - 1, 'WITHSCORES')
  local line, fresh, others, plain = {}, {}, {}, nil
  if #ranked == 0 then -- the usual case
    for index, entry in ipairs(unpicked(q, amount)) do
      fresh[index] = entry[2][2]
    end
    return fresh, fresh, others
  end
  local at, plain_at = 1, 1
  while #line < amount do
    local score = ranked[at] and tonumber(ranked[at + 1])
    local place, entry
    if not score or score >= 0 then
      plain = plain or unpicked(q, amount - #line)
      entry = plain[plain_at]
      place = entry and tonumber(string.match(entry[1], '^%d+'))
    end
    if place and (not score or score > 0 or place < place_of(ranked[at])) then
      line[#line + 1] = entry[2][2]
      fresh[plain_at] = entry[2][2]
      plain_at = plain_at + 1
    elseif score then
      line[#line + 1] = id_of(ranked[at])
      others[#others + 1] = line[#line]
      at = at + 2
    else
      break
    end
  end
  return line, fresh, others
end

local function note_pick(claim, q, id, record)
  local size = #claim.ids + 1
  claim.ids[size], claim.from[size], claim.plain[size] = id, q, record
end

-- Leases a plain job to which nothing happened yet.
local function lease_plain(q, id, record, claim)
  local token = claim.id .. '.' .. #claim.ids
  local task_end = 15 + record:byte(15)
  local writes = writes_of(q, 'leased')
  local n = writes.n
  writes.heads[2 * n + 1], writes.n = id, n + 1
  writes.heads[2 * n + 2] = claim.head .. record:sub(2, 14) .. claim.started .. string.char(#token) .. token
    .. claim.worker_text .. record:sub(15, task_end)
  writes.active[2 * n + 1], writes.active[2 * n + 2] = claim.deadline, record:sub(2, 8) .. id
  note_run(q, 4, id, record:sub(16, task_end), 1, claim.worker)
  q.cursor, q.picked = struct.unpack('>I7', record, 2), q.picked + 1
  note_pick(claim, q, id, record)
end

-- Leases the next in line, or ends it when it is past its time: false.
local function take(q, id, claim)
  local head, record = q.heads[id], q.records[id]
  if head == nil and claim.fits and is_plain(record) then
    lease_plain(q, id, record, claim)
    return true
  elseif head == nil then
    head = unpack_fresh(record)
    q.heads[id], q.fresh[id] = head, true
  end
  if head[8] ~= 0 and head[8] <= q.now and head[12] == 0 then
    expire(q, id, head)
    return false
  end
  lease(q, id, head, claim.id .. '.' .. #claim.ids, claim.worker, claim.lease_ms)
  note_pick(claim, q, id, false)
  return true
end

-- Leases up to `room` jobs of `q`; ends those that are past their time on the way. Returns how many were leased.
local function pick(q, room, claim)
  local taken, expired = 0, 0
  while taken < room and expired < 1000 do
    local line, fresh, others = front(q, math.min(room - taken, 1000))
    if #line == 0 then
      break
    end
    load(q, others)
    load_records(q, fresh)
    q.picking = true
    for _, id in ipairs(line) do
      if take(q, id, claim) then
        taken = taken + 1
      else
        expired = expired + 1
      end
    end
    q.picking = false
    settle_down(q)
  end
  return taken
end

-- Promotes what is due in `q`, at most `budget`; returns how many.
local function promote_due(q, budget)
  local first = redis.call('ZRANGE', q.d, 0, 0, 'WITHSCORES')
  if budget <= 0 or not first[2] or tonumber(first[2]) > q.now then
    return 0
  end
  return promote_members(q, redis.call('ZRANGEBYSCORE', q.d, '-inf', q.now, 'LIMIT', 0, budget))
end

-- What is past its time, earliest first over several queues.

local function earlier(one, two)
  if one[1] ~= two[1] then
    return one[1] < two[1]
  end
  return one[2] < two[2] -- by sequence
end

-- Members of index `suffix` whose score has passed: at most `limit` in all, as one list per queue.
local function passed(queues, suffix, limit)
  local found = {}
  for index, q in ipairs(queues) do
    local part = redis.call('ZRANGEBYSCORE', q[suffix], '-inf', q.now, 'WITHSCORES', 'LIMIT', 0, limit)
    for at = 1, #part, 2 do
      found[#found + 1] = { tonumber(part[at + 1]), part[at], index }
    end
  end
  table.sort(found, earlier)
  local chosen = { count = math.min(#found, limit), order = {} }
  for index in ipairs(queues) do
    chosen[index] = {}
  end
  for at = 1, chosen.count do
    local member, index = found[at][2], found[at][3]
    table.insert(chosen[index], member)
    chosen.order[at] = { index, id_of(member), found[at][1] }
  end
  return chosen
end

-- Adding jobs: what an id that is already there answers, and how a new record is made.
--
-- A record in :j is the length of its head (2 bytes), the head, and the tail as the client sent it: the length
-- of its meta (4 bytes), meta (request id or 1 when it is the id, codec, options), payload. For plain jobs see
-- `15_plain.lua`; their tail is the same.

-- Reads which of `ids` are there: most are new, so their records are asked for before their heads.
local function load_known(q, ids)
  local found = read('HMGET', q.j, ids)
  local known = {}
  for index, id in ipairs(ids) do
    if found[index] then
      known[#known + 1] = id
    else
      q.heads[id] = false
    end
  end
  if #known > 0 then
    load(q, known)
  end
end

local function prepare_ids(q, ids)
  q.plain, q.kept = {}, {}
  load_known(q, ids)
  if redis.call('EXISTS', q.k) == 1 then
    local scores = read('ZMSCORE', q.k, ids)
    for at, id in ipairs(ids) do
      q.kept[id] = scores[at] and tonumber(scores[at])
    end
  end
end

-- Reads in one go what the ids of a batch have to say.
local function prepare_add(queues, jobs)
  local ids = {}
  for _, job in ipairs(jobs) do
    local list = ids[job[1]] or {}
    list[#list + 1] = job[2]
    ids[job[1]] = list
  end
  for index, list in pairs(ids) do
    prepare_ids(queues[index], list)
  end
end

local function request_id_of(q, id)
  load_records(q, { id })
  local stored = q.records[id]
  local _, meta = cmsgpack.unpack_one(stored, tail_at(stored) + 3)
  return meta[1] == 1 and id or meta[1]
end

-- What adding the id of an existing job answers: 0 the same request again, 1 duplicate, 2 cached; nil: it makes way.
local function outcome_of(q, id, head, request_id)
  if request_id ~= '' and request_id == request_id_of(q, id) then
    return 0
  end
  local kept = options_of(head)[8]
  if not ENDS[head[1]] or (kept >= 0 and head[5] + kept > q.now) then
    return 1
  end
  return head[1] == 7 and head[22] > q.now and 2 or nil
end

-- The answer of an existing job; nil when it makes way for the new one.
local function answer_known(q, id, head, tail)
  local _, meta = cmsgpack.unpack_one(tail, 4)
  local outcome = outcome_of(q, id, head, meta[1] == 1 and id or meta[1])
  if not outcome then
    return nil
  elseif outcome == 0 then
    return { 0, head[1], head[5], head[7] }
  end
  note(q, 14, id, head)
  settle_down(q)
  return { outcome, head[1], head[5], head[7], view(q, id) }
end

local function put_plain(q, seq, id)
  local size = #q.plain
  q.plain[size + 1], q.plain[size + 2] = text(seq), id
end

local function create(q, job, tail, after, seq)
  local id, task, priority, delay, run_at = job[2], job[3], job[4], job[5], job[6]
  local now = after > 0 and math.max(q.now, after + 1) or q.now
  local due = run_at >= 0 and run_at or now + delay
  local later = due > now
  local lifo = job[9] == 1
  local head = {
    later and 2 or 1, seq, lifo and -seq or 0, priority, now, later and due or 0, later and due or 0,
    job[7] >= 0 and now + job[7] or 0, task, job[8],
  }
  local packed = cmsgpack.pack(head)
  local stored = struct.pack('>I2', #packed) .. packed .. tail
  put(q.hset, q.j, id, stored)
  q.heads[id], q.fresh[id], q.records[id], q.members[id], q.ready = nil, nil, nil, nil, true
  q.added = q.added or {}
  q.added[id] = true
  if (job[10] or 0) > 0 then
    return flow.create(q, job, stored, seq, later)
  end
  if not later and priority == 0 and not lifo then
    put_plain(q, seq, id)
  else
    put(q.zadd, q.i, seq, id)
    if later then
      put(q.zadd, q.d, due, member_of(q, id, head))
    else
      put(q.zadd, q.w, 0 - priority, struct.pack('>I7', 4503599627370496 + (lifo and -seq or seq)) .. id)
    end
  end
  count(q, 'enqueued', task)
  if later then
    note(q, 2, id, head, due)
  else
    note_run(q, 1, id, task)
  end
  return (later or now ~= q.now) and { 0, head[1], now, head[7] } or 0
end

-- New jobs of priority 0 that wait, in order of their numbers.
local function write_plain(q)
  local plain = q.plain or {}
  for at = 1, #plain, 2 do
    redis.call('XADD', q.f, plain[at], 'i', plain[at + 1])
  end
  q.plain = {}
end

local function add_one(q, job, tail, seq)
  local id = job[2]
  if q.added and q.added[id] then -- twice in one batch: look at what was just written
    write_indexes(q)
    write_plain(q)
  end
  local head = head_of(q, id)
  local after = 0
  if head then
    local answer = answer_known(q, id, head, tail)
    if answer then
      return answer
    end
    after = head[5]
    remove(q, id, head)
    settle_down(q)
  elseif (q.kept[id] or 0) > q.now then
    note_run(q, 14, id, job[3])
    return { 1, 0, 0, 0 }
  end
  return create(q, job, tail, after, seq)
end

-- Adding flows: jobs first, then their edges. A job of a flow is {as in `70_add.lua`, 0 plain | 1 linked | 2 born
-- blocked, edges {queue, id, on failure, ...}, parent {queue, id, on failure} or 0, links {queue, id, sequence, ...}}.

-- Enters a new job that has a head of its own from the beginning.
function flow.create(q, job, stored, seq, later)
  local id, head = job[2], unpack_fresh(stored)
  flow.widen(head)
  head[24] = 1
  if job[10] == 2 then
    head[1] = 4
    note(q, 20, id, head)
  elseif later then
    note(q, 2, id, head, head[7])
  else
    note_run(q, 1, id, head[9])
  end
  q.heads[id] = head
  put(q.zadd, q.i, seq, id)
  enter(q, id, head)
  count(q, 'enqueued', head[9])
  return { 0, head[1], head[5], head[7] }
end

function flow.name_of_dependent(q, id, head)
  return text(head[2]) .. ':' .. name_of(q) .. ':' .. id
end

-- Whether a child may not know yet that it is waited for.
function flow.is_unlinked(q, id, child)
  return redis.call('SISMEMBER', q.root .. ':O:' .. id, child) == 1 and redis.call('ZSCORE', q.L, id) ~= false
end

-- Makes an edge, closed at once when the child has ended. Returns the edge (nil: it was there before), and whether
-- the child is yet to be linked.
function flow.make(queues, q, id, head, name, child_id, on)
  local child, key = name .. ':' .. child_id, q.root .. ':D:' .. id
  if redis.call('HEXISTS', key, child) == 1 then
    return nil, flow.is_unlinked(q, id, child)
  end
  flow.mark(q, id, head)
  local edge = { redis.call('HLEN', key), 0, on, 0, 'json', '', '', 0 }
  local there = flow.reach(queues, name)
  local fate = there and flow.link(there, child_id, flow.name_of_dependent(q, id, head))
  if type(fate) == 'table' then
    return flow.close_edge(q, id, child, edge, fate), false
  end
  if fate then
    edge[2] = there.heads[child_id][2]
  end
  flow.write_edge(q, id, child, edge, '')
  redis.call('SADD', q.root .. ':O:' .. id, child)
  return edge, not fate
end

function flow.wait_for_links(q, id)
  redis.call('ZADD', q.L, q.now, id)
end

-- Makes the edges of a job, unless the job was there before; returns the positions of those whose children are yet to be
-- linked.
function flow.make_edges(queues, q, job, fresh)
  local id, edges, left = job[2], job[11], {}
  local head = head_of(q, id)
  for at = 1, #edges, 3 do
    local _, unlinked
    if fresh then
      _, unlinked = flow.make(queues, q, id, head, edges[at], edges[at + 1], edges[at + 2])
    else
      unlinked = flow.is_unlinked(q, id, edges[at] .. ':' .. edges[at + 1])
    end
    if unlinked then
      left[#left + 1] = at
    end
  end
  if #left > 0 then
    flow.wait_for_links(q, id)
  end
  if fresh and head[1] == 4 then
    settle_down(q)
    flow.review(q, id, head)
  end
  return left
end

-- Makes a parent wait for a child. Returns the parent's sequence (0: it cannot wait any more) and 1 when the child is
-- yet to be linked.
function flow.adopt(queues, q, id, name, child_id, on)
  local head = head_of(q, id)
  if not head or ENDS[head[1]] then
    return { 0, 0 }
  end
  settle_down(q)
  local edge, unlinked = flow.make(queues, q, id, head, name, child_id, on)
  settle_down(q)
  if unlinked then
    flow.wait_for_links(q, id)
  end
  if edge then
    if edge[4] == 0 or flow.is_broken(edge) then
      flow.block(q, id, head)
    end
    if edge[4] ~= 0 then
      flow.after_edge(q, id, head, name .. ':' .. child_id, edge)
    end
  end
  return { head[2], unlinked and 1 or 0 }
end

-- Links a job to dependents of other slots: 1 for each that will be told, 0 when there is no such job, or its fate.
function flow.link_all(q, id, links)
  local answers = {}
  for at = 1, #links, 3 do
    local fate = flow.link(q, id, text(links[at + 2]) .. ':' .. links[at] .. ':' .. links[at + 1])
    answers[#answers + 1] = fate == true and 1 or fate or 0
  end
  return answers
end

-- What adding an id would answer: 0 the same request again, 1 duplicate, 2 cached, 3 it would be added, 4 only the id
-- is kept.
function flow.foresee(q, id, head, request_id)
  if head then
    return outcome_of(q, id, head, request_id) or 3
  end
  local kept = redis.call('ZSCORE', q.k, id)
  return kept and tonumber(kept) > q.now and 4 or 3
end

-- Adding plain jobs (`15_plain.lua`) of one queue. What is special about an id that is already there is left to
-- `70_add.lua`.

local function create_plain(q, id, text_of_job, seq, task)
  local list = list_of(q.hset, q.j)
  local size = #list
  list[size + 1], list[size + 2] = id, struct.pack('>BI7I6', 255, seq, q.now) .. text_of_job
  put_plain(q, seq, id)
  q.heads[id], q.added[id] = nil, true
  count(q, 'enqueued', task)
  note_run(q, 1, id, task)
end

-- Adds the jobs in `args` from position 2 on; puts position and answer of all that were not simply added into
-- `special`.
local function add_plain(q, args, first, special)
  q.added, q.ready = {}, true
  for at = 2, #args, 2 do
    local id, text_of_job, index = args[at], args[at + 1], at / 2
    local task_end = 1 + text_of_job:byte()
    local task = text_of_job:sub(2, task_end)
    local seq = first + index - 1
    if q.heads[id] or q.kept[id] or q.added[id] then
      local job = { 1, id, task, 0, 0, -1, -1, 0 }
      local answer = add_one(q, job, text_of_job:sub(task_end + 1), seq)
      if answer ~= 0 then
        special[#special + 1] = index
        special[#special + 1] = answer
      end
    else
      create_plain(q, id, text_of_job, seq, task)
    end
  end
  write_plain(q)
end

-- A worker's turn: ending attempts and claiming the next jobs.

-- 0: the newest lease, 1: it settled before, 2: another lease is newer, 3: no such job.
local function check_token(head, token)
  if not head then
    return 3
  elseif head[1] == 6 and head[16] == token then
    return 0
  end
  return (token ~= '' and head[17] == token) and 1 or 2
end

-- Reads the heads of items {queue, id, ...}, one read per queue.
local function load_items(queues, items)
  local ids = {}
  for _, item in ipairs(items) do
    local list = ids[item[1]] or {}
    list[#list + 1] = item[2]
    ids[item[1]] = list
  end
  for index, list in pairs(ids) do
    load(queues[index], list)
  end
end

-- Ends lie one behind the other in one flat list: six fields when completed, eleven else.
local function next_end(ends, at)
  return at + (ends[at + 3] == 1 and 6 or 11)
end

local function load_ends(queues, ends)
  local ids, at, size = {}, 1, #ends
  while at <= size do
    local list = list_of(ids, ends[at])
    list[#list + 1] = ends[at + 1]
    at = next_end(ends, at)
  end
  for index, list in pairs(ids) do
    load(queues[index], list, true)
  end
end

local function settle_one(q, id, ends, at)
  local lean, token = q.lean[id], ends[at + 2]
  if lean then
    local status, task = check_lean(lean, token)
    if status ~= 0 then
      return status
    elseif ends[at + 3] == 1 then
      complete_plain(q, id, lean, task, ends[at + 4], ends[at + 5])
      return 0
    end
    q.heads[id], q.lean[id] = unpack_lean(q, id, lean), nil
  end
  local head = q.heads[id]
  local status = check_token(head, token)
  if status == 0 then
    settle(q, id, head, { unpack(ends, at, next_end(ends, at) - 1) })
  end
  return status
end

local DIGITS = { [0] = '0', '1', '2', '3' }

local function settle_all(queues, ends)
  local statuses, at, size = {}, 1, #ends
  load_ends(queues, ends)
  while at <= size do
    statuses[#statuses + 1] = DIGITS[settle_one(queues[ends[at]], ends[at + 1], ends, at)]
    at = next_end(ends, at)
  end
  flow.tell(queues) -- so that what is unblocked here can be claimed here
  for _, q in ipairs(queues) do
    settle_down(q)
  end
  return table.concat(statuses)
end

local function rounds(queues, claim, lines, limit)
  local taken = {}
  for bound = 2, 3 do -- the share first, then the cap
    for index, line in ipairs(lines) do
      local room = math.min(line[bound] - (taken[index] or 0), limit - #claim.ids)
      if room > 0 and not claim.paused[index] then
        taken[index] = (taken[index] or 0) + pick(queues[line[1]], room, claim)
      end
    end
  end
  return taken
end

local function new_claim(request, now)
  local claim = { worker = request[1], lease_ms = request[2], id = request[3], paused = {} }
  claim.ids, claim.from, claim.plain = {}, {}, {} -- of every leased job: id, queue, record if it is plain
  claim.fits = #claim.worker < 256 and #claim.id < 250
  if claim.fits then
    claim.head, claim.started, claim.deadline = string.char(1), struct.pack('>I6', now), text(now + claim.lease_ms)
    claim.worker_text = string.char(#claim.worker) .. claim.worker
  end
  return claim
end

local function claim_jobs(queues, request)
  local lines = request[5]
  local claim = new_claim(request, queues[1].now)
  local budget = 1000
  for index, line in ipairs(lines) do
    local q = queues[line[1]]
    budget = budget - promote_due(q, budget)
    claim.paused[index] = redis.call('HEXISTS', q.root, 'paused') == 1
  end
  local taken = rounds(queues, claim, lines, request[4])
  local left = {}
  claim.next_due = -1
  for index, line in ipairs(lines) do
    local q = queues[line[1]]
    local more = anybody_waits(q)
    left[index] = (more and not claim.paused[index]) and 1 or 0
    if (taken[index] or 0) + line[4] > 0 and not more then
      note(q, 19, '')
    end
    local due = next_due_in(q)
    if due and (claim.next_due < 0 or due < claim.next_due) then
      claim.next_due = due
    end
  end
  claim.left = table.concat(left)
  return claim
end

-- Adds every leased job to `answer`: queue, id, record; if it is not plain, -queue, id, record, head, errors,
-- signals.
local function append_leased(answer, queues, claim)
  local others, position = {}, {}
  for index, q in ipairs(queues) do
    others[q], position[q] = {}, index
  end
  for at, id in ipairs(claim.ids) do
    if not claim.plain[at] then
      table.insert(others[claim.from[at]], id)
    end
  end
  for _, q in ipairs(queues) do
    load_records(q, others[q])
    q.found_errors = #others[q] > 0 and redis.call('EXISTS', q.e) == 1
  end
  local size = #answer
  for at, id in ipairs(claim.ids) do
    local q, record = claim.from[at], claim.plain[at]
    if record then
      answer[size + 1], answer[size + 2], answer[size + 3] = position[q], id, record
      size = size + 3
    else
      answer[size + 1], answer[size + 2], answer[size + 3] = -position[q], id, q.records[id]
      answer[size + 4] = q.packed[id]
      answer[size + 5] = q.found_errors and redis.call('HGET', q.e, id) or ''
      answer[size + 6] = flow.signals(q, id, q.heads[id])
      size = size + 6
    end
  end
end

-- Changes by people and programs. Statuses: 0 ok, 1 not found, 2 illegal, 3 lost.

local function cancel(q, id, reason)
  local head = q.heads[id]
  if not head then
    return 3
  elseif ENDS[head[1]] then
    return 2
  elseif head[1] == 6 then
    if head[21] == '' then
      head[21] = '=' .. reason
      q.dirty[id] = head
      note(q, 10, id, head, reason)
    end
    q.workers[head[18]] = true
    return 1
  end
  record(q, id, head, 4)
  finish(q, id, head, 9, reason)
  note(q, 9, id, head, reason)
  return 0
end

-- Puts a finished job back with a fresh budget; hurries a retrying one.
local function retry(q, id, head)
  if head[1] == 3 then
    promote(q, id, head)
    return 0
  elseif not ENDS[head[1]] then
    return 2
  end
  leave(q, id, head)
  put(q.hdel, q.r, id)
  q.inline[id] = nil
  local blocked = head[24] == 1 and flow.forgive(q, id)
  head[1] = blocked and 4 or 1
  head[11], head[13], head[15] = 0, 0, 0
  head[14] = head[14] + 1
  head[20], head[8], head[21] = 0, 0, ''
  head[22], head[23] = 0, ''
  head[6], head[3] = q.now, fresh_place(q, head)
  note(q, blocked and 20 or 1, id, head, 'retried')
  enter(q, id, head)
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
  note(q, 15, id, head, 'data')
end

local function change_priority(q, id, head, priority)
  leave(q, id, head)
  head[4], head[3] = priority, fresh_place(q, head)
  note(q, 15, id, head, 'priority', priority)
  enter(q, id, head)
  settle_down(q)
end

local function change_delay(q, id, head, delay)
  if head[1] == 4 then -- counts once nothing else holds it
    head[7], q.dirty[id] = delay > 0 and q.now + delay or 0, head
    note(q, 15, id, head, 'delay')
    return
  end
  if delay <= 0 then
    if head[1] ~= 1 then
      promote(q, id, head)
    end
    return
  end
  leave(q, id, head)
  if head[1] == 1 then
    head[1] = 2
  end
  head[7], head[6] = q.now + delay, q.now + delay
  note(q, 2, id, head, head[7])
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
  local refused = head[1] == 6 or ENDS[head[1]] or (delays and head[1] == 10)
  return refused and 2 or 0
end

-- Live output of running jobs. The same rules as `windlass.core.streams`.


function flow.output_of(q, id)
  local known = redis.call('HGET', q.q, id)
  return known and cmsgpack.unpack(known) or { 0, 1, 0, 0, 0 }
end

-- Lets the oldest chunks go over the bounds; the newest always stays.
function flow.trim_output(key, out, most_chunks, most_bytes)
  local oldest = out[2]
  while true do
    local extra = out[1] - out[2] + 1 - most_chunks
    if extra <= 0 and (out[3] <= most_bytes or out[2] >= out[1]) then
      break
    end
    local entry = redis.call('XRANGE', key, text(out[2]), '+', 'COUNT', 1)[1]
    out[3] = out[3] - #entry[2][4]
    out[2] = out[2] + 1
  end
  if out[2] > oldest then
    redis.call('XTRIM', key, 'MINID', text(out[2]))
  end
end

-- Appends chunks (args from position `from` on); false when that would leave a gap.
function flow.append(q, id, head, first, args, from, most_chunks, most_bytes)
  local out, key = flow.output_of(q, id), q.root .. ':p:' .. id
  if out[4] ~= head[12] then
    out[4], out[5] = head[12], out[1]
  end
  local number = out[5] + first
  if number > out[1] + 1 then
    return false
  end
  for at = from, #args do
    if number > out[1] then
      redis.call('XADD', key, text(number), 'd', out[4], 'c', args[at])
      out[1], out[3] = number, out[3] + #args[at]
    end
    number = number + 1
  end
  flow.trim_output(key, out, most_chunks, most_bytes)
  put(q.hset, q.q, id, cmsgpack.pack(out))
  flow.widen(head)
  head[27], q.dirty[id] = 1, head
  return true
end

-- Schedules of a queue. The same rules as `windlass.core.schedules`; slots are computed by whoever asks.
--
--   :schedules        hash    name -> length of its state (4 bytes), state, the record as it was put
--   :schedules:names  zset    names, all of score 0: listings are in order of names
--   :schedules:due    zset    name -> next slot, of those that have one and are not paused

-- A state is an array; -1 stands for "none".

local schedules = {}

-- State and record of a schedule; nil when it is not there.
function schedules.get(q, name)
  local stored = redis.call('HGET', q.root .. ':schedules', name)
  if not stored then
    return nil
  end
  local size = struct.unpack('>I4', stored)
  return cmsgpack.unpack(stored:sub(5, 4 + size)), stored:sub(5 + size)
end

function schedules.save(q, name, state, record)
  local key, packed = q.root .. ':schedules', cmsgpack.pack(state)
  redis.call('HSET', key, name, struct.pack('>I4', #packed) .. packed .. record)
  redis.call('ZADD', key .. ':names', 0, name)
  if state[1] == 1 or state[2] < 0 then
    redis.call('ZREM', key .. ':due', name)
  else
    redis.call('ZADD', key .. ':due', text(state[2]), name)
  end
end

function schedules.drop(q, name)
  local key = q.root .. ':schedules'
  redis.call('HDEL', key, name)
  redis.call('ZREM', key .. ':names', name)
  redis.call('ZREM', key .. ':due', name)
end

-- The queue itself is forgotten, and its schedules with it.
function schedules.forget(q)
  local key = q.root .. ':schedules'
  redis.call('UNLINK', key, key .. ':names', key .. ':due')
end

-- A next slot as far as limit and end allow it.
function schedules.bounded(state, next_ms)
  if state[8] >= 0 and state[5] >= state[8] then
    return -1
  elseif state[7] >= 0 and next_ms > state[7] then
    return -1
  end
  return next_ms
end

-- The state after `new` was put where `old` (or nil) was.
function schedules.merged(old, new)
  if old then
    new[1], new[3], new[4] = old[1], old[3], old[4]
    if old[11] == new[11] then
      new[5], new[6] = old[5], old[6]
      new[2] = old[2] >= 0 and old[2] or new[2]
    end
  end
  new[2] = schedules.bounded(new, new[2])
  return new
end

-- How many of the jobs of due slots may be added: within the limit, and without overlap if so asked.
function schedules.room(q, state, wanted)
  if state[9] == 1 and wanted > 0 then
    local last = state[4] ~= '' and head_of(q, state[4])
    wanted = (last and not ENDS[last[1]]) and 0 or 1
  end
  if state[8] >= 0 then
    wanted = math.min(wanted, math.max(state[8] - state[5], 0))
  end
  return wanted
end

-- Adds the first `amount` of `jobs` (as `add` takes them), whose tails begin at args[4]; 1 when the queue became known.
function schedules.add(q, jobs, args, amount)
  if amount == 0 then
    return 0
  end
  local chosen = { unpack(jobs, 1, amount) }
  prepare_add({ q }, chosen)
  local first, new = take_numbers({ q }, amount, true)
  for index, job in ipairs(chosen) do
    add_one(q, job, args[index + 3], first + index - 1)
  end
  write_plain(q)
  return #new
end

-- Listing: the stream of jobs that were added ready and the index of all others, merged by sequence.

local function plain_rows(q, newest, cursor)
  local entries
  if newest then
    local from = cursor >= 0 and ('(' .. text(cursor) .. '-0') or '+'
    entries = redis.call('XREVRANGE', q.f, from, '-', 'COUNT', 1000)
  else
    local from = cursor >= 0 and ('(' .. text(cursor) .. '-0') or '-'
    entries = redis.call('XRANGE', q.f, from, '+', 'COUNT', 1000)
  end
  local rows = {}
  for index, entry in ipairs(entries) do
    rows[index] = { tonumber(string.match(entry[1], '^%d+')), entry[2][2] }
  end
  return rows
end

local function other_rows(q, newest, cursor)
  local found
  if newest then
    local from = cursor >= 0 and ('(' .. text(cursor)) or '+inf'
    found = redis.call('ZREVRANGEBYSCORE', q.i, from, '-inf', 'WITHSCORES', 'LIMIT', 0, 1000)
  else
    local from = cursor >= 0 and ('(' .. text(cursor)) or '-inf'
    found = redis.call('ZRANGEBYSCORE', q.i, from, '+inf', 'WITHSCORES', 'LIMIT', 0, 1000)
  end
  local rows = {}
  for at = 1, #found, 2 do
    rows[(at + 1) / 2] = { tonumber(found[at + 1]), found[at] }
  end
  return rows
end

-- Up to 1,000 rows {sequence, id} beyond `cursor`, their heads read; and whether there are more.
local function rows_from(q, newest, cursor)
  local plain, others = plain_rows(q, newest, cursor), other_rows(q, newest, cursor)
  local rows, ids, p, o = {}, {}, 1, 1
  while #rows < 1000 and (plain[p] or others[o]) do
    local take_plain = plain[p] ~= nil
    if plain[p] and others[o] then
      take_plain = (plain[p][1] < others[o][1]) ~= newest
    end
    rows[#rows + 1] = take_plain and plain[p] or others[o]
    ids[#rows] = rows[#rows][2]
    if take_plain then
      p = p + 1
    else
      o = o + 1
    end
  end
  load(q, ids)
  return rows, #rows == 1000
end

local function has_tag(head, tag)
  local tags = options_of(head)[9]
  for _, one in ipairs(tags ~= 0 and tags or {}) do
    if one == tag then
      return true
    end
  end
  return false
end

local function last_error_is(q, id, class)
  local packed = redis.call('HGET', q.e, id)
  local errors = packed and cmsgpack.unpack(packed) or {}
  return #errors > 0 and errors[#errors][3] == class
end

-- A function that tells whether the job under an id fits the filters of a listing.
local function matcher(q, request, pattern)
  local states, tag = {}, request[5]
  for _, state in ipairs(request[4]) do
    states[state] = true
  end
  return function(id)
    local head = q.heads[id]
    return (#request[4] == 0 or states[head[1]])
      and (pattern == '' or string.find(head[9], pattern) ~= nil)
      and (tag == '' or has_tag(head, tag))
      and (request[6] == 0 or last_error_is(q, id, request[7]))
  end
end

-- When the oldest waiting job became ready; -1 when none waits. Exact while at most 1,000 jobs of other
-- priorities or returned ones wait; beyond that, of those that are first in line.
local function oldest_ready(q)
  local ids = {}
  local plain = unpicked(q, 100) -- in order of their times, but for a few
  for index, entry in ipairs(plain) do
    ids[index] = entry[2][2]
  end
  for _, member in ipairs(redis.call('ZRANGE', q.w, 0, 1000 - 1)) do
    ids[#ids + 1] = id_of(member)
  end
  load(q, ids)
  local oldest = -1
  for _, id in ipairs(ids) do
    local ready = q.heads[id][6]
    if oldest < 0 or ready < oldest then
      oldest = ready
    end
  end
  return oldest
end

-- Roll-ups of a queue's history: rows by minute and by hour, made and merged by clients.
--
--   (root)         `ro`: the last history row that was rolled up, `ro_ms`: when
--   :minutes       hash    start of the window (6 bytes) + task -> row
--   :minutes:keys  zset    the same keys, all of score 0: by time, then task
--   :hours, :hours:keys    the same

local metrics = {}

local METRICS_STEPS = { ':minutes', 7776000000, ':hours', 157680000000 }

function metrics.cursor(root)
  return tonumber(redis.call('HGET', root, 'ro') or 0)
end

-- How far the history may go: `copied` (-1: nobody copies it), or less while somebody rolls it up.
function metrics.held(q, copied)
  local marks = redis.call('HMGET', q.root, 'ro', 'ro_ms')
  if not marks[1] or tonumber(marks[2]) <= q.now - 604800000 then
    return copied
  end
  local rolled_up = tonumber(marks[1])
  return copied < 0 and rolled_up or math.min(copied, rolled_up)
end

-- Removes rows that are past their time or too many, the oldest, at most `limit`; returns how many.
function metrics.prune(q, limit)
  local removed = 0
  for at = 1, #METRICS_STEPS, 2 do
    local key = q.root .. METRICS_STEPS[at]
    local before = '(' .. struct.pack('>I6', math.max(q.now - METRICS_STEPS[at + 1], 0))
    local old = redis.call('ZRANGEBYLEX', key .. ':keys', '-', before, 'LIMIT', 0, limit - removed)
    local extra = math.min(redis.call('ZCARD', key .. ':keys') - 500000, limit - removed)
    if extra > #old then
      old = redis.call('ZRANGE', key .. ':keys', 0, extra - 1)
    end
    if #old > 0 then
      send('ZREM', key .. ':keys', old)
      send('HDEL', key, old)
    end
    removed = removed + #old
  end
  return removed
end

-- Removing what is past its keep, and removing on somebody's wish. Every step is bounded.

local function by_score(one, two)
  return one[1] < two[1] or (one[1] == two[1] and one[2] < two[2])
end

-- The first `limit` jobs that ended in `state`, from one end of the index or the other: {finished, member}.
local function ended(q, state, command, from, to, limit)
  local found = {}
  for _, key in ipairs(state == 7 and { q.P, q.C } or { q[ENDS[state]] }) do
    local part = redis.call(command, key, from, to, 'WITHSCORES', 'LIMIT', 0, limit)
    for at = 1, #part, 2 do
      found[#found + 1] = { tonumber(part[at + 1]), part[at] }
    end
  end
  if state == 7 then
    table.sort(found, by_score)
    if command == 'ZREVRANGEBYSCORE' then
      return { found[#found] }
    end
  end
  for at = #found, limit + 1, -1 do
    found[at] = nil
  end
  return found
end

local function count_ended(q, state)
  local count = redis.call('ZCARD', q[ENDS[state]])
  return state == 7 and count + redis.call('ZCARD', q.P) or count
end

-- Finished members beyond the count that the newest one's rule allows, once nobody needs their results.
local function surplus(q, state, limit)
  local newest = ended(q, state, 'ZREVRANGEBYSCORE', '+inf', '-inf', 1)[1]
  if not newest then
    return {}
  end
  local options = options_of(head_of(q, id_of(newest[2])))
  local kept = state == 8 and options[7] or options[5]
  local extra = kept >= 0 and count_ended(q, state) - kept or 0
  if extra <= 0 then
    return {}
  end
  local found, at = {}, 1
  local oldest = ended(q, state, 'ZRANGEBYSCORE', '-inf', '+inf', math.min(extra, 5 * 1000))
  while at <= #oldest and #found < limit do
    local ids = {}
    for index = at, math.min(at + 1000 - 1, #oldest) do
      ids[#ids + 1] = id_of(oldest[index][2])
    end
    load(q, ids)
    for offset, id in ipairs(ids) do
      local head = q.heads[id]
      if #found < limit and spare_until(options_of(head), head[20]) <= q.now then
        found[#found + 1] = oldest[at + offset - 1][2]
      end
    end
    at = at + 1000
  end
  return found
end

-- Ids of finished records that may go, oldest end first, at most `limit` + 1 of them.
local function prunable(q, limit)
  local seen, found = {}, {}
  local function gather(members)
    for _, member in ipairs(members) do
      if not seen[member] then
        seen[member] = true
        local id = id_of(member)
        found[#found + 1] = { head_of(q, id)[20], member, id }
      end
    end
  end
  gather(redis.call('ZRANGEBYSCORE', q.o, '-inf', q.now, 'LIMIT', 0, limit + 1))
  gather(redis.call('ZRANGEBYSCORE', q.P, '-inf', q.now - DEFAULTS[4], 'LIMIT', 0, limit + 1))
  for state in pairs(ENDS) do
    gather(surplus(q, state, limit + 1))
  end
  table.sort(found, function(one, two)
    if one[1] ~= two[1] then
      return one[1] < two[1]
    end
    return one[2] < two[2]
  end)
  return found
end

local function prune_ids(q)
  local gone = redis.call('ZRANGEBYSCORE', q.k, '-inf', q.now, 'LIMIT', 0, 1000)
  if #gone > 0 then
    redis.call('ZREM', q.k, unpack(gone))
  end
  return #gone
end

-- When the rows of an entry of the history log were written.
local function time_of(entry)
  if entry[2][1] == 'p' then
    return struct.unpack('>I6', entry[2][2])
  end
  local _, at_ms = cmsgpack.unpack_one(entry[2][2], 1)
  return at_ms
end

-- Moves the beginning of the history log past rows that are too many or too old and that every archiver has
-- copied (rows up to `copied`; -1: nobody copies), and past those beyond the hard bound, which are counted as lost.
-- Returns how many rows went, and 1 when there may be more.
local function prune_history(q, copied)
  local marks = redis.call('HMGET', q.root, 'hi', 'hi0')
  local last, first = tonumber(marks[1] or 0), tonumber(marks[2] or 1)
  local from = math.max(first, last - 100000 + 1)
  local read = 0
  for _, entry in ipairs(redis.call('XRANGE', q.h, '-', '+', 'COUNT', 100)) do
    local end_at = tonumber(string.match(entry[1], '^%d+'))
    local at_ms = time_of(entry)
    if at_ms > q.now - 86400000 then
      break
    end
    from, read = math.max(from, end_at + 1), read + 1
  end
  copied = copied < 0 and last or copied
  from = math.max(first, math.min(from, copied + 1), last - 1000000 + 1)
  if from > first then
    local lost = from - math.max(first, copied + 1)
    if lost > 0 then
      redis.call('HINCRBY', q.root, 'c:history_dropped:', lost)
    end
    redis.call('HSET', q.root, 'hi0', text(from))
    redis.call('XTRIM', q.h, 'MINID', text(from))
  end
  return from - first, read == 100 and 1 or 0
end

-- Streams stay behind as empty keys: their numbers live in the root, so the keys may go.
local function drop_empty_streams(q)
  for _, key in ipairs({ q.f, q.v, q.h }) do
    if redis.call('EXISTS', key) == 1 and redis.call('XLEN', key) == 0 then
      redis.call('DEL', key)
    end
  end
end

-- The oldest jobs in `state` that entered it up to `before`: {since, member by sequence, id}, at most `limit`.
local function oldest_finished(q, state, before, limit, found)
  for _, one in ipairs(ended(q, state, 'ZRANGEBYSCORE', '-inf', before, limit)) do
    found[#found + 1] = { one[1], one[2], id_of(one[2]) }
  end
end

local function gather_pending(q, ids, state, before, found)
  load(q, ids)
  for _, id in ipairs(ids) do
    local head = q.heads[id]
    if head and head[1] == state and head[5] <= before then
      found[#found + 1] = { head[5], member_of(q, id, head), id }
    end
  end
end

local PENDING = { [1] = 'w', [6] = 'a', [4] = 'b' }

local function oldest_pending(q, state, before, limit, found)
  local ids, wanted = {}, math.max(limit, 1000)
  if state == 1 then
    for _, entry in ipairs(unpicked(q, limit)) do
      ids[#ids + 1] = entry[2][2]
    end
  end
  local key = q[PENDING[state] or 'd']
  if state == 10 then -- those without a limit stand elsewhere
    for _, member in ipairs(redis.call('ZRANGE', q.u, 0, limit - 1)) do
      ids[#ids + 1] = id_of(member)
    end
  end
  for from = 0, 10 * 1000 - 1, wanted do
    local members = redis.call('ZRANGE', key, from, from + wanted - 1)
    for _, member in ipairs(members) do
      ids[#ids + 1] = id_of(member)
    end
    gather_pending(q, ids, state, before, found)
    if #found >= limit or #members < wanted then
      break
    end
    ids = {}
  end
end

-- What goes when nothing happened in a queue for a day.

-- The event log as a whole; the numbers of its events live in the root and never come again.
local function drop_quiet_events(q)
  local newest = redis.call('XREVRANGE', q.v, '+', '-', 'COUNT', 1)[1]
  if newest then
    local _, at_ms = cmsgpack.unpack_one(newest[2][2], 1)
    if at_ms <= q.now - 86400000 then
      redis.call('HSET', q.root, 'ev0', redis.call('HGET', q.root, 'ev') + 1)
      redis.call('UNLINK', q.v)
    end
  end
end

redis.register_function({ function_name = 'windlass_v1_add', flags = {  }, callback = function(keys, args)
begin(keys)
-- add: adds jobs, each to its queue, in one step; ids that are known answer for themselves.
-- KEYS: queue roots
-- ARGV: now or '', packed jobs {queue, id, task, priority, delay or 0, run at or -1, expires in or -1, options,
--       1 when lifo}, then one tail per job: length of meta, meta, payload
-- returns: now, queues that became known, then per job 0 (waiting, added now) or {outcome, state, enqueued, due,
--          view}; outcomes: 0 queued, 1 duplicate, 2 cached; state 0: only the id is kept
-- emits: enqueued, scheduled, deduplicated, removed
local now = now_from(args[1])
local jobs = cmsgpack.unpack(args[2])
local queues = open_all(keys, now)
prepare_add(queues, jobs)
local first, new = take_numbers(queues, #jobs, true)
local answer = { now, new }
for index, job in ipairs(jobs) do
  answer[index + 2] = add_one(queues[job[1]], job, args[index + 2], first + index - 1)
end
for _, q in ipairs(queues) do
  write_plain(q)
end
close_all(queues)
return answer

end })
redis.register_function({ function_name = 'windlass_v1_add_plain', flags = {  }, callback = function(keys, args)
begin(keys)
-- add_plain: adds plain jobs to one queue in one step; ids that are known answer for themselves.
-- KEYS: queue root
-- ARGV: now or '', then of every job its id and its text: length of task (1 byte), task, tail as `add` takes it
-- returns: now, 1 when the queue became known, then position and answer (as `add` gives it) of every job that was
--          not simply added and waits now
-- emits: enqueued, deduplicated, removed
local now, micros = now_from(args[1])
local q = open(keys[1], now)
local ids = {}
for at = 2, #args, 2 do
  ids[at / 2] = args[at]
end
prepare_ids(q, ids)
local first, new = take_numbers({ q }, #ids, true, micros)
local answer = { q.now, #new }
add_plain(q, args, first, answer)
close(q)
return answer

end })
redis.register_function({ function_name = 'windlass_v1_archive', flags = {  }, callback = function(keys, args)
begin(keys)
-- archive: an archiver tells how far it has copied the history of queues; that never goes back.
-- KEYS: namespace root
-- ARGV: now or '', name, packed {queue, position, ...}
-- returns: 0
local now = now_from(args[1])
local key, news = keys[1] .. ':archivers', cmsgpack.unpack(args[3])
local known = redis.call('HGET', key, args[2])
local archiver = known and cmsgpack.unpack(known) or {}
local places = {}
for at = 2, #archiver, 2 do
  places[archiver[at]] = at
end
archiver[1] = now
for at = 1, #news, 2 do
  local place = places[news[at]] or #archiver + 1
  archiver[place] = news[at]
  archiver[place + 1] = math.max(archiver[place + 1] or 0, news[at + 1])
  places[news[at]] = place
end
redis.call('HSET', key, args[2], cmsgpack.pack(archiver))
return 0

end })
redis.register_function({ function_name = 'windlass_v1_archivers', flags = { 'no-writes' }, callback = function(keys, args)
begin(keys)
-- archivers: who copies history, and how far they are.
-- KEYS: namespace root
-- ARGV: now or '', how long one may be silent
-- returns: name and packed {last seen, queue, position, ...} of every archiver that was seen since
-- flags: no-writes
local now = now_from(args[1])
local found, answer = redis.call('HGETALL', keys[1] .. ':archivers'), {}
for at = 1, #found, 2 do
  if cmsgpack.unpack(found[at + 1])[1] > now - args[2] then
    answer[#answer + 1] = found[at]
    answer[#answer + 1] = found[at + 1]
  end
end
return answer

end })
redis.register_function({ function_name = 'windlass_v1_beat', flags = {  }, callback = function(keys, args)
begin(keys)
-- beat: a worker's heartbeat, or its farewell.
-- KEYS: namespace root
-- ARGV: now or '', worker id, 1 when it goes, its description
-- returns: what the worker was told last, or nil
local now = now_from(args[1])
local id, gone = args[2], args[3] == '1'
if gone then
  redis.call('HDEL', keys[1] .. ':workers', id)
  redis.call('ZREM', keys[1] .. ':beats', id)
  redis.call('HDEL', keys[1] .. ':commands', id)
  return false
end
local known = redis.call('HGET', keys[1] .. ':workers', id)
local started = known and string.match(known, '^(%d+) ') or text(now)
redis.call('HSET', keys[1] .. ':workers', id, started .. ' ' .. args[4])
redis.call('ZADD', keys[1] .. ':beats', now, id)
return redis.call('HGET', keys[1] .. ':commands', id)

end })
redis.register_function({ function_name = 'windlass_v1_cancel', flags = {  }, callback = function(keys, args)
begin(keys)
-- cancel: ends pending jobs now, asks the workers of active ones.
-- KEYS: queue roots
-- ARGV: now or '', packed {reason, {{queue, id}, ...}}
-- returns: one character per job (0 cancelled, 1 cancelling, 2 finished, 3 not found), queues with
--          something to relay, then the workers to tell
-- emits: cancelled, cancelling
local request = cmsgpack.unpack(args[2])
local queues = open_all(keys, now_from(args[1]))
local statuses = {}
load_items(queues, request[2])
for index, item in ipairs(request[2]) do
  statuses[index] = cancel(queues[item[1]], item[2], request[1])
end
close_all(queues)
local answer = { table.concat(statuses), flow.left(queues) }
for _, q in ipairs(queues) do
  for worker in pairs(q.workers) do
    answer[#answer + 1] = worker
  end
end
return answer

end })
redis.register_function({ function_name = 'windlass_v1_change', flags = {  }, callback = function(keys, args)
begin(keys)
-- change: priority, due time or payload of a pending job; with its token, the payload of an active one.
-- KEYS: queue root
-- ARGV: now or '', packed {id, token or '', has priority, priority, delay or -1, has payload}, payload
-- returns: status (0 ok, 1 not found, 2 illegal, 3 lost), state
-- emits: changed, scheduled, promoted
local q = open(keys[1], now_from(args[1]))
local id, token, ranked, priority, delay, filled = unpack(cmsgpack.unpack(args[2]))
local head = head_of(q, id)
if not head then
  return { 1, 0 }
end
local status = may_change(head, token, ranked == 1 or delay >= 0, delay >= 0)
if status == 0 then
  if filled == 1 then
    change_payload(q, id, head, args[3])
  end
  if ranked == 1 and priority ~= head[4] then
    change_priority(q, id, head, priority)
  end
  if delay >= 0 then
    change_delay(q, id, head, delay)
  end
  q.ready = q.ready or head[1] < 6
  close(q)
end
return { status, head[1] }

end })
redis.register_function({ function_name = 'windlass_v1_command', flags = {  }, callback = function(keys, args)
begin(keys)
-- command: tells a worker something; it hears of it with its next beat, and a hint says that there is something.
-- KEYS: namespace root
-- ARGV: worker id, command
-- returns: 1, or 0 when no such worker is known
if redis.call('HEXISTS', keys[1] .. ':workers', args[1]) == 0 then
  return 0
end
redis.call('HSET', keys[1] .. ':commands', args[1], args[2])
redis.call('SPUBLISH', keys[1] .. ':worker:' .. args[1], '')
return 1

end })
redis.register_function({ function_name = 'windlass_v1_counters', flags = { 'no-writes' }, callback = function(keys, args)
begin(keys)
-- counters: lifetime counters of queues.
-- KEYS: queue roots
-- ARGV: none
-- returns: per queue the fields of its root that count: 'c:<outcome>:<task>', total, ...
-- flags: no-writes
local answer = {}
for index, root in ipairs(keys) do
  local rows, fields = {}, redis.call('HGETALL', root)
  for at = 1, #fields, 2 do
    if string.sub(fields[at], 1, 2) == 'c:' then
      rows[#rows + 1] = fields[at]
      rows[#rows + 1] = fields[at + 1]
    end
  end
  answer[index] = rows
end
return answer

end })
redis.register_function({ function_name = 'windlass_v1_elect', flags = {  }, callback = function(keys, args)
begin(keys)
-- elect: takes, keeps or gives up the leadership of a role.
-- KEYS: namespace root
-- ARGV: now or '', role, holder, ttl (-1: resign)
-- returns: 1 when that was granted
local now = now_from(args[1])
local key, role, holder, ttl = keys[1] .. ':leaders', args[2], args[3], tonumber(args[4])
local known = redis.call('HGET', key, role)
local leader = known and cmsgpack.unpack(known) or { '', 0 }
if ttl < 0 then
  if leader[1] ~= holder or leader[2] <= now then
    return 0
  end
  redis.call('HDEL', key, role)
  return 1
elseif leader[1] ~= holder and leader[2] > now then
  return 0
end
redis.call('HSET', key, role, cmsgpack.pack({ holder, now + ttl }))
return 1

end })
redis.register_function({ function_name = 'windlass_v1_extend', flags = {  }, callback = function(keys, args)
begin(keys)
-- extend: moves lease deadlines; only the newest token may.
-- KEYS: queue roots
-- ARGV: now or '', packed leases {queue, id, token, lease}
-- returns: one character per lease (0 ok, 1 somebody asked to cancel, 2 lost)
local now = now_from(args[1])
local items = cmsgpack.unpack(args[2])
local queues = open_all(keys, now)
local statuses = {}
load_items(queues, items)
for index, item in ipairs(items) do
  local q, id = queues[item[1]], item[2]
  local head = q.heads[id]
  if check_token(head, item[3]) == 0 then
    put(q.zadd, q.a, now + item[4], member_of(q, id, head))
    statuses[index] = head[21] == '' and 0 or 1
  else
    statuses[index] = 2
  end
end
close_all(queues)
return table.concat(statuses)

end })
redis.register_function({ function_name = 'windlass_v1_flow_add', flags = {  }, callback = function(keys, args)
begin(keys)
-- flow_add: adds jobs with their edges, in one step; what cannot be reached from here is left to the caller.
-- KEYS: queue roots
-- ARGV: now or '', packed {jobs, see `73_add_flow.lua`, parents of known jobs {queue, id, child's queue, child, on failure}},
--       then one tail per job
-- returns: now, queues that became known, queues with something to relay, per job {answer as `add` gives it but never 0,
--          sequence, positions of edges yet to be linked, parent {sequence or 0, 1: yet to be linked}, link answers},
--          per parent {sequence or 0, 1: yet to be linked}
-- emits: enqueued, scheduled, blocked, promoted, failed, deduplicated, removed
local now = now_from(args[1])
local jobs, parents = unpack(cmsgpack.unpack(args[2]))
local queues = open_all(keys, now)
local answers, adopted, unknown, new, first = {}, {}, {}, {}, 0
prepare_add(queues, jobs)
if #jobs > 0 then
  first, unknown = take_numbers(queues, #jobs)
end
for index, job in ipairs(jobs) do
  local answer = add_one(queues[job[1]], job, args[index + 2], first + index - 1)
  answers[index] = { answer == 0 and { 0, 1, now, 0 } or answer, 0, {}, { 0, 0 }, {} }
end
for _, index in ipairs(unknown) do
  if queues[index].added then
    redis.call('HSET', queues[index].root, 'known', 1)
    new[#new + 1] = index
  end
end
for index = 1, #keys do
  write_plain(queues[index])
  settle_down(queues[index])
end
for index, job in ipairs(jobs) do
  local q, answer, head = queues[job[1]], answers[index], head_of(queues[job[1]], job[2])
  if head then
    answer[2] = head[2]
    local fresh = head[2] == first + index - 1
    if answer[1][1] == 0 then
      answer[3] = flow.make_edges(queues, q, job, fresh)
    end
    local parent = job[12] ~= 0 and flow.reach(queues, job[12][1])
    if parent then
      answer[4] = flow.adopt(queues, parent, job[12][2], name_of(q), job[2], job[12][3])
    end
    answer[5] = flow.link_all(q, job[2], job[13])
  end
end
for index, item in ipairs(parents) do
  adopted[index] = flow.adopt(queues, queues[item[1]], item[2], item[3], item[4], item[5])
end
flow.tell(queues)
for index, job in ipairs(jobs) do
  local head = head_of(queues[job[1]], job[2])
  local answer = answers[index][1]
  if head and not answer[5] then
    answer[2], answer[4] = head[1], head[7]
  end
end
close_all(queues)
return { now, new, flow.left(queues), answers, adopted }

end })
redis.register_function({ function_name = 'windlass_v1_flow_edge', flags = { 'no-writes' }, callback = function(keys, args)
begin(keys)
-- flow_edge: single edges.
-- KEYS: queue roots
-- ARGV: packed {1 with values, {{queue, dependent, its sequence, child <queue>:<id>}, ...}}
-- returns: per edge its bytes (see `55_flows.lua`), or nil
-- flags: no-writes
local valued, items = unpack(cmsgpack.unpack(args[1]))
local queues = open_all(keys, 0)
local answer = {}
load_items(queues, items)
for index, item in ipairs(items) do
  local q, id = queues[item[1]], item[2]
  local stored = false
  if q.heads[id] and q.heads[id][2] == item[3] then
    stored = redis.call('HGET', q.root .. ':D:' .. id, item[4])
    if stored and valued == 0 then
      stored = stored:sub(1, 2 + struct.unpack('>I2', stored))
    end
  end
  answer[index] = stored
end
return answer

end })
redis.register_function({ function_name = 'windlass_v1_flow_edges', flags = { 'no-writes' }, callback = function(keys, args)
begin(keys)
-- flow_edges: edges of dependents, some 1,000 of each at a time, in no order.
-- KEYS: queue roots
-- ARGV: packed {1 with values, {{queue, id, cursor (0: from the start)}, ...}}
-- returns: per job {cursor to go on from (0: that was all), child <queue>:<id>, edge (see `55_flows.lua`), ...}
-- flags: no-writes
local valued, items = unpack(cmsgpack.unpack(args[1]))
local answer = {}
for index, item in ipairs(items) do
  local page = redis.call('HSCAN', keys[item[1]] .. ':D:' .. item[2], item[3], 'COUNT', 1000)
  local rows = page[2]
  for at = 2, #rows, 2 do
    if valued == 0 then
      rows[at] = rows[at]:sub(1, 2 + struct.unpack('>I2', rows[at]))
    end
  end
  table.insert(rows, 1, page[1])
  answer[index] = rows
end
return answer

end })
redis.register_function({ function_name = 'windlass_v1_flow_link', flags = {  }, callback = function(keys, args)
begin(keys)
-- flow_link: lets dependents of other slots be told when jobs end; asks whether they have ended already.
-- KEYS: queue roots
-- ARGV: now or '', packed {{queue, id, {queue, id and sequence of a dependent}}, ...}
-- returns: per job 1 (it will tell), 0 (no such job), or its fate, see `55_flows.lua`
local items = cmsgpack.unpack(args[2])
local queues = open_all(keys, now_from(args[1]))
local answer = {}
load_items(queues, items)
for index, item in ipairs(items) do
  answer[index] = flow.link_all(queues[item[1]], item[2], item[3])[1]
end
close_all(queues)
return answer

end })
redis.register_function({ function_name = 'windlass_v1_flow_linked', flags = {  }, callback = function(keys, args)
begin(keys)
-- flow_linked: all children of dependents are linked.
-- KEYS: queue roots
-- ARGV: packed {{queue, id}, ...}
-- returns: 0
for _, item in ipairs(cmsgpack.unpack(args[1])) do
  redis.call('ZREM', keys[item[1]] .. ':L', item[2])
end
return 0

end })
redis.register_function({ function_name = 'windlass_v1_flow_links', flags = { 'no-writes' }, callback = function(keys, args)
begin(keys)
-- flow_links: whom a job tells when it ends, in the order of their making.
-- KEYS: queue root
-- ARGV: packed {id, number of the last link seen or 0, limit}
-- returns: sequence of the job (0: no such job), then number and dependent <sequence>:<queue>:<id> of every link
-- flags: no-writes
local id, after, limit = unpack(cmsgpack.unpack(args[1]))
local q = open(keys[1], 0)
local head = head_of(q, id)
local answer = { head and head[2] or 0 }
if head then
  local found = redis.call('ZRANGEBYSCORE', flow.links(q, head[2]), '(' .. text(after), '+inf', 'WITHSCORES', 'LIMIT', 0, limit)
  for at = 1, #found, 2 do
    if found[at] ~= '' then
      answer[#answer + 1] = tonumber(found[at + 1])
      answer[#answer + 1] = found[at]
    end
  end
end
return answer

end })
redis.register_function({ function_name = 'windlass_v1_flow_look', flags = { 'no-writes' }, callback = function(keys, args)
begin(keys)
-- flow_look: what is known of jobs that a flow names.
-- KEYS: queue roots
-- ARGV: now or '', packed {{queue, id, request id, child <queue>:<id> or ''}, ...}
-- returns: per job {state or 0, what adding it would answer (see `73_add_flow.lua`), number of its edges, 1 when one of
--          them is to that child}
-- flags: no-writes
local items = cmsgpack.unpack(args[2])
local queues = open_all(keys, now_from(args[1]))
local answer = {}
load_items(queues, items)
for index, item in ipairs(items) do
  local q, id = queues[item[1]], item[2]
  local head, edges = q.heads[id], q.root .. ':D:' .. id
  answer[index] = {
    head and head[1] or 0, flow.foresee(q, id, head, item[3]), redis.call('HLEN', edges),
    item[4] ~= '' and redis.call('HEXISTS', edges, item[4]) or 0,
  }
end
return answer

end })
redis.register_function({ function_name = 'windlass_v1_flow_open', flags = { 'no-writes' }, callback = function(keys, args)
begin(keys)
-- flow_open: what jobs wait for.
-- KEYS: queue roots
-- ARGV: packed {{queue, id}, ...}
-- returns: per job {sequence or 0, child <queue>:<id>, ...}
-- flags: no-writes
local items = cmsgpack.unpack(args[1])
local queues = open_all(keys, 0)
local answer = {}
load_items(queues, items)
for index, item in ipairs(items) do
  local q, id = queues[item[1]], item[2]
  answer[index] = redis.call('SMEMBERS', q.root .. ':O:' .. id)
  table.insert(answer[index], 1, q.heads[id] and q.heads[id][2] or 0)
end
return answer

end })
redis.register_function({ function_name = 'windlass_v1_flow_outbox', flags = { 'no-writes' }, callback = function(keys, args)
begin(keys)
-- flow_outbox: ends that are yet to be told, oldest first in each queue, and dependents of which some child was not linked
--              in time: whoever added them has died, or is very slow.
-- KEYS: queue roots
-- ARGV: now or '', packed {most dependents to tell, how long linking may take}
-- returns: {per end {queue, number, id, packed fate, value, how far its links are told when these were, 1 when that is all,
--          dependents}}, {queue, dependent, ...}
-- flags: no-writes
local limit, patience = unpack(cmsgpack.unpack(args[2]))
local queues = open_all(keys, now_from(args[1]))
local ends, late = {}, {}
for index, q in ipairs(queues) do
  for _, entry in ipairs(limit > 0 and redis.call('XRANGE', q.x, '-', '+', 'COUNT', math.min(limit, 1000)) or {}) do
    local number, fields = string.match(entry[1], '^%d+'), entry[2]
    if limit > 0 then
      local key = flow.links(q, cmsgpack.unpack(fields[4])[1])
      local from = '(' .. (redis.call('ZSCORE', key, '') or 0)
      local found = redis.call('ZRANGEBYSCORE', key, from, '(' .. number, 'WITHSCORES', 'LIMIT', 0, limit + 1)
      local dependents, last = {}, number
      for at = 1, math.min(#found, 2 * limit), 2 do
        dependents[#dependents + 1], last = found[at], found[at + 1]
      end
      local done = #found <= 2 * limit
      limit = limit - math.max(#dependents, 1)
      ends[#ends + 1] =
        { index, tonumber(number), fields[2], fields[4], fields[6], done and number or last, done and 1 or 0, dependents }
    end
  end
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', q.L, '-inf', q.now - patience, 'LIMIT', 0, 100)) do
    late[#late + 1] = index
    late[#late + 1] = id
  end
end
return { ends, late }

end })
redis.register_function({ function_name = 'windlass_v1_flow_tell', flags = {  }, callback = function(keys, args)
begin(keys)
-- flow_tell: tells dependents how their children ended; an edge is settled once, however often it is told.
-- KEYS: queue roots
-- ARGV: now or '', packed {limit, {{child <queue>:<id>, sequence, completed, codec, reason, error, has value}, ...},
--       {{queue, dependent, its sequence, position of the end}, ...}}, then the value of every end
-- returns: how many edges were settled, also by what followed from it; queues with something to relay
-- emits: promoted, scheduled, failed
local limit, ends, items = unpack(cmsgpack.unpack(args[2]))
local queues = open_all(keys, now_from(args[1]))
local count = 0
load_items(queues, items)
for _, item in ipairs(items) do
  local told = ends[item[4]]
  local fate = { told[2], told[3], told[4], told[5], told[6], told[7], args[2 + item[4]] }
  count = count + flow.settle_edge(queues[item[1]], item[2], item[3], told[1], fate)
end
count = count + flow.tell(queues, limit - count)
close_all(queues)
return { count, flow.left(queues) }

end })
redis.register_function({ function_name = 'windlass_v1_flow_told', flags = {  }, callback = function(keys, args)
begin(keys)
-- flow_told: everybody up to a link was told of an end; it leaves the outbox when those were all.
-- KEYS: queue roots
-- ARGV: packed {{queue, number of the end, id, sequence, how far, 1 when that was all}, ...}
-- returns: 0
for _, item in ipairs(cmsgpack.unpack(args[1])) do
  local q = open(keys[item[1]], 0)
  local number, id, seq, done = item[2], item[3], item[4], item[6] == 1
  local links = flow.links(q, seq)
  if redis.call('EXISTS', links) == 1 then
    redis.call('ZADD', links, 'GT', item[5], '')
  end
  if done and redis.call('XDEL', q.x, text(number)) == 1 then
    if redis.call('HINCRBY', q.y, text(seq), -1) <= 0 then
      redis.call('HDEL', q.y, text(seq))
      local head = head_of(q, id)
      if not head or head[2] ~= seq then -- the record went before
        redis.call('UNLINK', links)
      end
    end
    if redis.call('XLEN', q.x) == 0 then
      redis.call('DEL', q.x)
    end
  end
end
return 0

end })
redis.register_function({ function_name = 'windlass_v1_get', flags = { 'no-writes' }, callback = function(keys, args)
begin(keys)
-- get: records by id.
-- KEYS: queue roots
-- ARGV: now or '', packed {{queue, id}, ...}
-- returns: per job a view {id, record, head, result, progress, errors, lease deadline, signals}, or nil
-- flags: no-writes
local items = cmsgpack.unpack(args[2])
local queues = open_all(keys, now_from(args[1]))
local answer = {}
load_items(queues, items)
for index, item in ipairs(items) do
  local q = queues[item[1]]
  answer[index] = q.heads[item[2]] and view(q, item[2]) or false
end
return answer

end })
redis.register_function({ function_name = 'windlass_v1_info', flags = { 'no-writes' }, callback = function(keys, args)
begin(keys)
-- info: what a queue holds.
-- KEYS: queue roots
-- ARGV: now or '', packed {1: also look for the oldest waiting job}
-- returns: per queue {known, paused, waiting, scheduled and retrying, active, completed, failed, cancelled, retrying,
--          ready time of the oldest waiting job or -1, blocked, suspended without and with a limit}
-- flags: no-writes
local queues = open_all(keys, now_from(args[1]))
local deep = cmsgpack.unpack(args[2])[1] == 1
local answer = {}
for index, q in ipairs(queues) do
  local flags = redis.call('HMGET', q.root, 'known', 'paused')
  local due = redis.call('ZCARD', q.d)
  answer[index] = {
    flags[1] and 1 or 0, flags[2] and 1 or 0, waiting(q), due, redis.call('ZCARD', q.a),
    redis.call('ZCARD', q.P) + redis.call('ZCARD', q.C), redis.call('ZCARD', q.F), redis.call('ZCARD', q.X),
    redis.call('SCARD', q.t), deep and oldest_ready(q) or -1,
    redis.call('ZCARD', q.b), redis.call('ZCARD', q.u), redis.call('SCARD', q.T),
  }
end
return answer

end })
redis.register_function({ function_name = 'windlass_v1_list_jobs', flags = { 'no-writes' }, callback = function(keys, args)
begin(keys)
-- list_jobs: records of a queue in order of their adding; looks at no more than 1,000 of them.
-- KEYS: queue root
-- ARGV: now or '', packed {newest first, cursor or -1, limit, {state, ...}, tag or '',
--       has error class, error class}, Lua pattern for the task or ''
-- returns: cursor to go on from (-1: that was all), then one view per job
-- flags: no-writes
local q = open(keys[1], now_from(args[1]))
local request = cmsgpack.unpack(args[2])
local rows, more = rows_from(q, request[1] == 1, request[2])
local answer, matched, last = { -1 }, 0, -1
local matches = matcher(q, request, args[3])
for _, row in ipairs(rows) do
  if matches(row[2]) then
    if matched == request[3] then
      answer[1] = last
      return answer
    end
    matched, last = matched + 1, row[1]
    answer[matched + 1] = view(q, row[2])
  end
end
if more then
  answer[1] = rows[#rows][1]
end
return answer

end })
redis.register_function({ function_name = 'windlass_v1_log_rows', flags = { 'no-writes' }, callback = function(keys, args)
begin(keys)
-- log_rows: rows of the event log or the history log after a position.
-- KEYS: queue root
-- ARGV: packed {'v' (events) or 'h' (history), after, limit}
-- returns: number of the last row, number of the oldest, then number of its last row and the fields of every entry
--          that may hold what was asked for, see `30_notes.lua`
-- flags: no-writes
local log, after, limit = unpack(cmsgpack.unpack(args[1]))
local names = log == 'v' and { 'ev', 'ev0' } or { 'hi', 'hi0' }
local marks = redis.call('HMGET', keys[1], unpack(names))
local last, oldest = tonumber(marks[1] or 0), tonumber(marks[2] or 1)
if log == 'v' then
  oldest = math.max(oldest, last - 10000 + 1)
end
local answer = { last, oldest }
local from = math.max(after + 1, oldest)
local wanted = math.min(from + limit - 1, last)
while limit > 0 and from <= wanted do
  local entries = redis.call('XRANGE', keys[1] .. ':' .. log, text(from), '+', 'COUNT', 32)
  for _, entry in ipairs(entries) do
    local number = tonumber(string.match(entry[1], '^%d+'))
    if from <= wanted then
      answer[#answer + 1] = number
      answer[#answer + 1] = entry[2]
      from = number + 1
    end
  end
  if #entries == 0 then
    break
  end
end
return answer

end })
redis.register_function({ function_name = 'windlass_v1_logs', flags = { 'no-writes' }, callback = function(keys, args)
begin(keys)
-- logs: log lines of a job.
-- KEYS: queue root
-- ARGV: packed {id, start, limit}
-- returns: how many are kept, then the lines
-- flags: no-writes
local id, start, limit = unpack(cmsgpack.unpack(args[1]))
local key = keys[1] .. ':l:' .. id
local answer = { redis.call('LLEN', key) }
if limit > 0 then
  for index, line in ipairs(redis.call('LRANGE', key, start, start + limit - 1)) do
    answer[index + 1] = line
  end
end
return answer

end })
redis.register_function({ function_name = 'windlass_v1_mark_add', flags = {  }, callback = function(keys, args)
begin(keys)
-- mark_add: puts a mark at the present time; one that is there stays as it is.
-- KEYS: namespace root
-- ARGV: now or '', id, label, most marks that are kept
-- returns: its time, its label
local key, now = keys[1] .. ':marks', now_from(args[1])
local known = redis.call('HGET', key, args[2])
if known then
  return { tonumber(redis.call('ZSCORE', key .. ':times', args[2])), known }
end
redis.call('HSET', key, args[2], args[3])
redis.call('ZADD', key .. ':times', text(now), args[2])
local extra = redis.call('ZCARD', key .. ':times') - args[4]
if extra > 0 then
  local old = redis.call('ZRANGE', key .. ':times', 0, extra - 1)
  redis.call('ZREM', key .. ':times', unpack(old))
  redis.call('HDEL', key, unpack(old))
end
return { now, args[3] }

end })
redis.register_function({ function_name = 'windlass_v1_marks', flags = { 'no-writes' }, callback = function(keys, args)
begin(keys)
-- marks: marks from an instant on, oldest first.
-- KEYS: namespace root
-- ARGV: instant
-- returns: id, time and label of each
-- flags: no-writes
local key, answer = keys[1] .. ':marks', {}
local found = redis.call('ZRANGEBYSCORE', key .. ':times', args[1], '+inf', 'WITHSCORES')
for at = 1, #found, 2 do
  answer[#answer + 1] = found[at]
  answer[#answer + 1] = found[at + 1]
  answer[#answer + 1] = redis.call('HGET', key, found[at])
end
return answer

end })
redis.register_function({ function_name = 'windlass_v1_metrics_add', flags = {  }, callback = function(keys, args)
begin(keys)
-- metrics_add: writes rows and moves the cursor, if it is still where they begin.
-- KEYS: queue root
-- ARGV: now or '', cursor, new cursor, number of minutes, then key and row of minutes and of hours
-- returns: 1, or 0 when the cursor is elsewhere
if metrics.cursor(keys[1]) ~= tonumber(args[2]) then
  return 0
end
local last = 4 + 2 * tonumber(args[4])
local parts = { { 5, last }, { last + 1, #args } }
redis.call('HSET', keys[1], 'ro', args[3], 'ro_ms', text((now_from(args[1]))))
for step, part in ipairs(parts) do
  local key, rows, index = keys[1] .. METRICS_STEPS[2 * step - 1], {}, {}
  for at = part[1], part[2], 2 do
    rows[#rows + 1], rows[#rows + 2] = args[at], args[at + 1]
    index[#index + 1], index[#index + 2] = 0, args[at]
  end
  send('HSET', key, rows)
  send('ZADD', key .. ':keys', index)
end
return 1

end })
redis.register_function({ function_name = 'windlass_v1_metrics_get', flags = { 'no-writes' }, callback = function(keys, args)
begin(keys)
-- metrics_get: rows that are to be merged with new ones.
-- KEYS: queue root
-- ARGV: number of minutes, then keys (see `94_metrics.lua`) of minutes and of hours
-- returns: the last history row that was rolled up, then the row under each key, or nil
-- flags: no-writes
local minutes, by_step = tonumber(args[1]), { {}, {} }
for at = 2, #args do
  table.insert(by_step[at - 1 <= minutes and 1 or 2], args[at])
end
local answer = { metrics.cursor(keys[1]) }
for step, wanted in ipairs(by_step) do
  for _, row in ipairs(read('HMGET', keys[1] .. METRICS_STEPS[2 * step - 1], wanted)) do
    answer[#answer + 1] = row
  end
end
return answer

end })
redis.register_function({ function_name = 'windlass_v1_metrics_progress', flags = { 'no-writes' }, callback = function(keys, args)
begin(keys)
-- metrics_progress: how far the history of queues is rolled up.
-- KEYS: queue roots
-- ARGV: none
-- returns: per queue the last row that was rolled up, number of the last row, number of the oldest
-- flags: no-writes
local answer = {}
for _, root in ipairs(keys) do
  local marks = redis.call('HMGET', root, 'ro', 'hi', 'hi0')
  answer[#answer + 1] = tonumber(marks[1] or 0)
  answer[#answer + 1] = tonumber(marks[2] or 0)
  answer[#answer + 1] = tonumber(marks[3] or 1)
end
return answer

end })
redis.register_function({ function_name = 'windlass_v1_metrics_read', flags = { 'no-writes' }, callback = function(keys, args)
begin(keys)
-- metrics_read: rows by time and task; looks at no more than 5,000 of them.
-- KEYS: queue root
-- ARGV: step (1 minutes, 2 hours), first and last key as ZRANGEBYLEX takes them, most of them, 1 when only one task is
--       wanted, task
-- returns: the last key that it looked at when there may be more, else '', then key and row
-- flags: no-writes
local key, limit = keys[1] .. METRICS_STEPS[2 * args[1] - 1], tonumber(args[4])
local most = args[5] == '1' and 5 * 1000 or limit + 1
local found = redis.call('ZRANGEBYLEX', key .. ':keys', args[2], args[3], 'LIMIT', 0, most)
local wanted, last = {}, #found == most and found[most] or ''
for _, one in ipairs(found) do
  if args[5] ~= '1' or one:sub(7) == args[6] then
    if #wanted == limit then
      last = wanted[limit]
      break
    end
    wanted[#wanted + 1] = one
  end
end
local answer, rows = { last }, read('HMGET', key, wanted)
for at, one in ipairs(wanted) do
  answer[2 * at], answer[2 * at + 1] = one, rows[at]
end
return answer

end })
redis.register_function({ function_name = 'windlass_v1_pause', flags = {  }, callback = function(keys, args)
begin(keys)
-- pause: pauses or resumes a queue.
-- KEYS: queue root
-- ARGV: now or '', packed {1 (pause) or 0 (resume)}
-- returns: 1 when that changed something, 1 when the queue became known
-- emits: paused, resumed
local q = open(keys[1], now_from(args[1]))
local wanted = cmsgpack.unpack(args[2])[1]
if redis.call('HEXISTS', q.root, 'paused') == wanted then
  return { 0, 0 }
end
local known = redis.call('HSETNX', q.root, 'known', 1)
if wanted == 1 then
  redis.call('HSET', q.root, 'paused', 1)
else
  redis.call('HDEL', q.root, 'paused')
end
note(q, wanted == 1 and 17 or 18, '')
q.ready = true
close(q)
return { 1, known }

end })
redis.register_function({ function_name = 'windlass_v1_peek', flags = { 'no-writes' }, callback = function(keys, args)
begin(keys)
-- peek: the earliest scores of an index, to share a limit between queues of several slots.
-- KEYS: queue roots
-- ARGV: now or '', packed {'d' (due) or 'a' (lease deadlines), limit}
-- returns: per queue, sequence and score of those that have passed, earliest first
-- flags: no-writes
local now = now_from(args[1])
local request = cmsgpack.unpack(args[2])
local answer = {}
for index, root in ipairs(keys) do
  local found = redis.call('ZRANGEBYSCORE', root .. ':' .. request[1], '-inf', now, 'WITHSCORES', 'LIMIT', 0, request[2])
  for at = 1, #found, 2 do
    found[at] = text(number_of(found[at]))
  end
  answer[index] = found
end
return answer

end })
redis.register_function({ function_name = 'windlass_v1_promote', flags = {  }, callback = function(keys, args)
begin(keys)
-- promote: makes due jobs waiting, earliest first over all queues given.
-- KEYS: queue roots
-- ARGV: now or '', packed {limit}
-- returns: how many, next due in (-1: none)
-- emits: promoted
local now = now_from(args[1])
local limit = cmsgpack.unpack(args[2])[1]
local queues = open_all(keys, now)
local chosen = passed(queues, 'd', limit)
local next_due = -1
for index, q in ipairs(queues) do
  promote_members(q, chosen[index])
  local due = next_due_in(q)
  if due and (next_due < 0 or due < next_due) then
    next_due = due
  end
end
close_all(queues)
return { chosen.count, next_due }

end })
redis.register_function({ function_name = 'windlass_v1_prune', flags = {  }, callback = function(keys, args)
begin(keys)
-- prune: removes what is past its keep: records, kept ids, history, roll-ups, events of quiet queues, empty streams.
-- KEYS: queue roots
-- ARGV: now or '', packed {limit of records, how far all archivers have copied the history of each queue (-1: no
--       archivers), limit of rows of roll-ups}
-- returns: records, ids, history rows removed, 1 when a bound was reached, rows of roll-ups removed
local now = now_from(args[1])
local limit, copied, most_rows = unpack(cmsgpack.unpack(args[2]))
local jobs, ids, history, rolled_up, more = 0, 0, 0, 0, 0
for index, root in ipairs(keys) do
  local q = open(root, now)
  local found = prunable(q, limit - jobs)
  if #found > limit - jobs then
    more = 1
  end
  for at = 1, math.min(#found, limit - jobs) do
    drop(q, found[at][3], q.heads[found[at][3]])
    jobs = jobs + 1
  end
  settle_down(q)
  local gone = prune_ids(q)
  more = gone == 1000 and 1 or more
  ids = ids + gone
  local rows, unread = prune_history(q, metrics.held(q, copied[index]))
  history, more = history + rows, math.max(more, unread)
  rolled_up = rolled_up + metrics.prune(q, most_rows - rolled_up)
  drop_quiet_events(q)
  drop_empty_streams(q)
end
if rolled_up > 0 and rolled_up == most_rows then
  more = 1
end
return { jobs, ids, history, more, rolled_up }

end })
redis.register_function({ function_name = 'windlass_v1_purge', flags = {  }, callback = function(keys, args)
begin(keys)
-- purge: removes jobs of a queue by state, oldest first; can forget the queue itself.
-- KEYS: queue root
-- ARGV: now or '', packed {{state, ...}, grace, limit, force, forget}
-- returns: queues with something to relay, then ids of removed jobs
-- emits: removed
local q = open(keys[1], now_from(args[1]))
local states, grace, limit, force, forget = unpack(cmsgpack.unpack(args[2]))
local found, ids = {}, {}
for _, state in ipairs(states) do
  local part = {}
  if ENDS[state] then
    oldest_finished(q, state, q.now - grace, limit, part)
  elseif state ~= 6 or force == 1 then
    oldest_pending(q, state, q.now - grace, limit, part)
  end
  for _, one in ipairs(part) do
    found[#found + 1] = one
  end
end
table.sort(found, function(one, two)
  return one[1] < two[1] or (one[1] == two[1] and one[2] < two[2])
end)
for at = 1, math.min(#found, limit) do
  ids[at] = found[at][3]
end
load(q, ids)
for _, id in ipairs(ids) do
  remove(q, id, q.heads[id])
  q.done = true
end
settle_down(q)
if forget == 1 and redis.call('HLEN', q.j) == 0 then
  redis.call('HDEL', q.root, 'paused', 'known')
  local last = redis.call('HGET', q.root, 'ev')
  if last then
    redis.call('HSET', q.root, 'ev0', last + 1)
  end
  redis.call('UNLINK', q.v)
  schedules.forget(q)
end
local queues = close(q) -- the events of this call are the first of what is left
table.insert(ids, 1, flow.left(queues))
return ids

end })
redis.register_function({ function_name = 'windlass_v1_reconcile', flags = {  }, callback = function(keys, args)
begin(keys)
-- reconcile: gives back the leases of a worker that it does not hold, at their old places.
-- KEYS: queue root
-- ARGV: now or '', packed {worker, held tokens, how many active jobs to pass over}
-- returns: leases given back, active jobs to pass over next time (-1: that was all), queues with something to relay
-- emits: released, cancelled
local q = open(keys[1], now_from(args[1]))
local request = cmsgpack.unpack(args[2])
local held = {}
for _, token in ipairs(request[2]) do
  held[token] = true
end
local members = redis.call('ZRANGE', q.a, request[3], request[3] + 1000 - 1)
table.sort(members) -- by sequence
local ids = {}
for index, member in ipairs(members) do
  ids[index] = id_of(member)
end
load(q, ids)
local given = 0
for _, id in ipairs(ids) do
  local head = q.heads[id]
  if head[18] == request[1] and not held[head[16]] then
    give_back(q, id, head)
    given = given + 1
  end
end
local queues = close(q)
return { given, #members == 1000 and request[3] + 1000 - given or -1, flow.left(queues) }

end })
redis.register_function({ function_name = 'windlass_v1_recover', flags = {  }, callback = function(keys, args)
begin(keys)
-- recover: takes back expired leases, earliest first over all queues given.
-- KEYS: queue roots
-- ARGV: now or '', packed {limit}
-- returns: queues with something to relay, then queue, id, 1 (waits again, or ended as cancelled) or 0 (failed as stalled), deadline, sequence of every lease
-- emits: stalled, failed, cancelled
local queues = open_all(keys, now_from(args[1]))
local chosen = passed(queues, 'a', cmsgpack.unpack(args[2])[1])
local answer = { 0 }
load_items(queues, chosen.order)
for _, item in ipairs(chosen.order) do
  local q, id = queues[item[1]], item[2]
  local alive = recover(q, id, q.heads[id])
  answer[#answer + 1] = item[1]
  answer[#answer + 1] = id
  answer[#answer + 1] = alive and 1 or 0
  answer[#answer + 1] = item[3]
  answer[#answer + 1] = q.heads[id][2]
end
close_all(queues)
answer[1] = flow.left(queues)
return answer

end })
redis.register_function({ function_name = 'windlass_v1_remove', flags = {  }, callback = function(keys, args)
begin(keys)
-- remove: deletes records; active ones only by force.
-- KEYS: queue roots
-- ARGV: now or '', packed {force, {{queue, id}, ...}}
-- returns: queues with something to relay, then status (0 ok, 1 not found, 2 illegal) and state of every job
-- emits: removed
local request = cmsgpack.unpack(args[2])
local queues = open_all(keys, now_from(args[1]))
local answer = { 0 }
load_items(queues, request[2])
for _, item in ipairs(request[2]) do
  local q, id = queues[item[1]], item[2]
  local head = q.heads[id]
  local status = head and 0 or 1
  if head and head[1] == 6 and request[1] == 0 then
    status = 2
  end
  answer[#answer + 1] = status
  answer[#answer + 1] = head and head[1] or 0
  if status == 0 then
    remove(q, id, head)
    q.done = true
  end
end
close_all(queues)
answer[1] = flow.left(queues)
return answer

end })
redis.register_function({ function_name = 'windlass_v1_report', flags = {  }, callback = function(keys, args)
begin(keys)
-- report: a running attempt's progress, and log lines.
-- KEYS: queue root
-- ARGV: now or '', packed {id, token or '', has progress, log lines kept}, progress, then log lines
-- returns: status (0 ok, 1 not found, 3 lost), state
-- emits: progress
local q = open(keys[1], now_from(args[1]))
local id, token, has_progress, kept = unpack(cmsgpack.unpack(args[2]))
local head = head_of(q, id)
if not head then
  return { 1, 0 }
end
if has_progress == 1 then
  if token == '' or check_token(head, token) ~= 0 then
    return { 3, head[1] }
  end
  put(q.hset, q.g, id, args[3])
  local readable = options_of(head)[10] == 0 and #args[3] <= 1000
  note(q, 5, id, head, readable and args[3] or (#args[3] .. ' bytes'))
end
if #args > 3 then
  local key = q.root .. ':l:' .. id
  for line = 4, #args do
    redis.call('RPUSH', key, args[line])
  end
  redis.call('LTRIM', key, -kept, -1)
end
close(q)
return { 0, head[1] }

end })
redis.register_function({ function_name = 'windlass_v1_result_ttl', flags = {  }, callback = function(keys, args)
begin(keys)
-- result_ttl: keeps a completed job's result until now + ttl.
-- KEYS: queue root
-- ARGV: now or '', packed {id, ttl}
-- returns: status (0 ok, 1 not found, 2 illegal), state
local q = open(keys[1], now_from(args[1]))
local id, ttl = unpack(cmsgpack.unpack(args[2]))
local head = head_of(q, id)
if not head then
  return { 1, 0 }
elseif head[1] ~= 7 then
  return { 2, head[1] }
end
leave(q, id, head)
if head[10] == 0 then
  head[10] = { unpack(DEFAULTS) }
end
head[22] = q.now + ttl
head[10][3] = head[22] - head[20]
enter(q, id, head)
close(q)
return { 0, head[1] }

end })
redis.register_function({ function_name = 'windlass_v1_retry', flags = {  }, callback = function(keys, args)
begin(keys)
-- retry: puts finished jobs back with a fresh budget; makes retrying ones ready now.
-- KEYS: queue roots
-- ARGV: now or '', packed {{queue, id}, ...}
-- returns: status (0 ok, 1 not found, 2 illegal) and state of every job
-- emits: enqueued, promoted
local items = cmsgpack.unpack(args[2])
local queues = open_all(keys, now_from(args[1]))
local answer = {}
load_items(queues, items)
for _, item in ipairs(items) do
  local q, id = queues[item[1]], item[2]
  local head = q.heads[id]
  local status = head and retry(q, id, head) or 1
  settle_down(q)
  answer[#answer + 1] = status
  answer[#answer + 1] = head and head[1] or 0
end
close_all(queues)
return answer

end })
redis.register_function({ function_name = 'windlass_v1_schedule_fire', flags = {  }, callback = function(keys, args)
begin(keys)
-- schedule_fire: adds the jobs of due slots and moves on to the next slot, if the slot is still the one to be fired.
-- KEYS: queue root
-- ARGV: now or '', name, packed {slot (-1: by hand), next slot or -1, {slot, ...}, jobs as `add` takes them}, then one
--       tail per job as `add` takes it
-- returns: 1 when the slot was ours to fire, jobs added, 1 when the queue became known
-- emits: enqueued, scheduled, deduplicated, removed
local q = open(keys[1], now_from(args[1]))
local slot, next_ms, slots, jobs = unpack(cmsgpack.unpack(args[3]))
local state, record = schedules.get(q, args[2])
if not state or (slot >= 0 and (state[1] == 1 or state[2] ~= slot)) then
  return { 0, 0, 0 }
end
local amount = slot >= 0 and schedules.room(q, state, #jobs) or #jobs
local known = schedules.add(q, jobs, args, amount)
if slot >= 0 then
  state[5], state[6] = state[5] + amount, state[6] + #slots - amount
  state[2] = schedules.bounded(state, next_ms)
end
if amount > 0 then
  state[3], state[4] = slot >= 0 and slots[amount] or q.now, jobs[amount][2]
end
schedules.save(q, args[2], state, record)
close(q)
return { 1, amount, known }

end })
redis.register_function({ function_name = 'windlass_v1_schedule_pause', flags = {  }, callback = function(keys, args)
begin(keys)
-- schedule_pause: pauses or resumes a schedule; a resumed one goes on with the slot given.
-- KEYS: queue root
-- ARGV: name, packed {1 (pause) or 0 (resume), slot or -1}
-- returns: 0 (no such schedule), 1 (nothing changed), 2
local q = open(keys[1], 0)
local paused, next_ms = unpack(cmsgpack.unpack(args[2]))
local state, record = schedules.get(q, args[1])
if not state then
  return 0
elseif state[1] == paused then
  return 1
end
state[1] = paused
if paused == 0 then
  state[2] = schedules.bounded(state, next_ms)
end
schedules.save(q, args[1], state, record)
return 2

end })
redis.register_function({ function_name = 'windlass_v1_schedule_put', flags = {  }, callback = function(keys, args)
begin(keys)
-- schedule_put: makes or changes a schedule.
-- KEYS: queue root
-- ARGV: name, packed state (see `87_schedules.lua`), record
-- returns: 1 when the queue became known, 1 when it had no schedule before, state
local q = open(keys[1], 0)
local known = redis.call('HSETNX', q.root, 'known', 1)
local first = redis.call('EXISTS', q.root .. ':schedules') == 0 and 1 or 0
local state = schedules.merged(schedules.get(q, args[1]), cmsgpack.unpack(args[2]))
schedules.save(q, args[1], state, args[3])
return { known, first, cmsgpack.pack(state) }

end })
redis.register_function({ function_name = 'windlass_v1_schedule_remove', flags = {  }, callback = function(keys, args)
begin(keys)
-- schedule_remove: forgets a schedule.
-- KEYS: queue root
-- ARGV: name, 1 when it must come from the source given, source
-- returns: 1 when it was there
local q = open(keys[1], 0)
local state = schedules.get(q, args[1])
if not state or (args[2] == '1' and state[10] ~= args[3]) then
  return 0
end
schedules.drop(q, args[1])
return 1

end })
redis.register_function({ function_name = 'windlass_v1_schedules_due', flags = { 'no-writes' }, callback = function(keys, args)
begin(keys)
-- schedules_due: schedules whose next slot has come, earliest first.
-- KEYS: queue roots
-- ARGV: now or '', most of them
-- returns: now, slot of the first of the others (-1: none), then stored text (see `87_schedules.lua`) of each
-- flags: no-writes
local now, limit = now_from(args[1]), tonumber(args[2])
local coming = {}
for index, root in ipairs(keys) do
  local found = redis.call('ZRANGE', root .. ':schedules:due', 0, limit, 'WITHSCORES')
  for at = 1, #found, 2 do
    coming[#coming + 1] = { tonumber(found[at + 1]), index, found[at] }
  end
end
table.sort(coming, function(one, two)
  if one[1] ~= two[1] then
    return one[1] < two[1]
  end
  return one[2] < two[2] or (one[2] == two[2] and one[3] < two[3])
end)
local answer, at = { now, -1 }, 1
while coming[at] and coming[at][1] <= now and at <= limit do
  answer[at + 2] = redis.call('HGET', keys[coming[at][2]] .. ':schedules', coming[at][3])
  at = at + 1
end
if coming[at] then
  answer[2] = coming[at][1]
end
return answer

end })
redis.register_function({ function_name = 'windlass_v1_schedules_list', flags = { 'no-writes' }, callback = function(keys, args)
begin(keys)
-- schedules_list: schedules of queues by queue and name; looks at no more than 1,000 of them.
-- KEYS: queue roots
-- ARGV: now or '', packed {most of them, name or '', 1 when they must come from the source given, source}, for the
--       first queue the name after which to begin, or ''
-- returns: now, 0 (that was all) or the position of the queue where it stopped, the last name that it looked at there,
--          then stored text (see `87_schedules.lua`) of each
-- flags: no-writes
local now = now_from(args[1])
local limit, name, sourced, source = unpack(cmsgpack.unpack(args[2]))
local answer, looked = { now, 0, '' }, 0
for index, root in ipairs(keys) do
  local names = { name }
  if name == '' then
    local from = (index == 1 and args[3] ~= '') and '(' .. args[3] or '-'
    names = redis.call('ZRANGEBYLEX', root .. ':schedules:names', from, '+', 'LIMIT', 0, 1000 - looked)
  end
  local q = open(root, now)
  for _, one in ipairs(names) do
    local state = schedules.get(q, one)
    looked = looked + 1
    if state and (sourced == 0 or state[10] == source) then
      answer[#answer + 1] = redis.call('HGET', root .. ':schedules', one)
    end
    if looked == 1000 or #answer == 3 + limit then
      answer[2], answer[3] = index, one
      return answer
    end
  end
end
return answer

end })
redis.register_function({ function_name = 'windlass_v1_signal', flags = {  }, callback = function(keys, args)
begin(keys)
-- signal: keeps a signal with a job; one that is suspended on it waits for a worker again.
-- KEYS: queue root
-- ARGV: now or '', packed {id, name, most names per job, codec}, data
-- returns: status (0 ok, 1 not found, 2 illegal, -1 too many names), state
-- emits: promoted, changed
local q = open(keys[1], now_from(args[1]))
local id, name, most, codec = unpack(cmsgpack.unpack(args[2]))
local head = head_of(q, id)
if not head then
  return { 1, 0 }
end
local value = struct.pack('>I6Bc0', q.now, #codec, codec) .. args[3]
local status = flow.signal(q, id, head, name, value, most)
close(q)
return { status, head[1] }

end })
redis.register_function({ function_name = 'windlass_v1_stream_append', flags = {  }, callback = function(keys, args)
begin(keys)
-- stream_append: appends to the live output of a running job; chunks that are there already are skipped.
-- KEYS: queue root
-- ARGV: now or '', packed {id, token, number of the first chunk within this attempt, most chunks, most bytes}, then chunks
-- returns: status (0 ok, 1 not found, 3 lost, -1 it would leave a gap), state
local q = open(keys[1], now_from(args[1]))
local id, token, first, most_chunks, most_bytes = unpack(cmsgpack.unpack(args[2]))
local head = head_of(q, id)
if not head then
  return { 1, 0 }
elseif check_token(head, token) ~= 0 then
  return { 3, head[1] }
elseif not flow.append(q, id, head, first, args, 3, most_chunks, most_bytes) then
  return { -1, head[1] }
end
close(q)
redis.call('SPUBLISH', q.root .. ':stream', '')
return { 0, head[1] }

end })
redis.register_function({ function_name = 'windlass_v1_stream_read', flags = { 'no-writes' }, callback = function(keys, args)
begin(keys)
-- stream_read: live output of a job after a chunk.
-- KEYS: queue root
-- ARGV: packed {id, after, limit}
-- returns: state or 0, codec, number of the newest and of the oldest chunk, then number, delivery and data of each
-- flags: no-writes
local id, after, limit = unpack(cmsgpack.unpack(args[1]))
local q = open(keys[1], 0)
local head = head_of(q, id)
if not head then
  return { 0, 'json', 0, 1 }
end
local codec, out = options_of(head)[10], flow.output_of(q, id)
local answer = { head[1], codec ~= 0 and codec or 'json', out[1], out[2] }
if limit > 0 and out[1] > after then
  for _, entry in ipairs(redis.call('XRANGE', q.root .. ':p:' .. id, text(after + 1), '+', 'COUNT', limit)) do
    local size = #answer
    answer[size + 1], answer[size + 2] = tonumber(string.match(entry[1], '^%d+')), tonumber(entry[2][2])
    answer[size + 3] = entry[2][4]
  end
end
return answer

end })
redis.register_function({ function_name = 'windlass_v1_sweep', flags = {  }, callback = function(keys, args)
begin(keys)
-- sweep: forgets workers that are silent for long and leaders whose time is over.
-- KEYS: namespace root
-- ARGV: now or '', how long a silent worker is remembered
-- returns: workers forgotten
local now = now_from(args[1])
local silent = redis.call('ZRANGEBYSCORE', keys[1] .. ':beats', '-inf', now - args[2], 'LIMIT', 0, 1000)
if #silent > 0 then
  redis.call('ZREM', keys[1] .. ':beats', unpack(silent))
  redis.call('HDEL', keys[1] .. ':workers', unpack(silent))
  redis.call('HDEL', keys[1] .. ':commands', unpack(silent))
end
local leaders = redis.call('HGETALL', keys[1] .. ':leaders')
for at = 1, #leaders, 2 do
  if cmsgpack.unpack(leaders[at + 1])[2] <= now then
    redis.call('HDEL', keys[1] .. ':leaders', leaders[at])
  end
end
return #silent

end })
redis.register_function({ function_name = 'windlass_v1_version', flags = { 'no-writes' }, callback = function(keys, args)
begin(keys)
-- version: the number of the library that answers.
-- KEYS: none
-- ARGV: none
-- returns: LIBRARY_VERSION
-- flags: no-writes
return 1

end })
redis.register_function({ function_name = 'windlass_v1_work', flags = {  }, callback = function(keys, args)
begin(keys)
-- work: ends attempts, then claims the next jobs: the whole turn of a worker in one step.
-- KEYS: queue roots
-- ARGV: now or '', packed {ends, claim or 0}; ends are one flat list, each: queue, id, token, outcome, duration,
--       result or 0, and unless completed: delay, reason, uses attempt, miss, error or 0;
--       a claim is {worker, lease, claim id, limit, {{queue, share, cap,
--       leased by an earlier call of the same claim}, ...}}
-- returns: now, one character per end (0 ok, 1 already, 2 lost, 3 gone), next due in (-1: none), one character per
--          claimed queue (1: it holds more), queues with something to relay, then of every leased job queue, id,
--          record (a plain one: its head is as added but for this lease), or -queue, id, record, head, errors, signals
-- emits: completed, failed, retrying, scheduled, released, cancelled, blocked, suspended, promoted, started, drained
local now = now_from(args[1])
local request = cmsgpack.unpack(args[2])
local queues = open_all(keys, now)
local answer = { now, settle_all(queues, request[1]), -1, '', 0 }
if request[2] ~= 0 then
  local claim = claim_jobs(queues, request[2])
  answer[3], answer[4] = claim.next_due, claim.left
  append_leased(answer, queues, claim)
end
close_all(queues)
answer[5] = flow.left(queues)
return answer

end })
redis.register_function({ function_name = 'windlass_v1_workers', flags = { 'no-writes' }, callback = function(keys, args)
begin(keys)
-- workers: those with a heartbeat in the last while.
-- KEYS: namespace root
-- ARGV: now or '', how long a worker may be silent
-- returns: time of the last beat, stored text ('<started> <description>') and last command (or '') of every worker
-- flags: no-writes
local now = now_from(args[1])
local answer = {}
local found = redis.call('ZRANGEBYSCORE', keys[1] .. ':beats', '(' .. text(now - args[2]), '+inf', 'WITHSCORES')
for at = 1, #found, 2 do
  answer[#answer + 1] = found[at + 1]
  answer[#answer + 1] = redis.call('HGET', keys[1] .. ':workers', found[at])
  answer[#answer + 1] = redis.call('HGET', keys[1] .. ':commands', found[at]) or ''
end
return answer

end })
