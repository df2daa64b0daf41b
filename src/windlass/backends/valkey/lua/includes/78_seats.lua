-- Jobs that find their worker waiting: `add_plain` leases them and tells the worker, which need not ask.
--
-- A worker with nothing to do that found nothing to claim takes a seat. The next plain job that is added, alone and
-- while nobody else waits, is leased to it under the token <claim id>.g.0 and told on the worker's own channel,
-- root:to:<worker>. A seat is good for one job. Who does not listen any more is given none. With its next claim a worker
-- leaves its seat and hears of what it was given there, since a message may be lost.
--   :Z      zset    workers in their seats: score since when
--   :U      hash    worker -> packed {claim id, lease, id of the job that it was given or ''}, until it leaves
--
-- A message is: time (6 bytes), length and text of the claim id (1 + n), of the job's id (2 + n), its record.

local SEATS_TRIED, SEATS_KEPT = 3, 1000

local seats = {}

-- Whether a job that is added now may start at once: nothing holds the queue, and nobody is before it.
function seats.are_next(q)
  local marks = limits.marks(q)
  if marks.paused or marks.own or marks.has_groups or marks.turns then
    return false
  end
  return #unpicked(q, 2) == 1 and redis.call('EXISTS', q.w) == 0
end

-- Offers the plain job `id`, which this call added, to whoever has waited longest.
function seats.offer(q, id, record)
  local workers = redis.call('ZRANGE', q.Z, 0, SEATS_TRIED - 1)
  if #workers == 0 or not seats.are_next(q) then
    return
  end
  for _, worker in ipairs(workers) do
    local packed = redis.call('HGET', q.U, worker)
    local seat = packed and cmsgpack.unpack(packed) or { '', 0 }
    local told = struct.pack('>I6Bc0I2c0', q.now, #seat[1], seat[1], #id, id) .. record
    redis.call('ZREM', q.Z, worker)
    if packed and redis.call('SPUBLISH', q.root .. ':to:' .. worker, told) > 0 then
      lease_plain(q, id, record, new_claim({ worker, seat[2], seat[1] .. '.g' }, q.now))
      note(q, E_DRAINED, '')
      redis.call('HSET', q.U, worker, cmsgpack.pack({ seat[1], seat[2], id }))
      q.ready = false
      return
    end
    redis.call('HDEL', q.U, worker)
  end
end

-- The worker of a claim leaves its seat: `claim.seat` tells which. What it was given there becomes the first job of
-- the claim, leased anew.
function seats.leave(q, claim)
  local packed = redis.call('HGET', q.U, claim.worker)
  if not packed then
    return
  end
  local seat = cmsgpack.unpack(packed)
  local id = seat[3]
  claim.seat = seat[1]
  redis.call('HDEL', q.U, claim.worker)
  redis.call('ZREM', q.Z, claim.worker)
  local head = id ~= '' and head_of(q, id)
  if head and head[STATE] == ACTIVE and head[TOKEN] == seat[1] .. '.g.0' then
    redis.call('ZADD', q.a, text(q.now + seat[2]), member_of(q, id, head))
    note_pick(claim, q, id, false)
  end
end

-- The worker of a claim takes a seat, if nothing is left for it and it may have one job more; whether it did.
function seats.take(q, claim, limit)
  if q.paused or q.own or not claim.fits or #claim.id > 200 or #claim.ids >= limit then
    return false
  end
  redis.call('ZADD', q.Z, text(q.now), claim.worker)
  redis.call('HSET', q.U, claim.worker, cmsgpack.pack({ claim.id, claim.lease_ms, '' }))
  return true
end

-- Seats are only a shorter way: when they become too many, those whose workers are gone among them, all are cleared.
function seats.prune(q)
  if redis.call('HLEN', q.U) > SEATS_KEPT then
    redis.call('UNLINK', q.Z, q.U)
  end
end
