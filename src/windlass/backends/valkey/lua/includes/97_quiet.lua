-- What goes when nothing happened in a queue for a day.

local QUIET_MS = 86400000

-- The event log as a whole; the numbers of its events live in the root and never come again.
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
