-- flow_edges: reads the edges of dependents, about 1,000 of each at a time, in no order.
-- KEYS: queue roots
-- ARGV: packed {1 with values, {{queue, id, cursor (0: from the start)}, ...}}
-- returns: per job {cursor to continue from (0: there is no more), child <queue>:<id>, edge (see `55_flows.lua`), ...}
-- flags: no-writes
local valued, items = unpack(cmsgpack.unpack(args[1]))
local answer = {}
for index, item in ipairs(items) do
  local page = redis.call('HSCAN', keys[item[1]] .. ':D:' .. item[2], item[3], 'COUNT', STEP)
  local rows = page[2]
  for at = 2, #rows, 2 do
    if valued == 0 then
      rows[at] = rows[at]:sub(1, 2 + struct.unpack('>I2', rows[at]))
    end
  end
  table.insert(rows, 1, page[1])
  answer[index] = rows
end
return answer
