-- extend: moves lease deadlines, for the newest tokens only.
-- KEYS: queue roots
-- ARGV: now or '', packed leases {queue, id, token, lease}
-- returns: one character per lease, one of EXTENDED
-- flags: allow-oom
local now = now_from(args[1])
local items = cmsgpack.unpack(args[2])
local queues = open_all(keys, now)
local statuses = {}
batch.load_items(queues, items)
for index, item in ipairs(items) do
  local q, id = queues[item[1]], item[2]
  local head = q.heads[id]
  if batch.check_token(head, item[3]) == SETTLED.OK then
    put(q.zadd, q.a, now + item[4], member_of(q, id, head))
    statuses[index] = head[HEAD.CANCEL] == '' and EXTENDED.OK or EXTENDED.CANCELLING
  else
    statuses[index] = EXTENDED.LOST
  end
end
close_all(queues)
return table.concat(statuses)
