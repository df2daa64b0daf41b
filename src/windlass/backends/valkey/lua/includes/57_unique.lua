-- Unique keys: what an add under a held key is answered, and when a key is free again.

-- LEFT: what the holder did not take of the add that replaced its data.
local ENTRY = { HOLDER = 1, UNTIL = 2, REQUEST = 3, LEFT = 4 }

-- Who holds a key, or nil. `any`: also when its time has passed.
function unique.get(q, key, any)
  local packed = redis.call('HGET', q.K, key)
  local entry = packed and damaged.unpacked(packed, nil)
  return entry and (any or entry[ENTRY.UNTIL] < 0 or entry[ENTRY.UNTIL] > q.now) and entry or nil
end

function unique.put(q, key, entry)
  redis.call('HSET', q.K, key, cmsgpack.pack(entry))
  redis.call('ZADD', q.Y, 0, key)
  if entry[ENTRY.UNTIL] >= 0 then
    redis.call('ZADD', q.E, text(entry[ENTRY.UNTIL]), key)
  else
    redis.call('ZREM', q.E, key)
  end
end

function unique.drop(q, key)
  redis.call('HDEL', q.K, key)
  redis.call('ZREM', q.Y, key)
  redis.call('ZREM', q.E, key)
end

-- Until when a key is held that is taken now; -1: until its holder lets it go.
function unique.until_of(q, wanted)
  local timed = wanted[UNIQUE.TTL] >= 0 and wanted[UNIQUE.MODE] ~= MODE.DEBOUNCE
  return timed and q.now + wanted[UNIQUE.TTL] or -1
end

-- A job takes its key.
function unique.take(q, id, wanted)
  unique.put(q, wanted[UNIQUE.KEY], { id, unique.until_of(q, wanted), '' })
end

-- A job ended, goes, or started: it holds its key no more.
function unique.free(q, id, head)
  local wanted = unique.of(head[HEAD.OPTIONS])
  if wanted and wanted[UNIQUE.MODE] ~= MODE.THROTTLE then
    local entry = unique.get(q, wanted[UNIQUE.KEY], true)
    if entry and entry[ENTRY.HOLDER] == id then
      unique.drop(q, wanted[UNIQUE.KEY])
    end
  end
end

function unique.started(q, id, head)
  local wanted = unique.of(head[HEAD.OPTIONS])
  if wanted and wanted[UNIQUE.MODE] == MODE.UNTIL_START then
    unique.free(q, id, head)
  end
end

-- A finished job that is retried by hand takes its key, unless another job has it.
function unique.take_again(q, id, head)
  local wanted = unique.of(head[HEAD.OPTIONS])
  if wanted and wanted[UNIQUE.MODE] ~= MODE.THROTTLE and wanted[UNIQUE.MODE] ~= MODE.DEBOUNCE and wanted[UNIQUE.MODE] ~= MODE.UNTIL_START then
    if not unique.get(q, wanted[UNIQUE.KEY]) then
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
  local entry = unique.get(q, wanted[UNIQUE.KEY])
  if not entry then
    return 'new'
  end
  local mode, holder = wanted[UNIQUE.MODE], head_of(q, entry[ENTRY.HOLDER])
  if entry[ENTRY.UNTIL] < 0 and holder and damaged.is_bad(q, entry[ENTRY.HOLDER], holder) then
    return 'new' -- it never runs, and a record that cannot be read does not show that it held this key
  end
  if mode ~= MODE.DEBOUNCE and mode ~= MODE.KEEP_LAST then
    return 'duplicate', entry, holder
  elseif not holder or ENDS[holder[HEAD.STATE]] then
    return 'new'
  elseif request_id ~= '' and request_id == entry[ENTRY.REQUEST] then
    return 'replaced', entry, holder
  elseif holder[HEAD.STATE] ~= STATE.ACTIVE then
    return 'replace', entry, holder
  end
  return mode == MODE.KEEP_LAST and 'follow' or 'new', entry, holder
end

-- The id of the job whose key will answer instead of a new one ('': none), and its state.
function unique.predict_add(q, wanted, request_id)
  local verdict, entry, holder = unique.decide(q, wanted, request_id)
  if verdict == 'new' or verdict == 'follow' then
    return '', 0
  end
  return entry[ENTRY.HOLDER], holder and holder[HEAD.STATE] or 0
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

-- What a pending job will not take of a later add: what it has used already, because it ran; no new dependencies, and not a
-- group that is full.
function unique.not_taken(q, head, job, wanted)
  local ran, group, left = head[HEAD.DELIVERIES] > 0, groups.named(job[JOB.OPTIONS]), {}
  if job[JOB.WAITS] == 1 then
    left[1] = 'depends_on'
  end
  if group ~= groups.of(head) then
    local full = group and not groups.refuses_rank(q, group, job) and groups.free(q, group) == 0
    left[#left + 1] = (ran or full) and 'group' or nil
  end
  if ran and wanted[UNIQUE.MODE] ~= MODE.DEBOUNCE and (job[JOB.RUN_AT] >= 0 or job[JOB.DELAY] > 0) then
    left[#left + 1] = job[JOB.RUN_AT] >= 0 and 'run_at' or 'delay'
  end
  if ran and job[JOB.EXPIRES_IN] >= 0 then
    left[#left + 1] = 'expires_in'
  end
  return left
end

-- Whether the group of a later add is among what is not taken of it.
function unique.keeps_group(left)
  return left[1] == 'group' or left[2] == 'group'
end

-- The options of a later add; `left`: what is not taken of it.
function unique.merged(old, new, left)
  local options = { unpack(new) }
  if unique.keeps_group(left) then
    options[OPTION.GROUP], options[OPTION.COST] = old[OPTION.GROUP], old[OPTION.COST]
  end
  return options
end

-- A pending job takes all that a later add says, but what is `left`. It keeps its place in line, unless priority, lifo or
-- group are others now.
function unique.replace(q, id, head, job, tail, left)
  local before, old = groups.of(head), head[HEAD.OPTIONS]
  load_records(q, { id })
  q.records[id] = unique.spliced(q.records[id], tail)
  put(q.hset, q.j, id, q.records[id])
  leave(q, id, head)
  head[HEAD.TASK], head[HEAD.OPTIONS] = job[JOB.TASK], unique.merged(old, job[JOB.OPTIONS], left)
  note(q, EVENT.CHANGED, id, head, 'replaced')
  local moves = groups.of(head) ~= before
  if moves and head[HEAD.STATE] == STATE.PARKED then
    line.count_time(q, head)
    head[HEAD.STATE] = STATE.WAITING -- the new group decides
    note(q, EVENT.PROMOTED, id, head)
  end
  if moves or job[JOB.PRIORITY] ~= head[HEAD.PRIORITY] or job[JOB.LIFO] ~= old[OPTION.LIFO] then
    head[HEAD.PRIORITY], head[HEAD.PLACE] = job[JOB.PRIORITY], fresh_place(q, head)
  end
  unique.replace_times(q, id, head, job)
  update_group(q)
  if moves and before then
    groups.advance(q, groups.get(q, before), STEP)
  end
end

-- The part of `unique.replace` that is about times; the job is in no index, and enters the one where it belongs now.
function unique.replace_times(q, id, head, job)
  local ran, total = head[HEAD.DELIVERIES] > 0, line.total_of(job[JOB.OPTIONS])
  if ran then
    head[HEAD.EXPIRES] = total and q.now + total or 0
  else
    head[HEAD.EXPIRES] = line.first_deadline(job, q.now)
  end
  enter(q, id, head)
  apply_pending(q) -- but not filed: the delay may be changed, too
  local debounced = unique.of(job[JOB.OPTIONS])[UNIQUE.MODE] == MODE.DEBOUNCE
  if head[HEAD.STATE] == STATE.SUSPENDED or (ran and not debounced) then
    return
  end
  local due = line.first_due(job, q.now)
  if debounced or head[HEAD.DUE] ~= (due > q.now and due or 0) then
    line.change_delay(q, id, head, due - q.now)
  end
end

-- An add that is a duplicate prolongs the time of its key, if it says so; `said`: the key as its client stores it.
function unique.extend(q, said, wanted, entry)
  if said and said.extend and wanted[UNIQUE.TTL] >= 0 and entry[ENTRY.UNTIL] >= 0 then
    entry[ENTRY.UNTIL] = q.now + wanted[UNIQUE.TTL]
    unique.put(q, wanted[UNIQUE.KEY], entry)
  end
end

-- The answer to an add whose key is held, or nil and the id of the running job that the new one is to follow.
function unique.answer(q, job, tail, wanted)
  local _, meta = cmsgpack.unpack_one(tail, 4)
  local request_id = meta[1] == 1 and job[JOB.ID] or meta[1]
  make_visible(q)
  local verdict, entry, holder = unique.decide(q, wanted, request_id)
  if verdict == 'new' or verdict == 'follow' then
    return nil, verdict == 'follow' and entry[ENTRY.HOLDER] or nil
  end
  local id = entry[ENTRY.HOLDER]
  if verdict == 'duplicate' then
    unique.extend(q, meta[3].unique, wanted, entry)
    if not holder then
      note_run(q, EVENT.DEDUPLICATED, id, job[JOB.TASK])
      return { ADDED.DUPLICATE, 0, 0, 0 }
    end
    note(q, EVENT.DEDUPLICATED, id, holder)
  elseif verdict == 'replace' then
    local left = unique.not_taken(q, holder, job, wanted)
    local group = unique.keeps_group(left) and groups.of(holder) or groups.named(job[JOB.OPTIONS])
    if group and groups.refuses_rank(q, group, job) then
      return { ADDED.OUT_OF_ORDER, 0, 0, 0 }
    end
    unique.replace(q, id, holder, job, tail, left)
    entry = { id, unique.until_of(q, wanted), request_id, left }
    unique.put(q, wanted[UNIQUE.KEY], entry)
  end
  apply_pending(q)
  local outcome = verdict == 'duplicate' and ADDED.DUPLICATE or ADDED.REPLACED
  local left = outcome == ADDED.REPLACED and entry[ENTRY.LEFT] or {}
  return { outcome, holder[HEAD.STATE], holder[HEAD.ENQUEUED], holder[HEAD.DUE], view(q, id), left }
end
