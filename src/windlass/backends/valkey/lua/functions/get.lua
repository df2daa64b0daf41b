-- get: reads jobs by id.
-- KEYS: queue roots
-- ARGV: now or '', packed {{queue, id}, ...}, 1 to return results whose time to live has passed
-- returns: per job a view {id, record, head, result, progress, errors, lease deadline, signals}, or nil
-- flags: no-writes
local items = cmsgpack.unpack(args[2])
local queues = open_all(keys, now_from(args[1]))
local answer = {}
batch.load_items(queues, items)
for index, item in ipairs(items) do
  local q = queues[item[1]]
  answer[index] = q.heads[item[2]] and view(q, item[2], args[3] == '1') or stubs.view(q, item[2], args[3] == '1')
end
return answer
