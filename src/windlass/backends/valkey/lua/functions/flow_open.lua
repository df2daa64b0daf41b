-- flow_open: the children that jobs wait for, or, of finished jobs that may be retried, those that did not complete.
-- KEYS: queue roots
-- ARGV: packed {1: children that did not complete, 0: those that are open; {{queue, id}, ...}}
-- returns: per job {sequence or 0, child <queue>:<id>, ...}
-- flags: no-writes
local missed, items = unpack(cmsgpack.unpack(args[1]))
local queues = open_all(keys, 0)
local answer = {}
batch.load_items(queues, items)
for index, item in ipairs(items) do
  local q, id = queues[item[1]], item[2]
  local head = q.heads[id]
  answer[index] = missed == 0 and redis.call('SMEMBERS', q.root .. ':O:' .. id) or {}
  for child in pairs(missed == 1 and head and changes.may_run_again(head) and flow.failed_edges(q, id) or {}) do
    table.insert(answer[index], child)
  end
  table.insert(answer[index], 1, head and head[HEAD.SEQ] or 0)
end
return answer
