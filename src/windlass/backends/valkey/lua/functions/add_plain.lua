-- add_plain: adds plain jobs to one queue in one step; ids that are known answer for themselves.
-- KEYS: queue root
-- ARGV: now or '', then of every job its id and its text: length of task (1 byte), task, tail as `add` takes it
-- returns: now, the sum of FLAGs that hold, then position and answer (as `add` gives it) of every job that was
--          not simply added and waits now
-- emits: enqueued, deduplicated, removed; started, drained
local now, micros = now_from(args[1])
local done = #args == 3 and adds.add_alone(keys[1], args[2], args[3], now, micros)
if done then
  return done
end
local q = open(keys[1], now)
local ids = {}
for at = 2, #args, 2 do
  ids[at / 2] = args[at]
end
adds.prepare_ids(q, ids)
local first, new = take_numbers({ q }, #ids, true, micros)
local answer = { q.now, #new * FLAG.NEW_QUEUE }
adds.add_plain(q, args, first, answer)
close(q)
return answer
