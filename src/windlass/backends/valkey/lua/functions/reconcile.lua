-- reconcile: releases leases that a worker does not hold, to their old places.
-- KEYS: queue root
-- ARGV: now or '', packed {worker, held tokens, how many active jobs to skip}
-- returns: leases released, active jobs to skip next time (-1: there is no more), queues whose outbox got entries
-- emits: released, cancelled
-- flags: allow-oom
local q = open(keys[1], now_from(args[1]))
local request = cmsgpack.unpack(args[2])
local held = {}
for _, token in ipairs(request[2]) do
  held[token] = true
end
local members = redis.call('ZRANGE', q.a, request[3], request[3] + STEP - 1)
table.sort(members) -- by sequence
local ids = {}
for index, member in ipairs(members) do
  ids[index] = id_of(member)
end
load(q, ids)
local given = 0
for _, id in ipairs(ids) do
  local head = q.heads[id]
  if head and head[HEAD.WORKER] == request[1] and not held[head[HEAD.TOKEN]] then
    give_back(q, id, head)
    given = given + 1
  end
end
local queues = close(q)
return { given, #members == STEP and request[3] + STEP - given or -1, flow.open_outboxes(queues) }
