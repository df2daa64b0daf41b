-- flow_notify: notifies dependents how their children ended; an edge is settled once, no matter how often it is relayed.
-- KEYS: queue roots
-- ARGV: now or '', packed {limit, {{child <queue>:<id>, sequence, completed, codec, reason, error, has value}, ...},
--       {{queue, dependent, its sequence, position of the end}, ...}}, then the value of each end
-- returns: how many edges were settled, including those of jobs that ended because of it; queues whose outbox got entries
-- emits: promoted, scheduled, failed
-- flags: allow-oom
local limit, ends, items = unpack(cmsgpack.unpack(args[2]))
local queues = open_all(keys, now_from(args[1]))
local count = 0
batch.load_items(queues, items)
for _, item in ipairs(items) do
  local sent = ends[item[4]]
  local fate = { unpack(sent, 2) } -- without the child
  fate[FATE.VALUE] = args[2 + item[4]]
  count = count + flow.settle_edge(queues[item[1]], item[2], item[3], sent[1], fate)
end
count = count + flow.notify_dependents(queues, limit - count)
close_all(queues)
return { count, flow.open_outboxes(queues) }
