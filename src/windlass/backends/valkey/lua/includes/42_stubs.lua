-- Stubs: what remains, for a minute, of jobs whose record was removed when they were settled. The rules of
-- `windlass.core.stubs`.
--
--   :M      hash    id -> packed {record without its payload, head, result or false}
--   :n      zset    ids: score when the job ended

local stubs = {}

-- Whether the record of a job with these options is removed when it completes.
function stubs.needed(options)
  return options[OPTION.RESULT_TTL] == 0
    and (options[OPTION.KEEP_COMPLETED] == 0 or options[OPTION.KEEP_COMPLETED_COUNT] == 0)
end

-- Notes that the record of a completed job may be replaced by a stub, after its dependents were notified.
function stubs.note(q, id, head)
  if stubs.needed(options_of(head)) then
    q.going = q.going or {}
    table.insert(q.going, { id, head })
  end
end

function stubs.forget(q, ids)
  if #ids > 0 then
    send('ZREM', q.n, ids)
    send('HDEL', q.M, ids)
  end
end

function stubs.put(q, id, head)
  load_records(q, { id })
  local stored, short = q.records[id], { unpack(head, 1, HEAD.REASON) }
  local at = tail_at(stored)
  local bare = stored:sub(1, at + 3 + struct.unpack('>I4', stored, at))
  local stub = { bare, cmsgpack.pack(short), q.inline[id] or redis.call('HGET', q.r, id) }
  redis.call('HSET', q.M, id, cmsgpack.pack(stub))
  redis.call('ZADD', q.n, text(q.now), id)
  drop(q, id, head)
end

-- Replaces the records of the noted jobs by stubs.
function stubs.drop(q)
  local going = q.going
  if not going then
    return
  end
  q.going = nil
  apply_pending(q)
  for _, one in ipairs(going) do
    stubs.put(q, one[1], one[2])
  end
  apply_pending(q)
  local many = redis.call('ZCARD', q.n) - KEPT.STUBS
  if many > 0 then
    stubs.forget(q, redis.call('ZRANGE', q.n, 0, math.min(many, 4 * STEP) - 1))
  end
end

function stubs.unpack(q, packed)
  local stub = packed and damaged.unpacked(packed, nil)
  local head = stub and damaged.head(cmsgpack.unpack, stub[2])
  if head and head[HEAD.FINISHED] + KEPT.STUB_MS > q.now then
    return { record = stub[1], packed = stub[2], head = head, result = stub[3] }
  end
end

-- The stubs of `ids`, by id.
function stubs.read(q, ids)
  local known = {}
  if redis.call('EXISTS', q.n) == 1 then
    local found = read('HMGET', q.M, ids)
    for at, id in ipairs(ids) do
      known[id] = stubs.unpack(q, found[at])
    end
  end
  return known
end

-- Head and result of the stub of `id`, or nil. Its record is put into q.records.
function stubs.head(q, id)
  local stub = stubs.read(q, { id })[id]
  if stub then
    q.records[id] = stub.record
    return stub.head, stub.result
  end
end

-- A stub as `view` returns a job; false if there is none.
function stubs.view(q, id, late)
  local stub = stubs.read(q, { id })[id]
  return stub and { id, stub.record, stub.packed, late and stub.result or false, false, false, false, false } or false
end

function stubs.remove(q, id)
  put(q.zrem, q.n, id)
  put(q.hdel, q.M, id)
end

-- Removes expired stubs.
function stubs.prune(q)
  stubs.forget(q, redis.call('ZRANGEBYSCORE', q.n, '-inf', text(q.now - KEPT.STUB_MS), 'LIMIT', 0, STEP))
end
