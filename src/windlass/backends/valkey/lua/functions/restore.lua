-- restore: restores jobs as they were; ids that are known are not changed.
-- KEYS: queue roots
-- ARGV: now or '', packed jobs {queue, id, head, request id, result or 0, progress or 0, errors or 0, signals: name,
--       value, ...}, then one tail per job: length of meta, meta, payload
-- returns: now, positions of new queues, then per job {outcome, state, enqueued, due}; an outcome is one of ADDED;
--          state 0: only the id, or its key, is known
-- emits: changed, parked, failed
local now = now_from(args[1])
local jobs = cmsgpack.unpack(args[2])
local queues = open_all(keys, now)
adds.prepare_add(queues, jobs)
local first, new = take_numbers(queues, #jobs, true)
local answer = { now, new }
for index, job in ipairs(jobs) do
  answer[index + 2] = adds.restore(queues[job[RESTORED.QUEUE]], job, args[index + 2], first + index - 1)
end
close_all(queues)
return answer
