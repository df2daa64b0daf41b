-- retry: puts finished jobs back with a fresh budget; makes retrying ones ready now.
-- KEYS: queue roots
-- ARGV: now or '', packed {{queue, id}, ...}
-- returns: status, one of CHANGED, and state of every job
-- emits: enqueued, promoted
local items = cmsgpack.unpack(args[2])
local queues = open_all(keys, now_from(args[1]))
local answer = {}
turn.load_items(queues, items)
damaged.check(queues, items)
for _, item in ipairs(items) do
  local q, id = queues[item[1]], item[2]
  local head = q.heads[id]
  local status = head and changes.retry(q, id, head) or CHANGED.NOT_FOUND
  settle_down(q)
  answer[#answer + 1] = status
  answer[#answer + 1] = head and head[HEAD.STATE] or 0
end
close_all(queues)
return answer
