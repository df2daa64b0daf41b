-- One queue during one call: its keys, the heads that were read, and the writes that are pending.
--
-- Every key of a queue is its root (declared in KEYS) plus a suffix, so all of them share its hash tag:
--   (root)  hash    seq, cur, passed, ev, ev0, hi, hi0, ro, ro_ms, paused, known, revoked, ix, and counters c:<outcome>:<task>
--   :j      hash    id -> record as added, see `15_plain.lua` and `70_add.lua`
--   :m      hash    id -> head, once anything about the job changed
--   :f      stream  jobs of priority 0 that were ready when they were added, by sequence. Entries up to `cur` were picked:
--                   they stay for listings until the record is removed, and `passed` counts them
--   :w      zset    all other waiting jobs: score -priority, member see `22_line.lua`
--   :d      zset    scheduled and retrying: score due time, member sequence + id
--   :t      set     ids of retrying jobs
--   :a      zset    active: score lease deadline, member sequence + id
--   :P      zset    completed with default options: score finish time, member sequence + id
--   :C :F :X zset   other completed, failed, cancelled: like :P
--   :z      zset    pending jobs that can expire: score when, member sequence + id
--   :o      zset    finished, without those in :P: score when the record may be removed
--   :k      zset    ids that outlive their record (`keep_id`): score until when
--   :i      zset    all jobs that are not in :f, by sequence, for listings
--   :J :I   zset    jobs with an error, roots of flows: score sequence, member id; see `91_indexes.lua`
--   :r :g :e hash   id -> result, progress, errors
--   :l:<id> list    log lines: 1, packed {text, time, level, attempt, delivery}; earlier releases wrote texts
--   :v :h   stream  events and history, one entry per call, id = number of its last row; see `30_notes.lua`
-- `12_flows.lua`, `13_unique.lua`, `14_limits.lua`, `42_stubs.lua`, `78_handoff.lua`, `87_schedules.lua` and
-- `94_metrics.lua` describe further keys.

local LOG_LINE = '\1' -- the first byte of a packed log line
local LIST = 'list' -- a list of pending writes, see `write_indexes`
local TABLES = {
  heads = true, fresh = true, lost = true, aside = true, records = true, packed = true, members = true, lean = true, inline = true,
  dirty = true, events = true, history = true, counts = true, workers = true,
  zadd = LIST, zrem = LIST, hset = LIST, hdel = LIST, sadd = LIST, srem = LIST,
  xdel = LIST, xdel_passed = LIST, unlink = LIST,
  groups = true, touched = true, joins = true, -- see `58_groups.lua`; joins: heads that have got a new place
}

-- Creates tables, and keys that few calls need, on first use: q.heads, q.zadd, q.r, ...
local PARTS = {
  __index = function(q, name)
    local part = nil
    if #name == 1 then
      part = q.root .. ':' .. name
    elseif TABLES[name] then
      part = {}
      q.has_lists = q.has_lists or TABLES[name] == LIST
    end
    q[name] = part
    return part
  end,
}

-- The time of this call in milliseconds (the server's, unless a test gives one), and the server's in microseconds.
local function now_from(argument)
  local time = redis.call('TIME')
  local micros = time[1] * 1000000 + time[2]
  return argument ~= '' and tonumber(argument) or math.floor(micros / 1000), micros
end

local function open(root, now)
  return setmetatable({
    root = root, now = now, picked = 0, noted = 0, recorded = 0, has_lists = false,
    a = root .. ':a', d = root .. ':d', f = root .. ':f', j = root .. ':j', m = root .. ':m', w = root .. ':w',
    run = false, inserted = false, ready = false, done = false, freed = false, -- read often: present, so that PARTS is not asked
    marked = false, cursor = false, last = false, completed = false, leased = false,
  }, PARTS)
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

-- Calls `command` with a list of any length, in parts that fit Lua's stack; returns the sum of the answers. Only the first
-- `size` values of the list are used, if it is given.
local function send(command, key, list, size)
  size = size or #list
  if size > 0 and size <= 4000 then
    return redis.call(command, key, unpack(list, 1, size))
  end
  local sum = 0
  for first = 1, size, 4000 do
    local answer = redis.call(command, key, unpack(list, first, math.min(first + 3999, size)))
    sum = sum + (type(answer) == 'number' and answer or 0)
  end
  return sum
end

local function read(command, key, list)
  if #list > 0 and #list <= 4000 then
    return redis.call(command, key, unpack(list))
  end
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

-- Adds a pending write: `put(q.zadd, key, score, member)`, `put(q.zrem, key, member)`, ...
local function put(kind, key, one, two)
  local list = list_of(kind, key)
  local size = #list
  if type(one) == 'number' then -- scores often repeat, and formatting one is slow
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

local WRITES = { 'zrem', 'srem', 'hdel', 'hset', 'zadd', 'sadd' } -- removals first

-- The sequence, as text, up to which all entries of :f were picked.
local function cursor_of(q)
  if q.last then -- the record of the last plain job that was picked
    q.cursor, q.last = text((struct.unpack('>I7', q.last, 2))), false
  end
  q.cursor = q.cursor or redis.call('HGET', q.root, 'cur') or '0'
  return q.cursor
end

local function write_indexes(q)
  if q.picked == 0 and not q.has_lists then
    return
  end
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
    redis.call('HSET', q.root, 'cur', cursor_of(q))
    q.picked = 0
  end
  if passed ~= 0 then
    redis.call('HINCRBY', q.root, 'passed', passed)
  end
  if not q.has_lists then
    return
  end
  q.has_lists = false
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
    if q.inline[id] then -- its lean head contained the result
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
