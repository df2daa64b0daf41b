-- work: ends attempts, then claims the next jobs, in one step.
-- KEYS: queue roots
-- ARGV: now or '', packed {ends, claim or 0}; ends, in order, are runs of completions {queue, ids, tokens, durations,
--       results or 0, facts or 0}, and others {queue, id, token, outcome, duration, result or 0, delay, reason, uses attempt,
--       miss, error or 0, hold its group, filled or 0, facts or 0}; a claim is {worker, lease, claim id, limit, {{queue, share,
--       cap, jobs leased by an earlier call of the same claim, flags}, ...}}; flags, only in a claim of one queue (see
--       `78_handoff.lua`): 1 registers the worker if no job is left, 2 ends its registration before, 3 both; none or 0: neither
-- returns: now, one character per end, one of SETTLED, next due in (-1: none), one character per
--          claimed queue (1: it has more, 2: the worker was registered) followed by the claim id of the registration that was
--          ended, queues whose outbox got entries, then for leased plain jobs queue, ids, records (their heads have changed
--          only by this lease), and for each other job -queue, id, record, head, errors, signals
-- emits: completed, failed, retrying, scheduled, released, cancelled, blocked, suspended, promoted, parked, started, drained
-- flags: allow-oom
local now = now_from(args[1])
local request = cmsgpack.unpack(args[2])
local queues = open_all(keys, now)
local answer = { now, batch.settle_all(queues, request[1]), -1, '', 0 }
if request[2] ~= 0 then
  local claim = batch.claim_jobs(queues, request[2])
  answer[3], answer[4] = claim.next_due, claim.left
  batch.append_leased(answer, queues, claim)
end
close_all(queues)
answer[5] = flow.open_outboxes(queues)
return answer
