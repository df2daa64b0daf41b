-- Direct handoff: `add_alone` leases a job to an idle worker and publishes it, so that the worker need not claim.
--
-- An idle worker that found nothing to claim is registered. The next plain job that is added alone, while no other job waits,
-- is leased to it under the token <claim id>.g.0 and published on the worker's channel, root:to:<worker>. A registration is
-- good for one job. A worker without a subscriber on its channel gets none. The next claim of the worker ends its registration
-- and returns the job that was leased under it, since the message may be lost.
--   :Z      zset    registered workers: score since when
--   :U      hash    worker -> its registration, until it ends: lease (6 bytes), length and text of the claim id (1 + n), then
--                   the id of the job that was leased under it, if any
--
-- A message is: time (6 bytes), length and text of the claim id (1 + n), of the job's id (2 + n), its record.

local WORKERS_TRIED, REGISTRATIONS_KEPT = 3, 1000
local REGISTRATION_FORMAT = '>I6Bc0'

local handoff = {}

-- Assigns the plain job `id` to the worker that has been idle longest. Returns the worker, its token and its lease, or nil.
function handoff.assign(root, id, record, now)
  for _ = 1, WORKERS_TRIED do
    local worker = redis.call('ZPOPMIN', root .. ':Z')[1]
    if not worker then
      return nil
    end
    local registration = redis.call('HGET', root .. ':U', worker)
    if registration then
      local lease_ms, claim_id = struct.unpack(REGISTRATION_FORMAT, registration)
      local message = struct.pack('>I6Bc0I2c0', now, #claim_id, claim_id, #id, id) .. record
      if redis.call('SPUBLISH', root .. ':to:' .. worker, message) > 0 then
        redis.call('HSET', root .. ':U', worker, registration .. id)
        return worker, claim_id .. HANDOFF.GIVEN, lease_ms
      end
      redis.call('HDEL', root .. ':U', worker)
    end
  end
end

-- Ends the registration of the claiming worker; `claim.unregistered` is set to its claim id. A job that was leased under it
-- becomes the first job of the claim, with a new deadline.
function handoff.unregister(q, claim)
  local registration = redis.call('HGET', q.U, claim.worker)
  if not registration then
    return
  end
  local lease_ms, claim_id, after = struct.unpack(REGISTRATION_FORMAT, registration)
  local id = registration:sub(after)
  claim.unregistered = claim_id
  redis.call('HDEL', q.U, claim.worker)
  redis.call('ZREM', q.Z, claim.worker)
  local head = id ~= '' and head_of(q, id)
  if head and head[HEAD.STATE] == STATE.ACTIVE and head[HEAD.TOKEN] == claim_id .. HANDOFF.GIVEN then
    redis.call('ZADD', q.a, text(q.now + lease_ms), member_of(q, id, head))
    note_pick(claim, q, id)
  end
end

-- Registers the claiming worker, if the queue allows it and the claim has room for one more job; returns whether it did.
function handoff.register(q, claim, limit)
  if q.paused or q.own or not claim.fits or #claim.id > 200 or claim.count >= limit then
    return false
  end
  redis.call('ZADD', q.Z, text(q.now), claim.worker)
  redis.call('HSET', q.U, claim.worker, struct.pack(REGISTRATION_FORMAT, claim.lease_ms, #claim.id, claim.id))
  return true
end

-- Removes all registrations if there are too many, of which most must be of workers that are gone. Nothing depends on them.
function handoff.prune(q)
  if redis.call('HLEN', q.U) > REGISTRATIONS_KEPT then
    redis.call('UNLINK', q.Z, q.U)
  end
end
