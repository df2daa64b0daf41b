-- flow_open: what jobs wait for.
-- KEYS: queue roots
-- ARGV: packed {{queue, id}, ...}
-- returns: per job {sequence or 0, child <queue>:<id>, ...}
-- flags: no-writes
local items = cmsgpack.unpack(args[1])
local queues = open_all(keys, 0)
local answer = {}
turn.load_items(queues, items)
for index, item in ipairs(items) do
  local q, id = queues[item[1]], item[2]
  answer[index] = redis.call('SMEMBERS', q.root .. ':O:' .. id)
  table.insert(answer[index], 1, q.heads[id] and q.heads[id][HEAD.SEQ] or 0)
end
return answer
