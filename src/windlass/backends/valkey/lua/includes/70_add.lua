-- Adding jobs: the answer for an id that exists, and the creation of new records.
--
-- A record in :j is the length of its head (2 bytes), the head, and the tail as the client sent it: the length of its meta
-- (4 bytes), meta (request id or 1 if it is the job id, codec, options), payload. The records of plain jobs are described in
-- `15_plain.lua`; their tail is the same.

local adds = {}

-- Reads the existing jobs among `ids`. Most ids are new, so records are read before heads.
function adds.load_known(q, ids)
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

function adds.prepare_ids(q, ids)
  q.plain, q.kept, q.stubs = {}, {}, stubs.read(q, ids)
  adds.load_known(q, ids)
  if redis.call('EXISTS', q.k) == 1 then
    local scores = read('ZMSCORE', q.k, ids)
    for at, id in ipairs(ids) do
      q.kept[id] = scores[at] and tonumber(scores[at])
    end
  end
end

-- Reads what is stored under the ids of a batch.
function adds.prepare_add(queues, jobs)
  local ids = {}
  for _, job in ipairs(jobs) do
    local list = ids[job[JOB.QUEUE]] or {}
    list[#list + 1] = job[JOB.ID]
    ids[job[JOB.QUEUE]] = list
  end
  for index, list in pairs(ids) do
    adds.prepare_ids(queues[index], list)
  end
end

-- The id of the request that added a job; nil if its record cannot be read.
function adds.request_id_of(q, id)
  load_records(q, { id })
  if not damaged.tail_is_valid(q.records[id]) then
    return nil
  end
  local stored = q.records[id]
  local _, meta = cmsgpack.unpack_one(stored, tail_at(stored) + 3)
  return meta[1] == 1 and id or meta[1]
end

-- The outcome of adding the id of an existing job. QUEUED: it is the same request again; nil: a new job replaces it.
function adds.outcome_of(q, id, head, request_id)
  if request_id ~= '' and request_id == adds.request_id_of(q, id) then
    return ADDED.QUEUED
  end
  local kept = options_of(head)[OPTION.KEEP_ID]
  if not ENDS[head[HEAD.STATE]] or (kept >= 0 and head[HEAD.ENQUEUED] + kept > q.now) then
    return ADDED.DUPLICATE
  end
  return head[HEAD.STATE] == STATE.COMPLETED and head[HEAD.RESULT_UNTIL] > q.now and ADDED.CACHED or nil
end

-- The answer for an existing job; nil if a new job replaces it. `made`: another mention of the id in the same request created
-- it, so it is not replaced.
function adds.answer_known(q, id, head, tail, made)
  local _, meta = cmsgpack.unpack_one(tail, 4)
  local outcome = adds.outcome_of(q, id, head, meta[1] == 1 and id or meta[1]) or (made and ADDED.DUPLICATE)
  if not outcome then
    return nil
  elseif outcome == ADDED.QUEUED then
    return { outcome, head[HEAD.STATE], head[HEAD.ENQUEUED], head[HEAD.DUE] }
  end
  note(q, EVENT.DEDUPLICATED, id, head)
  apply_pending(q)
  return { outcome, head[HEAD.STATE], head[HEAD.ENQUEUED], head[HEAD.DUE], q.heads[id] and view(q, id) or stubs.view(q, id) }
end

function adds.put_plain(q, seq, id)
  local size = #q.plain
  q.plain[size + 1], q.plain[size + 2] = text(seq), id
end

-- Creates a job with sequence `seq`. `after`: when the job was added that it replaces, or 0. `follows`: the id of a running job
-- that it waits for.
function adds.create(q, job, tail, after, seq, follows)
  local id, task, priority = job[JOB.ID], job[JOB.TASK], job[JOB.PRIORITY]
  local now = after > 0 and math.max(q.now, after + 1) or q.now
  local due = line.first_due(job, now)
  local wanted = unique.of(job[JOB.OPTIONS])
  local later = due > now
  local lifo = job[JOB.LIFO] == 1
  local head = {
    later and STATE.SCHEDULED or STATE.WAITING, seq, lifo and -seq or 0, priority, now, later and due or 0, later and due or 0,
    line.first_deadline(job, now), task, job[JOB.OPTIONS],
  }
  local packed = cmsgpack.pack(head)
  local stored = struct.pack('>I2', #packed) .. packed .. tail
  put(q.hset, q.j, id, stored)
  q.heads[id], q.fresh[id], q.records[id], q.members[id], q.ready = nil, nil, nil, nil, true
  q.added = q.added or {}
  q.added[id] = true
  if wanted then
    unique.take(q, id, wanted)
  end
  if follows then
    return flow.create_behind(q, job, stored, seq, follows)
  elseif (job[JOB.KIND] or 0) > 0 or groups.of(head) or line.turns(q) then
    return flow.create(q, job, stored, seq, later, job[JOB.KIND] == 2)
  end
  indexes.add_top(q, id, head)
  if head[HEAD.EXPIRES] ~= 0 then
    put(q.zadd, q.z, head[HEAD.EXPIRES], member_of(q, id, head))
  end
  if not later and priority == 0 and not lifo then
    adds.put_plain(q, seq, id)
  else
    put(q.zadd, q.i, seq, id)
    if later then
      put(q.zadd, q.d, due, member_of(q, id, head))
    else
      head[HEAD.PLACE] = lifo and -seq or seq
      put(q.zadd, q.w, 0 - priority, line.member(id, head))
    end
  end
  count(q, 'enqueued', task)
  if later then
    note(q, EVENT.SCHEDULED, id, head, due)
  else
    note_run(q, EVENT.ENQUEUED, id, task)
  end
  return (later or now ~= q.now) and { ADDED.QUEUED, head[HEAD.STATE], now, head[HEAD.DUE] } or 0
end

-- The answer for a job that its key or group keeps out; or nil and, if it must wait for a running job, the id of that.
function adds.kept_out(q, job, tail, seq)
  local wanted, answer, follows = unique.of(job[JOB.OPTIONS]), nil, nil
  if wanted then
    answer, follows = unique.answer(q, job, tail, wanted, seq)
  end
  local group = not answer and groups.named(job[JOB.OPTIONS])
  if group and groups.refuses_rank(q, group, job) then
    answer = { ADDED.OUT_OF_ORDER, 0, 0, 0 }
  elseif group and groups.free(q, group) == 0 then
    answer = { ADDED.REFUSED, 0, 0, 0 }
  end
  return answer, follows
end

function adds.add_one(q, job, tail, seq)
  local id = job[JOB.ID]
  if job[JOB.OUT] == 1 then
    return adds.kept_out(q, job, tail, seq) or { ADDED.REFUSED, 0, 0, 0 }
  end
  if q.added and q.added[id] then -- twice in one batch: make the first one readable
    make_visible(q)
  end
  local head, answer, follows, after = head_of(q, id), nil, nil, 0
  local stub, made = not head and q.stubs and q.stubs[id], job[JOB.OUT] == 2
  if head then
    answer = adds.answer_known(q, id, head, tail, made)
  elseif stub then
    q.records[id] = stub.record
    answer = adds.answer_known(q, id, stub.head, tail, made)
    q.records[id] = nil
  elseif made or (q.kept[id] or 0) > q.now then
    note_run(q, EVENT.DEDUPLICATED, id, job[JOB.TASK])
    return { ADDED.DUPLICATE, 0, 0, 0 }
  end
  if not answer then
    answer, follows = adds.kept_out(q, job, tail, seq)
  end
  if answer then
    return answer
  end
  if head then
    after = head[HEAD.ENQUEUED]
    remove(q, id, head)
    apply_pending(q)
  elseif stub then
    after, q.stubs[id] = stub.head[HEAD.ENQUEUED], nil
    stubs.remove(q, id)
  end
  return adds.create(q, job, tail, after, seq, follows)
end
