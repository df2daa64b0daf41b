-- Jobs that find their worker waiting: `add_alone` leases them and notifies the worker, which need not ask.
--
-- A worker with nothing to do that found nothing to claim takes a seat. The next plain job that is added, alone and
-- while no other job waits, is leased to it under the token <claim id>.g.0 and published on the worker's own channel,
-- root:to:<worker>. A seat is good for one job. Who does not listen any more is given none. With its next claim a worker
-- leaves its seat and receives what it was given there, since a message may be lost.
--   :Z      zset    workers in their seats: score since when
--   :U      hash    worker -> its seat, until it leaves: lease (6 bytes), length and text of the claim id (1 + n), then the
--                   id of the job that it was given there, if any
--
-- A message is: time (6 bytes), length and text of the claim id (1 + n), of the job's id (2 + n), its record.

local SEATS_TRIED, SEATS_KEPT = 3, 1000
local SEAT_FORMAT = '>I6Bc0'

local handoff = {}

-- Gives the plain job `id` to the worker that has waited longest; returns the worker, its token and its lease, or nil.
function handoff.give(root, id, record, now)
  for _ = 1, SEATS_TRIED do
    local worker = redis.call('ZPOPMIN', root .. ':Z')[1]
    if not worker then
      return nil
    end
    local seat = redis.call('HGET', root .. ':U', worker)
    if seat then
      local lease_ms, claim_id = struct.unpack(SEAT_FORMAT, seat)
      local told = struct.pack('>I6Bc0I2c0', now, #claim_id, claim_id, #id, id) .. record
      if redis.call('SPUBLISH', root .. ':to:' .. worker, told) > 0 then
        redis.call('HSET', root .. ':U', worker, seat .. id)
        return worker, claim_id .. SEAT.GIVEN, lease_ms
      end
      redis.call('HDEL', root .. ':U', worker)
    end
  end
end

-- The worker of a claim leaves its seat: `claim.seat` says which. What it was given there becomes the first job of
-- the claim, leased anew.
function handoff.leave(q, claim)
  local seat = redis.call('HGET', q.U, claim.worker)
  if not seat then
    return
  end
  local lease_ms, claim_id, after = struct.unpack(SEAT_FORMAT, seat)
  local id = seat:sub(after)
  claim.seat = claim_id
  redis.call('HDEL', q.U, claim.worker)
  redis.call('ZREM', q.Z, claim.worker)
  local head = id ~= '' and head_of(q, id)
  if head and head[HEAD.STATE] == STATE.ACTIVE and head[HEAD.TOKEN] == claim_id .. SEAT.GIVEN then
    redis.call('ZADD', q.a, text(q.now + lease_ms), member_of(q, id, head))
    note_pick(claim, q, id)
  end
end

-- The worker of a claim takes a seat, if nothing is left for it and it may have one job more; whether it did.
function handoff.take(q, claim, limit)
  if q.paused or q.own or not claim.fits or #claim.id > 200 or claim.count >= limit then
    return false
  end
  redis.call('ZADD', q.Z, text(q.now), claim.worker)
  redis.call('HSET', q.U, claim.worker, struct.pack(SEAT_FORMAT, claim.lease_ms, #claim.id, claim.id))
  return true
end

-- Seats are only a shorter way: when they become too many, those whose workers are gone among them, all are cleared.
function handoff.prune(q)
  if redis.call('HLEN', q.U) > SEATS_KEPT then
    redis.call('UNLINK', q.Z, q.U)
  end
end
