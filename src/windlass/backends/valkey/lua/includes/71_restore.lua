-- Restoring jobs. The rules of `windlass.engine.restoring`.

-- The unique key that a job holds when it is restored, or nil.
function adds.key_to_restore(q, head)
  local wanted = not ENDS[head[HEAD.STATE]] and unique.of(head[HEAD.OPTIONS])
  return wanted and unique.holds(q, head, wanted) and wanted or nil
end

-- The answer for a job that cannot be restored because of its id, key or group; nil if it can.
function adds.known_to_restore(q, job, head)
  local id = job[RESTORED.ID]
  if q.added and q.added[id] then -- twice in one batch: make the first one readable
    make_visible(q)
  end
  local known = head_of(q, id)
  local stub = not known and q.stubs and q.stubs[id]
  if stub then
    known, q.records[id] = stub.head, stub.record
  end
  if known then
    local same = adds.request_id_of(q, id) == job[RESTORED.REQUEST_ID]
    q.records[id] = not stub and q.records[id] or nil
    return { same and ADDED.QUEUED or ADDED.DUPLICATE, known[HEAD.STATE], known[HEAD.ENQUEUED], known[HEAD.DUE] }
  end
  local wanted = adds.key_to_restore(q, head)
  if (q.kept[id] or 0) > q.now or (wanted and unique.get(q, wanted[UNIQUE.KEY])) then
    return { ADDED.DUPLICATE, 0, 0, 0 }
  end
  local group = not ENDS[head[HEAD.STATE]] and groups.of(head)
  if group and groups.is_ordered(q, group) and groups.is_ranked(head) then
    return { ADDED.OUT_OF_ORDER, 0, 0, 0 }
  elseif group and groups.free(q, group) == 0 then
    return { ADDED.REFUSED, 0, 0, 0 }
  end
end

function adds.restore(q, job, tail, seq)
  local id, head = job[RESTORED.ID], job[RESTORED.HEAD]
  local answer = adds.known_to_restore(q, job, head)
  if answer then
    return answer
  end
  head[HEAD.SEQ], head[HEAD.PLACE] = seq, options_of(head)[OPTION.LIFO] == 1 and -seq or seq
  if not ENDS[head[HEAD.STATE]] then
    line.begin_time(q, head) -- its queue time before is unknown
  end
  local packed = cmsgpack.pack({ unpack(head, 1, HEAD.OPTIONS) })
  put(q.hset, q.j, id, struct.pack('>I2', #packed) .. packed .. tail)
  for key, value in pairs({ [q.r] = job[RESTORED.RESULT], [q.g] = job[RESTORED.PROGRESS], [q.e] = job[RESTORED.ERRORS] }) do
    if value ~= 0 then
      put(q.hset, key, id, value)
    end
  end
  if job[RESTORED.ERRORS] ~= 0 then
    put(q.zadd, q.J, seq, id)
  end
  if head[HEAD.SIGNALS] > 0 then
    redis.call('HSET', q.root .. ':S:' .. id, unpack(job[RESTORED.SIGNALS]))
  end
  q.heads[id], q.fresh[id], q.records[id], q.members[id] = head, nil, nil, nil
  q.added = q.added or {}
  q.added[id], q.joins[head] = true, true
  if not ENDS[head[HEAD.STATE]] then
    count(q, 'enqueued', head[HEAD.TASK])
    local wanted = adds.key_to_restore(q, head)
    if wanted then
      unique.take(q, id, wanted)
    end
  end
  note(q, EVENT.CHANGED, id, head, 'restored')
  put(q.zadd, q.i, seq, id)
  enter(q, id, head)
  update_group(q)
  return { ADDED.QUEUED, head[HEAD.STATE], head[HEAD.ENQUEUED], head[HEAD.DUE] }
end
