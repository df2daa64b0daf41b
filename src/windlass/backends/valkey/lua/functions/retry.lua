-- retry: retries finished jobs with attempts and stalls reset; makes retrying ones ready now.
-- KEYS: queue roots
-- ARGV: now or '', packed {{queue, id, children that this call cannot decide about: {child <queue>:<id> -> 1 (open) or its
--       fate, see `55_flows.lua`, with the number of its value}}, ...}, then those values
-- returns: status, one of CHANGED, and state per job
-- emits: enqueued, blocked, promoted
local items = cmsgpack.unpack(args[2])
local queues = open_all(keys, now_from(args[1]))
local answer = {}
batch.load_items(queues, items)
damaged.check(queues, items)
local again = { waits = {}, waiters = {} }
for _, item in ipairs(items) do
  local q, id = queues[item[1]], item[2]
  if q.heads[id] and changes.may_run_again(q.heads[id]) then
    again.waits[name_of(q) .. ':' .. id] = {}
  end
end
for _, item in ipairs(items) do
  local q, id = queues[item[1]], item[2]
  local head, known = q.heads[id], item[3] or {}
  for _, fate in pairs(known) do
    if fate ~= 1 then
      fate[FATE.VALUE] = args[2 + fate[FATE.VALUE]]
    end
  end
  local status = head and changes.retry(queues, q, id, head, known, again) or CHANGED.NOT_FOUND
  apply_pending(q)
  answer[#answer + 1] = status
  answer[#answer + 1] = head and head[HEAD.STATE] or 0
end
close_all(queues)
return answer
