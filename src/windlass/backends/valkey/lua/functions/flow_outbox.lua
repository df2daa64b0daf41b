-- flow_outbox: ends that are not relayed yet, oldest first in each queue, and dependents with children that were not linked
--              in time, because the client that added them has died or is very slow.
-- KEYS: queue roots
-- ARGV: now or '', packed {most dependents to return, how long linking may take}
-- returns: {per end {queue, number, id, packed fate, value, number of the last link in this list, 1 if there are no more,
--          dependents}}, {queue, dependent, ...}
-- flags: no-writes
local limit, linking_ms = unpack(cmsgpack.unpack(args[2]))
local queues = open_all(keys, now_from(args[1]))
local ends, late = {}, {}
for index, q in ipairs(queues) do
  for _, entry in ipairs(limit > 0 and redis.call('XRANGE', q.x, '-', '+', 'COUNT', math.min(limit, STEP)) or {}) do
    local number, fields = string.match(entry[1], '^%d+'), entry[2]
    if limit > 0 then
      local key = flow.links(q, cmsgpack.unpack(fields[4])[1])
      local from = '(' .. (redis.call('ZSCORE', key, '') or 0)
      local found = redis.call('ZRANGEBYSCORE', key, from, '(' .. number, 'WITHSCORES', 'LIMIT', 0, limit + 1)
      local dependents, last = {}, number
      for at = 1, math.min(#found, 2 * limit), 2 do
        dependents[#dependents + 1], last = found[at], found[at + 1]
      end
      local done = #found <= 2 * limit
      limit = limit - math.max(#dependents, 1)
      ends[#ends + 1] =
        { index, tonumber(number), fields[2], fields[4], fields[6], done and number or last, done and 1 or 0, dependents }
    end
  end
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', q.L, '-inf', q.now - linking_ms, 'LIMIT', 0, 100)) do
    late[#late + 1] = index
    late[#late + 1] = id
  end
end
return { ends, late }
