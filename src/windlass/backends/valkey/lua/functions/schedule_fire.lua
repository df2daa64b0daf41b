-- schedule_fire: adds the jobs of due slots and sets the next slot, if the slot was not fired before.
-- KEYS: queue root
-- ARGV: now or '', name, packed {slot (-1: on request), next slot or -1, {slot, ...}, jobs as `add` takes them}, then one
--       tail per job as `add` takes it
-- returns: 1 if the slot was fired, jobs added, 1 if the queue is new
-- emits: enqueued, scheduled, deduplicated, removed
local q = open(keys[1], now_from(args[1]))
local slot, next_ms, slots, jobs = unpack(cmsgpack.unpack(args[3]))
local state, record = schedules.get(q, args[2])
if not state or (slot >= 0 and (state[SCHEDULE.PAUSED] == 1 or state[SCHEDULE.NEXT] ~= slot)) then
  return { 0, 0, 0 }
end
local amount = slot >= 0 and schedules.room(q, state, #jobs) or #jobs
local known, added, last = schedules.add(q, jobs, args, amount)
if slot >= 0 then
  state[SCHEDULE.FIRED], state[SCHEDULE.SKIPPED] = state[SCHEDULE.FIRED] + added, state[SCHEDULE.SKIPPED] + #slots - added
  state[SCHEDULE.NEXT] = schedules.bounded(state, next_ms)
end
if last then
  state[SCHEDULE.LAST], state[SCHEDULE.LAST_JOB_ID] = slot >= 0 and slots[last] or q.now, jobs[last][2]
end
schedules.save(q, args[2], state, record)
close(q)
return { 1, added, known }
