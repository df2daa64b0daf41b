-- recover: takes back expired leases, earliest first over all queues given.
-- KEYS: queue roots
-- ARGV: now or '', packed {limit}
-- returns: queues with something to relay, then queue, id, 1 (waits again, or ended as cancelled) or 0 (failed as stalled), deadline, sequence of every lease
-- emits: stalled, failed, cancelled
-- flags: allow-oom
local queues = open_all(keys, now_from(args[1]))
local chosen = sweep.passed(queues, 'a', cmsgpack.unpack(args[2])[1])
local answer = { 0 }
turn.load_items(queues, chosen.order)
for _, item in ipairs(chosen.order) do
  local q, id = queues[item[1]], item[2]
  local head = q.heads[id]
  if head then
    local alive = not ENDS[head[HEAD.STATE]] and recover(q, id, head) -- else it could not be read
    answer[#answer + 1] = item[1]
    answer[#answer + 1] = id
    answer[#answer + 1] = alive and 1 or 0
    answer[#answer + 1] = item[3]
    answer[#answer + 1] = head[HEAD.SEQ]
  end
end
close_all(queues)
answer[1] = flow.left(queues)
return answer
