-- add: adds jobs to their queues in one step; the answer for a known id describes the existing job.
-- KEYS: queue roots
-- ARGV: now or '', packed jobs {queue, id, task, priority, delay or 0, run at or -1, expires in or -1, options,
--       1 if lifo}, then one tail per job: length of meta, meta, payload
-- returns: now, positions of new queues, then per job 0 (added, waiting) or {outcome, state, enqueued, due, view,
--          options that were not taken}; an outcome is one of ADDED; state 0: only the id is kept
-- emits: enqueued, scheduled, blocked, parked, deduplicated, changed, removed
local now = now_from(args[1])
local jobs = cmsgpack.unpack(args[2])
local queues = open_all(keys, now)
adds.prepare_add(queues, jobs)
local first, new = take_numbers(queues, #jobs, true)
local answer = { now, new }
for index, job in ipairs(jobs) do
  answer[index + 2] = adds.add_one(queues[job[JOB.QUEUE]], job, args[index + 2], first + index - 1)
end
for _, q in ipairs(queues) do
  write_plain(q)
end
close_all(queues)
return answer
