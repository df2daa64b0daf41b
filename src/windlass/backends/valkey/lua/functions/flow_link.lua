-- flow_link: links children to dependents of other slots; returns the fates of children that have ended already.
-- KEYS: queue roots
-- ARGV: now or '', packed {{queue, id, {queue, id and sequence of a dependent}}, ...}
-- returns: per job 1 (it will notify), 0 (no such job), or its fate, see `55_flows.lua`
-- flags: allow-oom
local items = cmsgpack.unpack(args[2])
local queues = open_all(keys, now_from(args[1]))
local answer = {}
batch.load_items(queues, items)
for index, item in ipairs(items) do
  answer[index] = flow.link_all(queues[item[1]], item[2], item[3])[1]
end
close_all(queues)
return answer
