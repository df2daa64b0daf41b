-- schedule_pause: pauses or resumes a schedule; a resumed one continues with the slot given.
-- KEYS: queue root
-- ARGV: name, packed {1 (pause) or 0 (resume), slot or -1}
-- returns: 0 (no such schedule), 1 (nothing changed), 2
-- flags: allow-oom
local q = open(keys[1], 0)
local paused, next_ms = unpack(cmsgpack.unpack(args[2]))
local state, record = schedules.get(q, args[1])
if not state then
  return 0
elseif state[SCHEDULE.PAUSED] == paused then
  return 1
end
state[SCHEDULE.PAUSED] = paused
if paused == 0 then
  state[SCHEDULE.NEXT] = schedules.bounded(state, next_ms)
end
schedules.save(q, args[1], state, record)
return 2
