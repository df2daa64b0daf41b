-- remove: removes jobs; active ones only by force.
-- KEYS: queue roots
-- ARGV: now or '', packed {force, {{queue, id}, ...}}
-- returns: queues whose outbox got entries, then status, one of CHANGED, and state per job
-- emits: removed
-- flags: allow-oom
local request = cmsgpack.unpack(args[2])
local queues = open_all(keys, now_from(args[1]))
local answer = { 0 }
batch.load_items(queues, request[2])
for _, item in ipairs(request[2]) do
  local q, id = queues[item[1]], item[2]
  local head = q.heads[id]
  local status = head and CHANGED.OK or CHANGED.NOT_FOUND
  if head and head[HEAD.STATE] == STATE.ACTIVE and request[1] == 0 then
    status = CHANGED.ILLEGAL
  end
  answer[#answer + 1] = status
  answer[#answer + 1] = head and head[HEAD.STATE] or 0
  if status == CHANGED.OK then
    remove(q, id, head)
    q.done = true
  end
end
close_all(queues)
answer[1] = flow.open_outboxes(queues)
return answer
