-- recover: takes back expired leases, then fails expired pending jobs, earliest first over all queues.
-- KEYS: queue roots
-- ARGV: now or '', packed {limit of leases, limit of expired jobs}
-- returns: queues whose outbox got entries, then per job queue, id, 1 (waits again, or was cancelled), 0 (failed: stalled)
--          or 2 (failed: expired), deadline, sequence
-- emits: stalled, failed, cancelled
-- flags: allow-oom
local queues = open_all(keys, now_from(args[1]))
local leases, others = unpack(cmsgpack.unpack(args[2]))
local chosen = sweep.passed(queues, 'a', leases)
local answer = { 0 }
batch.load_items(queues, chosen.order)
for _, item in ipairs(chosen.order) do
  local q, id = queues[item[1]], item[2]
  local head = q.heads[id]
  if head then
    local alive = not ENDS[head[HEAD.STATE]] and recover(q, id, head) -- else it could not be read
    answer[#answer + 1] = item[1]
    answer[#answer + 1] = id
    answer[#answer + 1] = alive and 1 or 0
    answer[#answer + 1] = item[3]
    answer[#answer + 1] = head[HEAD.SEQ]
  end
end
for _, q in ipairs(queues) do
  apply_pending(q)
end
chosen = sweep.passed(queues, 'z', others)
batch.load_items(queues, chosen.order)
for index, q in ipairs(queues) do
  for _, member in ipairs(chosen[index]) do -- also of jobs that ran or were removed by an earlier release
    put(q.zrem, q.z, member)
  end
end
for _, item in ipairs(chosen.order) do
  local q, id = queues[item[1]], item[2]
  local head = q.heads[id]
  if head and line.is_expired(q, head) then
    for _, part in ipairs({ item[1], id, 2, item[3], head[HEAD.SEQ] }) do
      answer[#answer + 1] = part
    end
    expire(q, id, head)
  end
end
close_all(queues)
answer[1] = flow.open_outboxes(queues)
return answer
