-- flow_edge: reads single edges.
-- KEYS: queue roots
-- ARGV: packed {1 with values, {{queue, dependent, its sequence, child <queue>:<id>}, ...}}
-- returns: per edge its bytes (see `55_flows.lua`), or nil
-- flags: no-writes
local valued, items = unpack(cmsgpack.unpack(args[1]))
local queues = open_all(keys, 0)
local answer = {}
batch.load_items(queues, items)
for index, item in ipairs(items) do
  local q, id = queues[item[1]], item[2]
  local stored = false
  if q.heads[id] and q.heads[id][HEAD.SEQ] == item[3] then
    stored = redis.call('HGET', q.root .. ':D:' .. id, item[4])
    if stored and valued == 0 then
      stored = stored:sub(1, 2 + struct.unpack('>I2', stored))
    end
  end
  answer[index] = stored
end
return answer
