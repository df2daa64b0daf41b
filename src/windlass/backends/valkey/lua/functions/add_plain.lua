-- add_plain: adds plain jobs to one queue in one step; the answer for a known id describes the existing job.
-- KEYS: queue root
-- ARGV: now or '', then for each job its id and: length of task (1 byte), task, tail as `add` takes it
-- returns: now, a sum of FLAGs, then position and answer (as of `add`) of each job for which `add` would not answer 0
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
