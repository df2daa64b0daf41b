-- Unique keys: the answer to an add whose key is held, and when a key is freed. The rules of `windlass.core.unique_rules`.

-- An entry of :K: id of the holder, until when (-1: no time), and for an add that replaced the holder's data its request id and
-- the options that were not taken.
local ENTRY = { HOLDER = 1, UNTIL = 2, REQUEST = 3, LEFT = 4 }

-- The entry of a key that is held, or nil. With `any` also one whose time has passed.
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

-- Until when a key is held that is taken now; -1: until it is freed.
function unique.until_of(q, wanted)
  local timed = wanted[UNIQUE.TTL] >= 0 and wanted[UNIQUE.MODE] ~= MODE.DEBOUNCE
  return timed and q.now + wanted[UNIQUE.TTL] or -1
end

-- Makes a job the holder of its key.
function unique.take(q, id, wanted)
  unique.put(q, wanted[UNIQUE.KEY], { id, unique.until_of(q, wanted), '' })
end

-- The id of the job behind which `keep_last` keeps a job, or nil.
function unique.followed(q, id, wanted)
  if wanted[UNIQUE.MODE] ~= MODE.KEEP_LAST then
    return nil
  end
  local name, found, first = name_of(q) .. ':', nil, nil
  for _, child in ipairs(redis.call('SMEMBERS', q.root .. ':O:' .. id)) do
    local before = string.sub(child, 1, #name) == name and head_of(q, string.sub(child, #name + 1))
    local its = before and not ENDS[before[HEAD.STATE]] and unique.of(before[HEAD.OPTIONS])
    if its and its[UNIQUE.KEY] == wanted[UNIQUE.KEY] and its[UNIQUE.MODE] == MODE.KEEP_LAST and (not first or before[HEAD.SEQ] < first) then
      found, first = string.sub(child, #name + 1), before[HEAD.SEQ]
    end
  end
  return found
end

-- Frees the key of a job that has ended, is removed, or (`until_start`) has started. If `keep_last` kept it behind a job that has
-- not ended yet, that job holds the key again. `blocked`: the job was blocked before.
function unique.free(q, id, head, blocked)
  local wanted = unique.of(head[HEAD.OPTIONS])
  if wanted and wanted[UNIQUE.MODE] ~= MODE.THROTTLE then
    local entry = unique.get(q, wanted[UNIQUE.KEY], true)
    if entry and entry[ENTRY.HOLDER] == id then
      local before = blocked and unique.followed(q, id, wanted)
      if before then
        unique.put(q, wanted[UNIQUE.KEY], { before, entry[ENTRY.UNTIL], '' })
      else
        unique.drop(q, wanted[UNIQUE.KEY])
      end
    end
  end
end

-- Whether a job that is restored holds its key: the key is not free since the job started, nor by its time.
function unique.holds(q, head, wanted)
  local mode, ttl = wanted[UNIQUE.MODE], wanted[UNIQUE.TTL]
  if mode == MODE.UNTIL_START and head[HEAD.DELIVERIES] > 0 then
    return false
  end
  return ttl < 0 or mode == MODE.DEBOUNCE or head[HEAD.ENQUEUED] + ttl > q.now
end

function unique.started(q, id, head)
  local wanted = unique.of(head[HEAD.OPTIONS])
  if wanted and wanted[UNIQUE.MODE] == MODE.UNTIL_START then
    unique.free(q, id, head)
  end
end

-- Makes a retried job the holder of its key again, unless another job holds it.
function unique.take_again(q, id, head)
  local wanted = unique.of(head[HEAD.OPTIONS])
  if wanted and wanted[UNIQUE.MODE] ~= MODE.THROTTLE and wanted[UNIQUE.MODE] ~= MODE.DEBOUNCE and wanted[UNIQUE.MODE] ~= MODE.UNTIL_START then
    if not unique.get(q, wanted[UNIQUE.KEY]) then
      unique.take(q, id, wanted)
    end
  end
end

-- Removes keys whose time has passed; returns how many.
function unique.prune(q)
  local gone = redis.call('ZRANGEBYSCORE', q.E, '-inf', q.now, 'LIMIT', 0, STEP)
  for _, key in ipairs(gone) do
    unique.drop(q, key)
  end
  return #gone
end

-- What an add does: 'new', or, with the entry of the key and the head of its holder, 'duplicate', 'replace', 'replaced' (this
-- same request has replaced the data before) or 'follow' (add a job that waits for the holder).
function unique.decide(q, wanted, request_id)
  local entry = unique.get(q, wanted[UNIQUE.KEY])
  if not entry then
    return 'new'
  end
  local mode, holder = wanted[UNIQUE.MODE], head_of(q, entry[ENTRY.HOLDER])
  if entry[ENTRY.UNTIL] < 0 and holder and damaged.is_bad(q, entry[ENTRY.HOLDER], holder) then
    return 'new' -- the holder never runs, and its record does not show the key
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

-- The id of the job that answers instead of a new one ('': none), and its state.
function unique.predict_add(q, wanted, request_id)
  local verdict, entry, holder = unique.decide(q, wanted, request_id)
  if verdict == 'new' or verdict == 'follow' then
    return '', 0
  end
  return entry[ENTRY.HOLDER], holder and holder[HEAD.STATE] or 0
end

-- A record with the head and request id of `stored` and everything else of `tail`.
function unique.spliced(stored, tail)
  local at = tail_at(stored)
  local after_old = cmsgpack.unpack_one(stored, at + 4) -- after the request id, the first item of the array
  local after_new = cmsgpack.unpack_one(tail, 5)
  local meta_end = 4 + struct.unpack('>I4', tail)
  local meta = stored:sub(at + 4, after_old) .. tail:sub(after_new + 1, meta_end)
  return stored:sub(1, at - 1) .. struct.pack('>I4', #meta) .. meta .. tail:sub(meta_end + 1)
end

-- The options of a later add that a pending job does not take: dependencies, a full group, and for a job that has run group,
-- delay and `expires_in`.
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

-- Whether the group is among the options that are not taken.
function unique.keeps_group(left)
  return left[1] == 'group' or left[2] == 'group'
end

-- The options after a later add, without those in `left`, which are not taken.
function unique.merged(old, new, left)
  local options = { unpack(new) }
  if unique.keeps_group(left) then
    options[OPTION.GROUP], options[OPTION.COST] = old[OPTION.GROUP], old[OPTION.COST]
  end
  return options
end

-- Replaces data and options of a pending job by those of a later add, without the options in `left`. It keeps its place in line
-- unless priority, lifo or group change. A new place is `seq`, the number of the later add: jobs after it in its batch come later.
function unique.replace(q, id, head, job, tail, left, seq)
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
    q.next_place, q.last_place = seq, seq
    head[HEAD.PRIORITY], head[HEAD.PLACE] = job[JOB.PRIORITY], fresh_place(q, head)
  end
  q.next_place, q.last_place = seq, seq
  unique.replace_times(q, id, head, job)
  q.next_place = nil
  update_group(q)
  if moves and before then
    groups.advance(q, groups.get(q, before), STEP)
  end
end

-- The part of `unique.replace` for due time and deadline. The job is in no index before, and in the right one after.
function unique.replace_times(q, id, head, job)
  local ran, total = head[HEAD.DELIVERIES] > 0, line.total_of(job[JOB.OPTIONS])
  if ran then
    head[HEAD.EXPIRES] = total and q.now + total or 0
  else
    head[HEAD.EXPIRES] = line.first_deadline(job, q.now)
  end
  enter(q, id, head)
  apply_pending(q) -- not its group yet: the delay may change, too
  local debounced = unique.of(job[JOB.OPTIONS])[UNIQUE.MODE] == MODE.DEBOUNCE
  if head[HEAD.STATE] == STATE.SUSPENDED or (ran and not debounced) then
    return
  end
  local due = line.first_due(job, q.now)
  if debounced or head[HEAD.DUE] ~= (due > q.now and due or 0) then
    line.change_delay(q, id, head, due - q.now)
  end
end

-- Extends the time of a key after a duplicate add, if the add asks for it. `said` is the unique key as clients store it.
function unique.extend(q, said, wanted, entry)
  if said and said.extend and wanted[UNIQUE.TTL] >= 0 and entry[ENTRY.UNTIL] >= 0 then
    entry[ENTRY.UNTIL] = q.now + wanted[UNIQUE.TTL]
    unique.put(q, wanted[UNIQUE.KEY], entry)
  end
end

-- The answer to an add whose key is held; or nil and, if the new job must wait for a running one, the id of that.
function unique.answer(q, job, tail, wanted, seq)
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
    unique.replace(q, id, holder, job, tail, left, seq)
    entry = { id, unique.until_of(q, wanted), request_id, left }
    unique.put(q, wanted[UNIQUE.KEY], entry)
  end
  apply_pending(q)
  local outcome = verdict == 'duplicate' and ADDED.DUPLICATE or ADDED.REPLACED
  local left = outcome == ADDED.REPLACED and entry[ENTRY.LEFT] or {}
  return { outcome, holder[HEAD.STATE], holder[HEAD.ENQUEUED], holder[HEAD.DUE], view(q, id), left }
end
