-- flow_add: adds jobs with their edges in one step; edges to jobs in other slots are left to the caller.
-- KEYS: queue roots
-- ARGV: now or '', packed {jobs, see `73_add_flow.lua`, parents of known jobs {queue, id, child's queue, child, on failure}},
--       then one tail per job
-- returns: now, positions of new queues, queues whose outbox got entries, per job {answer as of `add`, but never 0,
--          sequence, positions of edges still to be linked, parent {sequence or 0, 1: still to be linked}, link answers},
--          per parent {sequence or 0, 1: still to be linked}
-- emits: enqueued, scheduled, blocked, promoted, failed, deduplicated, removed
local now = now_from(args[1])
local jobs, parents = unpack(cmsgpack.unpack(args[2]))
local queues = open_all(keys, now)
local answers, adopted, unknown, new, first = {}, {}, {}, {}, 0
adds.prepare_add(queues, jobs)
if #jobs > 0 then
  first, unknown = take_numbers(queues, #jobs)
end
for index, job in ipairs(jobs) do
  local answer = adds.add_one(queues[job[JOB.QUEUE]], job, args[index + 2], first + index - 1)
  answers[index] = { answer == 0 and { ADDED.QUEUED, STATE.WAITING, now, 0 } or answer, 0, {}, { 0, 0 }, {} }
end
for _, index in ipairs(unknown) do
  if queues[index].added then
    redis.call('HSET', queues[index].root, 'known', 1)
    new[#new + 1] = index
  end
end
for index = 1, #keys do
  write_plain(queues[index])
  apply_pending(queues[index])
end
for index, job in ipairs(jobs) do
  local q, answer, head = queues[job[JOB.QUEUE]], answers[index], head_of(queues[job[JOB.QUEUE]], job[JOB.ID])
  if head then
    answer[2] = head[HEAD.SEQ]
    local fresh = head[HEAD.SEQ] == first + index - 1
    if answer[1][1] == ADDED.QUEUED then
      answer[3] = flow.make_edges(queues, q, job, fresh)
    end
    local parent = job[JOB.PARENT] ~= 0 and flow.reachable(queues, job[JOB.PARENT][1])
    if parent then
      answer[4] = flow.adopt(queues, parent, job[JOB.PARENT][2], name_of(q), job[JOB.ID], job[JOB.PARENT][3])
    end
    answer[5] = flow.link_all(q, job[JOB.ID], job[JOB.LINKS])
  end
end
for index, item in ipairs(parents) do
  adopted[index] = flow.adopt(queues, queues[item[1]], item[2], item[3], item[4], item[5])
end
flow.notify_dependents(queues)
for index, job in ipairs(jobs) do
  local head = head_of(queues[job[JOB.QUEUE]], job[JOB.ID])
  local answer = answers[index][1]
  if head and not answer[5] then
    answer[2], answer[4] = head[HEAD.STATE], head[HEAD.DUE]
  end
end
close_all(queues)
return { now, new, flow.open_outboxes(queues), answers, adopted }
