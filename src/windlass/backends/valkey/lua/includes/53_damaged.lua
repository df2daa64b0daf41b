-- Records that cannot be read. They do not affect other jobs: readers get a stand-in head, with the state that the indexes
-- show. Calls that may write fail such a job at once; its bytes in :j stay. The rules of `windlass.core.bad_records`.

function damaged.is_valid(head)
  if type(head) ~= 'table' then
    return false
  end
  for index, blank in ipairs(BLANK_HEAD) do -- options may be a number or an array
    local found = type(head[index])
    if found ~= type(blank) and not (index == HEAD.OPTIONS and found == 'table') then
      return false
    end
  end
  return head[HEAD.STATE] >= STATE.WAITING and head[HEAD.STATE] <= STATE.SUSPENDED and damaged.time_is_valid(head[HEAD.QUEUE_TIME])
end

-- Whether a head may have this queue time: none, 0, or a number for each field.
function damaged.time_is_valid(time)
  if time == nil or time == 0 then
    return true
  elseif type(time) ~= 'table' then
    return false
  end
  for index = 1, QUEUE_TIME.IN_LINE do
    if type(time[index]) ~= 'number' then
      return false
    end
  end
  return #time == QUEUE_TIME.IN_LINE
end

-- The head that `read` returns for its arguments; nil if it fails or returns something else.
function damaged.head(read, ...)
  local ok, head = pcall(read, ...)
  return ok and damaged.is_valid(head) and head or nil
end

-- Unpacks a table; `otherwise` if it is not one.
function damaged.unpacked(packed, otherwise)
  local ok, found = pcall(cmsgpack.unpack, packed)
  return ok and type(found) == 'table' and found or otherwise
end

-- Whether a lean head has all its parts.
function damaged.lean_is_valid(packed)
  local byte = string.byte
  local token = byte(packed, 21)
  local worker = token and byte(packed, 22 + token)
  local task = worker and byte(packed, 23 + token + worker)
  return task and #packed >= 23 + token + worker + task
end

-- Whether the record of a plain job has the parts that a lease needs.
function damaged.plain_is_valid(record)
  local task = string.byte(record, 15)
  return task and #record >= 15 + task
end

-- Whether clients can read the tail of a record.
function damaged.tail_is_valid(record)
  local ok, meta = pcall(function()
    local at = tail_at(record)
    local size = struct.unpack('>I4', record, at)
    return cmsgpack.unpack(record:sub(at + 4, at + 3 + size))
  end)
  return ok and type(meta) == 'table' and #meta == 3
end

-- The sequence of the entry of :f with `id`, searched from `from` on; nil if there is none.
function damaged.number_in_stream(q, id, from)
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

-- The member of :w with `id`, and its score.
function damaged.find_in_line(q, id)
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

-- Sets the state in `head` by the index that contains `member`; returns false if none does. It does not search the line.
function damaged.find_state(q, id, head, member)
  for name, state in pairs({ a = STATE.ACTIVE, P = STATE.COMPLETED, C = STATE.COMPLETED, F = STATE.FAILED, X = STATE.CANCELLED, b = STATE.BLOCKED, u = STATE.SUSPENDED,
    Q = STATE.PARKED, d = STATE.SCHEDULED }) do
    local score = redis.call('ZSCORE', q[name], member)
    if score then
      head[HEAD.STATE] = state
      if ENDS[state] then
        head[HEAD.FINISHED] = tonumber(score)
      end
      if name == 'd' then
        head[HEAD.DUE] = tonumber(score)
        head[HEAD.STATE] = redis.call('SISMEMBER', q.t, id) == 1 and STATE.RETRYING
          or redis.call('SISMEMBER', q.T, id) == 1 and STATE.SUSPENDED or STATE.SCHEDULED
      end
      return true
    end
  end
  return false
end

-- Searches a zset of each group (`key_of` gives its key) for `id`: returns the member, its score, the group.
function damaged.find_in_groups(q, id, key_of, id_in)
  for _, name in ipairs(redis.call('ZRANGE', q.A, 0, STEP - 1)) do
    local found = redis.call('ZRANGE', key_of(name), 0, STEP - 1, 'WITHSCORES')
    for at = 1, #found, 2 do
      if id_in(found[at]) == id then
        return found[at], tonumber(found[at + 1]), name
      end
    end
  end
end

-- Sets the options of `head`: from the record as added, if it can be read, else the group from the keys of the groups.
function damaged.find_options(q, id, head)
  local added = damaged.head(unpack_fresh, q.records[id] or redis.call('HGET', q.j, id) or '')
  if added then
    head[HEAD.OPTIONS], head[HEAD.TASK], head[HEAD.ENQUEUED] = added[HEAD.OPTIONS], added[HEAD.TASK], added[HEAD.ENQUEUED]
  end
  if not limits.settings(q).has_groups then
    return
  end
  local member, score, name
  if head[HEAD.STATE] == STATE.PARKED then
    member, score, name = damaged.find_in_groups(q, id, function(one)
      return groups.line_key(q, groups.get(q, one))
    end, id_of)
    if member then
      head[HEAD.PRIORITY], head[HEAD.PLACE] = 0 - score, place_of(member)
    end
  elseif head[HEAD.STATE] == STATE.WAITING and not added then
    member, score, name = damaged.find_in_groups(q, id, function(one)
      return q.root .. ':W:' .. one
    end, line.id_of)
  end
  if name and not added then
    local options = { unpack(USUAL) }
    options[OPTION.GROUP], options[OPTION.COST], options[OPTION.UNIQUE], options[OPTION.LIFO] = name, 1, 0, 0
    head[HEAD.OPTIONS] = options
  end
end

-- A stand-in for a head that cannot be read, with the state that the indexes show.
function damaged.stand_in(q, id)
  local listed = redis.call('ZSCORE', q.i, id)
  local added = not listed and (damaged.number_in_stream(q, id, '(' .. cursor_of(q)) or damaged.number_in_stream(q, id, '-'))
  local seq = tonumber(listed or added or 0)
  local head = new_head(STATE.NOWHERE, seq, 0, '')
  head[HEAD.REASON] = BAD_RECORD
  if not damaged.find_state(q, id, head, member_of(q, id, head)) then
    local member, score = damaged.find_in_line(q, id)
    if member then
      head[HEAD.STATE], head[HEAD.PRIORITY], head[HEAD.PLACE] = STATE.WAITING, 0 - score, line.place_of(member)
      if line.turn_of(member) > 0 then
        flow.add_fields(head)
        head[HEAD.TURN] = line.turn_of(member)
      end
    elseif added then
      head[HEAD.STATE], q.fresh[id] = STATE.WAITING, true
    end
  end
  damaged.find_options(q, id, head)
  if redis.call('EXISTS', q.root .. ':N:' .. text(seq), q.root .. ':D:' .. id) > 0 then -- it has edges
    flow.add_fields(head)
    head[HEAD.LINKED] = 1
  end
  if head[HEAD.STATE] == STATE.COMPLETED and head[HEAD.OPTIONS] == 0 and not redis.call('ZSCORE', q.P, member_of(q, id, head)) then
    head[HEAD.OPTIONS] = { unpack(USUAL) } -- it is in :C
  end
  q.heads[id], q.packed[id], q.lost[id] = head, cmsgpack.pack(head), true
  return head
end

-- Fails a job whose record cannot be read.
function damaged.set_aside(q, id, head)
  local why = 'its record cannot be read'
  local failure = { SAID.BAD_RECORD, why, '', SAID.BAD_RECORD, why }
  q.lost[id], q.aside[id] = nil, true
  if head[HEAD.STATE] == STATE.PARKED and not groups.of(head) then
    redis.call('ZREM', q.Q, member_of(q, id, head))
    head[HEAD.STATE] = STATE.NOWHERE
  end
  redis.call('HDEL', q.e, id)
  keep_error(q, id, head, failure, 0)
  record(q, id, head, RAN.FAILED, nil, failure)
  drop_lease(head, false)
  finish(q, id, head, STATE.FAILED, BAD_RECORD)
  note(q, EVENT.FAILED, id, head, BAD_RECORD, SAID.BAD_RECORD, why)
  update_group(q)
end

-- Fails the jobs of `q` that this call could not read, unless it is read-only.
function damaged.end_lost(q)
  local lost = not damaged.read_only and rawget(q, 'lost')
  if not lost or not next(lost) then
    return
  end
  q.lost = nil
  for id in pairs(lost) do
    damaged.set_aside(q, id, q.heads[id])
  end
  apply_pending(q)
end

-- Whether the record of a job cannot be read, or the job has failed because of that.
function damaged.is_bad(q, id, head)
  if head[HEAD.REASON] == BAD_RECORD or ENDS[head[HEAD.STATE]] then
    return head[HEAD.REASON] == BAD_RECORD
  end
  load_records(q, { id })
  return not damaged.tail_is_valid(q.records[id])
end

-- Fails those of the jobs {queue, id, ...} whose tail, which only clients read, is damaged. For calls that change jobs.
function damaged.check(queues, items)
  for _, item in ipairs(items) do
    local q, id = queues[item[1]], item[2]
    local head = head_of(q, id)
    if head and not ENDS[head[HEAD.STATE]] and damaged.is_bad(q, id, head) then
      damaged.set_aside(q, id, head)
      apply_pending(q)
    end
  end
end
