-- Removing the event log of a queue without changes for a day.

local QUIET_MS = 86400000

-- The number of the last event stays in the root, so numbers are not used again.
function sweep.drop_quiet_events(q)
  local newest = redis.call('XREVRANGE', q.v, '+', '-', 'COUNT', 1)[1]
  if newest then
    local ok, _, at_ms = pcall(cmsgpack.unpack_one, newest[2][2], 1)
    if not ok or type(at_ms) ~= 'number' or at_ms <= q.now - QUIET_MS then
      redis.call('HSET', q.root, 'ev0', redis.call('HGET', q.root, 'ev') + 1)
      redis.call('UNLINK', q.v)
    end
  end
end
