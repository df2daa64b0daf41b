-- cancel: cancels pending jobs and asks the workers of active ones to stop. `dead`: a retrying job fails instead.
-- KEYS: queue roots
-- ARGV: now or '', packed {reason, {{queue, id}, ...}, dead: 0 or 1}
-- returns: one character per job, one of CANCEL, queues whose outbox got entries, then the workers to notify
-- emits: cancelled, cancelling, failed
-- flags: allow-oom
local request = cmsgpack.unpack(args[2])
local queues = open_all(keys, now_from(args[1]))
local statuses = {}
batch.load_items(queues, request[2])
damaged.check(queues, request[2])
for index, item in ipairs(request[2]) do
  statuses[index] = changes.cancel(queues[item[1]], item[2], request[1], request[3] == 1)
end
close_all(queues)
local answer = { table.concat(statuses), flow.open_outboxes(queues) }
for _, q in ipairs(queues) do
  for worker in pairs(q.workers) do
    answer[#answer + 1] = worker
  end
end
return answer
