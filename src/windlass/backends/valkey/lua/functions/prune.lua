-- prune: removes what is past its retention: records, kept ids, unique keys, idle groups, history, roll-ups, events of quiet
--        queues, empty streams. Fills indexes that earlier releases did not write.
-- KEYS: queue roots
-- ARGV: now or '', packed {limit of records, how far all archivers have copied the history of each queue (-1: no
--       archivers), limit of rows of roll-ups}
-- returns: records, ids, history rows removed, 1 if a bound was reached, rows of roll-ups and unique keys removed
-- flags: allow-oom
local now = now_from(args[1])
local limit, copied, most_rows = unpack(cmsgpack.unpack(args[2]))
local jobs, ids, history, rolled_up, more, keys_gone, filled = 0, 0, 0, 0, 0, 0, 0
for index, root in ipairs(keys) do
  local q = open(root, now)
  local found = sweep.prunable(q, limit - jobs)
  if #found > limit - jobs then
    more = 1
  end
  for at = 1, math.min(#found, limit - jobs) do
    drop(q, found[at][3], q.heads[found[at][3]])
    jobs = jobs + 1
  end
  apply_pending(q)
  groups.write(q)
  more = groups.prune(q) and 1 or more
  limits.prune(q)
  stubs.prune(q)
  local gone = sweep.prune_ids(q)
  more = gone == STEP and 1 or more
  ids = ids + gone
  local freed = unique.prune(q)
  more = freed == STEP and 1 or more
  keys_gone = keys_gone + freed
  local rows, unread = sweep.prune_history(q, metrics.held(q, copied[index]))
  history, more = history + rows, math.max(more, unread)
  rolled_up = rolled_up + metrics.prune(q, most_rows - rolled_up)
  sweep.drop_quiet_events(q)
  sweep.drop_empty_streams(q)
  handoff.prune(q)
  filled = filled + indexes.fill(q, STEP - filled)
end
if (rolled_up > 0 and rolled_up == most_rows) or filled == STEP then
  more = 1
end
return { jobs, ids, history, more, rolled_up, keys_gone }
