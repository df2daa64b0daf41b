-- flow_look: reads the jobs that a new flow names.
-- KEYS: queue roots
-- ARGV: now or '', packed {{queue, id, request id, child <queue>:<id> or '', unique {key, mode} or 0,
--       group or 0, 1: has a priority or is lifo}, ...}
-- returns: per job {state or 0, what adding it would answer (see `73_add_flow.lua`), number of its edges, 1 if one of
--          them is to that child, id of the job that holds the unique key ('': none), its state or 0,
--          how many more jobs its group takes (-1: any number)}
-- flags: no-writes
local items = cmsgpack.unpack(args[2])
local queues = open_all(keys, now_from(args[1]))
local answer = {}
batch.load_items(queues, items)
for index, item in ipairs(items) do
  local q, id = queues[item[1]], item[2]
  local head, edges = q.heads[id] or stubs.head(q, id), q.root .. ':D:' .. id
  local holder, state = '', 0
  if item[5] ~= 0 then
    holder, state = unique.predict_add(q, item[5], item[3])
  end
  local room = item[6] ~= 0 and groups.free(q, item[6]) or -1
  if item[6] ~= 0 and item[7] == 1 and groups.is_ordered(q, item[6]) then
    room = 0
  end
  answer[index] = {
    head and head[HEAD.STATE] or 0, flow.predict_add(q, id, head, item[3]), redis.call('HLEN', edges),
    item[4] ~= '' and redis.call('HEXISTS', edges, item[4]) or 0, holder, state,
    room,
  }
end
return answer
