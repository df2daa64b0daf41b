-- purge: removes jobs of a queue by state, oldest first; can remove the queue itself.
-- KEYS: queue root
-- ARGV: now or '', packed {{state, ...}, grace, limit, force, forget}
-- returns: 1 if the queue has more groups to remove (call again), queues whose outbox got entries, then ids of removed jobs
-- emits: removed
-- flags: allow-oom
local q = open(keys[1], now_from(args[1]))
local states, grace, limit, force, forget = unpack(cmsgpack.unpack(args[2]))
local found, ids = {}, {}
for _, state in ipairs(states) do
  local part = {}
  if ENDS[state] then
    sweep.oldest_finished(q, state, q.now - grace, limit, part)
  elseif state ~= STATE.ACTIVE or force == 1 then
    sweep.oldest_pending(q, state, q.now - grace, limit, part)
  end
  for _, one in ipairs(part) do
    found[#found + 1] = one
  end
end
table.sort(found, function(one, two)
  return one[1] < two[1] or (one[1] == two[1] and one[2] < two[2])
end)
local seen = {} -- an unreadable job may be found in two states: it was failed meanwhile
for at = 1, #found do
  local id = found[at][3]
  if #ids < limit and not seen[id] then
    seen[id], ids[#ids + 1] = true, id
  end
end
load(q, ids)
for _, id in ipairs(ids) do
  remove(q, id, q.heads[id])
  q.done = true
end
apply_pending(q)
local more = 0
if forget == 1 and redis.call('HLEN', q.j) == 0 then
  more = groups.forget_some(q) and 1 or 0
  if more == 0 then
    redis.call('HDEL', q.root, 'paused', 'known', 'revoked')
    local last = redis.call('HGET', q.root, 'ev')
    if last then
      redis.call('HSET', q.root, 'ev0', last + 1)
    end
    redis.call('UNLINK', q.v)
    schedules.forget(q)
    redis.call('UNLINK', q.K, q.Y, q.E, q.Z, q.U, q.M, q.n)
    limits.forget(q)
  end
end
local queues = close(q) -- the log starts again with the events of this call
table.insert(ids, 1, flow.open_outboxes(queues))
table.insert(ids, 1, more)
return ids
