-- Records that cannot be read. One harms nothing else: whoever reads heads meets a stand-in that tells where the job stands,
-- found by its indexes. Calls that may write end such a job at once, as failed; its bytes in :j stay as they are. The same
-- rules as `windlass.core.damage`.

local BAD_RECORD = 'bad_record'

-- Types of the fields of a head, up to the reason. Options are a number or an array.
damaged.kinds = {
  'number', 'number', 'number', 'number', 'number', 'number', 'number', 'number', 'string', 'number',
  'number', 'number', 'number', 'number', 'number', 'string', 'string', 'string', 'number', 'number',
  'string', 'number', 'string',
}

local function is_whole(head)
  if type(head) ~= 'table' then
    return false
  end
  for index, kind in ipairs(damaged.kinds) do
    local found = type(head[index])
    if found ~= kind and not (index == OPTIONS and found == 'table') then
      return false
    end
  end
  return head[STATE] >= 1 and head[STATE] <= SUSPENDED
end

-- What `read` makes of its arguments, if that is a head; else nil.
function damaged.head(read, ...)
  local ok, head = pcall(read, ...)
  return ok and is_whole(head) and head or nil
end

-- A packed table; `otherwise` when it is none.
function damaged.unpacked(packed, otherwise)
  local ok, found = pcall(cmsgpack.unpack, packed)
  return ok and type(found) == 'table' and found or otherwise
end

-- Whether the head of a plain job has all its parts.
function damaged.lean_is_whole(packed)
  local byte = string.byte
  local token = byte(packed, 21)
  local worker = token and byte(packed, 22 + token)
  local task = worker and byte(packed, 23 + token + worker)
  return task and #packed >= 23 + token + worker + task
end

-- Whether the record of a plain job has what a lease needs of it.
function damaged.plain_is_whole(record)
  local task = string.byte(record, 15)
  return task and #record >= 15 + task
end

-- Whether the part of a record that the server only stores has the form that clients can read.
function damaged.tail_is_whole(record)
  local ok, meta = pcall(function()
    local at = tail_at(record)
    local size = struct.unpack('>I4', record, at)
    return cmsgpack.unpack(record:sub(at + 4, at + 3 + size))
  end)
  return ok and type(meta) == 'table' and #meta == 3
end

-- The number of the entry of :f that names `id`, looked for from `from` on; nil when there is none.
local function number_in_stream(q, id, from)
  for _ = 1, 100 do
    local entries = redis.call('XRANGE', q.f, from, '+', 'COUNT', STEP)
    for _, entry in ipairs(entries) do
      if entry[2][2] == id then
        return tonumber(string.match(entry[1], '^%d+'))
      end
    end
    if #entries < STEP then
      return nil
    end
    from = '(' .. entries[STEP][1]
  end
end

-- The member of :w that names `id`, and its score.
local function find_in_line(q, id)
  for from = 0, 100 * STEP - 1, STEP do
    local found = redis.call('ZRANGE', q.w, from, from + STEP - 1, 'WITHSCORES')
    for at = 1, #found, 2 do
      if line.id_of(found[at]) == id then
        return found[at], tonumber(found[at + 1])
      end
    end
    if #found < 2 * STEP then
      return nil
    end
  end
end

-- Tells `head` the state of the job whose member in most indexes is `member`; false when none of these has it.
local function find_state(q, id, head, member)
  for name, state in pairs({ a = ACTIVE, P = COMPLETED, C = COMPLETED, F = FAILED, X = CANCELLED, b = BLOCKED, u = SUSPENDED,
    Q = PARKED, d = SCHEDULED }) do
    local score = redis.call('ZSCORE', q[name], member)
    if score then
      head[STATE] = state
      if ENDS[state] then
        head[FINISHED] = tonumber(score)
      end
      if name == 'd' then
        head[DUE] = tonumber(score)
        head[STATE] = redis.call('SISMEMBER', q.t, id) == 1 and RETRYING
          or redis.call('SISMEMBER', q.T, id) == 1 and SUSPENDED or SCHEDULED
      end
      return true
    end
  end
  return false
end

-- The line of a group (or its waiting jobs) that names `id`: the member, its score, the group.
local function find_in_groups(q, id, key_of, id_in)
  for _, name in ipairs(redis.call('ZRANGE', q.A, 0, STEP - 1)) do
    local found = redis.call('ZRANGE', key_of(name), 0, STEP - 1, 'WITHSCORES')
    for at = 1, #found, 2 do
      if id_in(found[at]) == id then
        return found[at], tonumber(found[at + 1]), name
      end
    end
  end
end

-- Tells `head` its options: those of the record as added, if it can be read, or else those that the groups of the queue tell.
local function find_options(q, id, head)
  local added = damaged.head(unpack_fresh, q.records[id] or redis.call('HGET', q.j, id) or '')
  if added then
    head[OPTIONS], head[TASK], head[ENQUEUED] = added[OPTIONS], added[TASK], added[ENQUEUED]
  end
  if not limits.marks(q).has_groups then
    return
  end
  local member, score, name
  if head[STATE] == PARKED then
    member, score, name = find_in_groups(q, id, function(one)
      return groups.line_key(q, groups.get(q, one))
    end, id_of)
    if member then
      head[PRIORITY], head[PLACE] = 0 - score, place_of(member)
    end
  elseif head[STATE] == WAITING and not added then
    member, score, name = find_in_groups(q, id, function(one)
      return q.root .. ':W:' .. one
    end, line.id_of)
  end
  if name and not added then
    local d = DEFAULTS
    head[OPTIONS] = { d[1], d[2], d[3], d[4], d[5], d[6], d[7], d[8], d[9], d[10], name, 1, 0, 0 }
  end
end

-- A head for a job whose own cannot be read, with the state that the indexes tell.
function damaged.stand_in(q, id)
  local listed = redis.call('ZSCORE', q.i, id)
  local added = not listed and (number_in_stream(q, id, '(' .. cursor_of(q)) or number_in_stream(q, id, '-'))
  local seq = tonumber(listed or added or 0)
  local head = {
    NOWHERE, seq, seq, 0, 0, 0, 0, 0, '', 0, 0, 0, 0, 0, 0, '', '', '', 0, 0, '', 0, BAD_RECORD,
  }
  if not find_state(q, id, head, member_of(q, id, head)) then
    local member, score = find_in_line(q, id)
    if member then
      head[STATE], head[PRIORITY], head[PLACE] = WAITING, 0 - score, line.place_of(member)
      if line.turn_of(member) > 0 then
        flow.widen(head)
        head[TURN] = line.turn_of(member)
      end
    elseif added then
      head[STATE], q.fresh[id] = WAITING, true
    end
  end
  find_options(q, id, head)
  if redis.call('EXISTS', q.root .. ':N:' .. text(seq), q.root .. ':D:' .. id) > 0 then -- others wait for it, or it for them
    flow.widen(head)
    head[LINKED] = 1
  end
  if head[STATE] == COMPLETED and head[OPTIONS] == 0 and not redis.call('ZSCORE', q.P, member_of(q, id, head)) then
    head[OPTIONS] = { unpack(DEFAULTS) } -- it is in :C
  end
  q.heads[id], q.packed[id], q.lost[id] = head, cmsgpack.pack(head), true
  return head
end

-- Ends a job whose record cannot be read.
function damaged.set_aside(q, id, head)
  local why = 'its record cannot be read'
  local failure = { 'BadRecord', why, '', 'BadRecord', why }
  q.lost[id], q.aside[id] = nil, true
  if head[STATE] == PARKED and not groups.of(head) then
    redis.call('ZREM', q.Q, member_of(q, id, head))
    head[STATE] = NOWHERE
  end
  redis.call('HDEL', q.e, id)
  keep_error(q, id, head, failure, 0)
  record(q, id, head, O_FAILED, nil, failure)
  drop_lease(head, false)
  finish(q, id, head, FAILED, BAD_RECORD)
  note(q, E_FAILED, id, head, BAD_RECORD, 'BadRecord', why)
  file(q)
end

-- Ends every job of `q` that was met and cannot be read, unless this call only looks.
function damaged.end_lost(q)
  local lost = not damaged.looks and rawget(q, 'lost')
  if not lost or not next(lost) then
    return
  end
  q.lost = nil
  for id in pairs(lost) do
    damaged.set_aside(q, id, q.heads[id])
  end
  settle_down(q)
end

-- Whether a job has no record that can be read, or ended because of that.
function damaged.is_bad(q, id, head)
  if head[REASON] == BAD_RECORD or ENDS[head[STATE]] then
    return head[REASON] == BAD_RECORD
  end
  load_records(q, { id })
  return not damaged.tail_is_whole(q.records[id])
end

-- Ends jobs {queue, id, ...} that somebody wants to change, if a part of the record that only clients read is damaged.
function damaged.check(queues, items)
  for _, item in ipairs(items) do
    local q, id = queues[item[1]], item[2]
    local head = head_of(q, id)
    if head and not ENDS[head[STATE]] and damaged.is_bad(q, id, head) then
      damaged.set_aside(q, id, head)
      settle_down(q)
    end
  end
end
