-- Reading jobs. The head is in :m once the job has changed, before that at the front of its record in :j.

local function unpack_fresh(record)
  if is_plain(record) then
    local seq, enqueued, task = struct.unpack('>I7I6Bc0', record, 2)
    return new_head(STATE.WAITING, seq, enqueued, task)
  end
  local _, head = cmsgpack.unpack_one(record, 2)
  if head[HEAD.PLACE] == 0 then
    head[HEAD.PLACE] = head[HEAD.SEQ]
  end
  if head[HEAD.READY] == 0 then
    head[HEAD.READY] = head[HEAD.ENQUEUED]
  end
  local blank = BLANK_HEAD
  for index = HEAD.OPTIONS + 1, #blank do -- fields that `add` does not write
    head[index] = blank[index]
  end
  return head
end

local function unpack_head(q, id, packed)
  return is_lean(packed) and unpack_lean(q, id, packed) or cmsgpack.unpack(packed)
end

-- Reads jobs that have not changed since they were added.
local function load_fresh(q, ids)
  local found = read('HMGET', q.j, ids)
  for index, id in ipairs(ids) do
    if found[index] then
      q.records[id] = found[index]
      local head = damaged.head(unpack_fresh, found[index])
      if head then
        q.heads[id], q.fresh[id] = head, true
      else
        damaged.stand_in(q, id)
      end
    end
  end
end

-- Where the tail of a record (see `70_add.lua`) starts.
local function tail_at(record)
  if is_plain(record) then
    return 16 + record:byte(15)
  end
  return 3 + struct.unpack('>I2', record)
end

-- Reads the heads of `ids` into q.heads, unless they are there; false marks a job that does not exist.
local function load(q, ids)
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
    if packed then
      q.packed[id] = packed
      q.heads[id] = damaged.head(unpack_head, q, id, packed) or damaged.stand_in(q, id)
    else
      fresh[#fresh + 1] = id
    end
  end
  load_fresh(q, fresh)
  if rawget(q, 'lost') then
    damaged.end_lost(q)
  end
end

-- As `load`, but lean heads are not unpacked: they are in q.lean.
local function load_ended(q, ids)
  local found, lean, byte, others = read('HMGET', q.m, ids), q.lean, string.byte, nil
  for index = 1, #ids do
    local packed = found[index]
    if packed and byte(packed) == MARK.LEAN and damaged.lean_is_valid(packed) then
      lean[ids[index]] = packed
    else
      others = others or {}
      others[#others + 1] = ids[index]
    end
  end
  if others then
    load(q, others)
  end
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
  local options = head[HEAD.OPTIONS]
  return options ~= 0 and options or USUAL
end

local function member_of(q, id, head)
  local member = q.members[id]
  if not member then
    member = struct.pack('>I7', head[HEAD.SEQ]) .. id
    q.members[id] = member
  end
  return member
end

-- A member of a line: place and id. Places of `lifo` jobs are negative; with the offset the bytes sort like the places.
local function place_member_of(id, head)
  return struct.pack('>I7', head[HEAD.PLACE] + PLACE_OFFSET) .. id
end

local function place_of(member)
  return struct.unpack('>I7', member) - PLACE_OFFSET
end

local function id_of(member)
  return string.sub(member, 8)
end

local function number_of(member)
  return struct.unpack('>I7', member)
end

-- A job as it is returned to clients: id, record, head, result, progress, errors, lease deadline, signals. With `late` also a
-- result whose time to live has passed.
local function view(q, id, late)
  local head = head_of(q, id)
  load_records(q, { id })
  local result = false
  if head[HEAD.RESULT_UNTIL] > q.now or (late and head[HEAD.RESULT_UNTIL] > 0) then
    result = q.inline[id] or redis.call('HGET', q.r, id)
  end
  local lease = head[HEAD.STATE] == STATE.ACTIVE and redis.call('ZSCORE', q.a, member_of(q, id, head)) or false
  local packed = q.packed[id] or ''
  local progress, errors = redis.call('HGET', q.g, id), redis.call('HGET', q.e, id)
  return { id, q.records[id] or '', packed, result, progress, errors, lease, flow.signals(q, id, head) }
end
