-- Unique keys: what an add under a held key is answered, and when a key is free again.

local HOLDER, KEY_UNTIL, KEY_REQUEST = 1, 2, 3

-- Who holds a key, or nil. `any`: also when its time has passed.
function unique.get(q, key, any)
  local packed = redis.call('HGET', q.K, key)
  local entry = packed and damaged.unpacked(packed, nil)
  return entry and (any or entry[KEY_UNTIL] < 0 or entry[KEY_UNTIL] > q.now) and entry or nil
end

function unique.put(q, key, entry)
  redis.call('HSET', q.K, key, cmsgpack.pack(entry))
  redis.call('ZADD', q.Y, 0, key)
  if entry[KEY_UNTIL] >= 0 then
    redis.call('ZADD', q.E, text(entry[KEY_UNTIL]), key)
  else
    redis.call('ZREM', q.E, key)
  end
end

function unique.drop(q, key)
  redis.call('HDEL', q.K, key)
  redis.call('ZREM', q.Y, key)
  redis.call('ZREM', q.E, key)
end

-- A job takes its key.
function unique.take(q, id, wanted)
  local timed = wanted[KEY_TTL] >= 0 and wanted[MODE] ~= DEBOUNCE
  unique.put(q, wanted[KEY], { id, timed and q.now + wanted[KEY_TTL] or -1, '' })
end

-- A job ended, goes, or started: it holds its key no more.
function unique.free(q, id, head)
  local wanted = unique.of(head[OPTIONS])
  if wanted and wanted[MODE] ~= THROTTLE then
    local entry = unique.get(q, wanted[KEY], true)
    if entry and entry[HOLDER] == id then
      unique.drop(q, wanted[KEY])
    end
  end
end

function unique.started(q, id, head)
  local wanted = unique.of(head[OPTIONS])
  if wanted and wanted[MODE] == UNTIL_START then
    unique.free(q, id, head)
  end
end

-- A finished job that is retried by hand takes its key, unless somebody else has it.
function unique.take_again(q, id, head)
  local wanted = unique.of(head[OPTIONS])
  if wanted and wanted[MODE] ~= THROTTLE and wanted[MODE] ~= DEBOUNCE and wanted[MODE] ~= UNTIL_START then
    if not unique.get(q, wanted[KEY]) then
      unique.take(q, id, wanted)
    end
  end
end

-- Forgets keys that are past their time; returns how many.
function unique.prune(q)
  local gone = redis.call('ZRANGEBYSCORE', q.E, '-inf', q.now, 'LIMIT', 0, STEP)
  for _, key in ipairs(gone) do
    unique.drop(q, key)
  end
  return #gone
end

-- What becomes of an add: 'new', or (with who holds the key, and its head) 'duplicate', 'replace', 'replaced'
-- (by this very request), 'follow' (a new job that waits for the holder).
function unique.decide(q, wanted, request_id)
  local entry = unique.get(q, wanted[KEY])
  if not entry then
    return 'new'
  end
  local mode, holder = wanted[MODE], head_of(q, entry[HOLDER])
  if entry[KEY_UNTIL] < 0 and holder and damaged.is_bad(q, entry[HOLDER], holder) then
    return 'new' -- it never runs, and a record that cannot be read does not tell that it held this key
  end
  if mode ~= DEBOUNCE and mode ~= KEEP_LAST then
    return 'duplicate', entry, holder
  elseif not holder or ENDS[holder[STATE]] then
    return 'new'
  elseif request_id ~= '' and request_id == entry[KEY_REQUEST] then
    return 'replaced', entry, holder
  elseif holder[STATE] ~= ACTIVE then
    return 'replace', entry, holder
  end
  return mode == KEEP_LAST and 'follow' or 'new', entry, holder
end

-- The id of the job whose key will answer instead of a new one ('': none), and its state.
function unique.foresee(q, wanted, request_id)
  local verdict, entry, holder = unique.decide(q, wanted, request_id)
  if verdict == 'new' or verdict == 'follow' then
    return '', 0
  end
  return entry[HOLDER], holder and holder[STATE] or 0
end

-- A record with the head and request id of `stored`, and all else of `tail`.
function unique.spliced(stored, tail)
  local at = tail_at(stored)
  local after_old = cmsgpack.unpack_one(stored, at + 4) -- of the request id, which is first in the array
  local after_new = cmsgpack.unpack_one(tail, 5)
  local meta_end = 4 + struct.unpack('>I4', tail)
  local meta = stored:sub(at + 4, after_old) .. tail:sub(after_new + 1, meta_end)
  return stored:sub(1, at - 1) .. struct.pack('>I4', #meta) .. meta .. tail:sub(meta_end + 1)
end

-- The options of a later add, with group, cost and key of the job that stays.
function unique.merged(old, new)
  local options = { unpack(new) }
  options[GROUP], options[COST], options[UNIQUE] = old[GROUP], old[COST], old[UNIQUE]
  return options
end

-- A pending job takes the data, task and options of a later add; one that is suspended keeps its due time.
function unique.replace(q, id, head, job, tail, due)
  load_records(q, { id })
  q.records[id] = unique.spliced(q.records[id], tail)
  put(q.hset, q.j, id, q.records[id])
  leave(q, id, head)
  head[TASK], head[OPTIONS] = job[3], unique.merged(head[OPTIONS], job[8])
  if job[4] ~= head[PRIORITY] then
    head[PRIORITY], head[PLACE] = job[4], fresh_place(q, head)
  end
  note(q, E_CHANGED, id, head, 'replaced')
  if due and head[STATE] == BLOCKED then
    head[DUE] = due
    note(q, E_CHANGED, id, head, 'delay')
  elseif due and head[STATE] ~= SUSPENDED then
    if head[STATE] == WAITING or head[STATE] == PARKED then
      head[STATE] = SCHEDULED
    end
    head[DUE], head[READY] = due, due
    note(q, E_SCHEDULED, id, head, due)
  end
  enter(q, id, head)
  file(q)
end

-- The answer to an add whose key is held, or nil and the id of the running job that the new one is to follow.
function unique.answer(q, job, tail, wanted)
  local _, meta = cmsgpack.unpack_one(tail, 4)
  local request_id = meta[1] == 1 and job[2] or meta[1]
  make_visible(q)
  local verdict, entry, holder = unique.decide(q, wanted, request_id)
  if verdict == 'new' or verdict == 'follow' then
    return nil, verdict == 'follow' and entry[HOLDER] or nil
  end
  local id = entry[HOLDER]
  if verdict == 'duplicate' then
    if not holder then
      note_run(q, E_DEDUPLICATED, id, job[3])
      return { 1, 0, 0, 0 }
    end
    note(q, E_DEDUPLICATED, id, holder)
  elseif verdict == 'replace' then
    local group = groups.of(holder)
    if group and groups.refuses_rank(q, group, job) then
      return { 5, 0, 0, 0 }
    end
    unique.replace(q, id, holder, job, tail, wanted[MODE] == DEBOUNCE and q.now + wanted[KEY_TTL] or nil)
    unique.put(q, wanted[KEY], { id, entry[KEY_UNTIL], request_id })
  end
  settle_down(q)
  return { verdict == 'duplicate' and 1 or 3, holder[STATE], holder[ENQUEUED], holder[DUE], view(q, id) }
end
