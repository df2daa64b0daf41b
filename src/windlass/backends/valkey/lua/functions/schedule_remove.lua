-- schedule_remove: forgets a schedule.
-- KEYS: queue root
-- ARGV: name, 1 when it must come from the source given, source
-- returns: 1 when it was there
-- flags: allow-oom
local q = open(keys[1], 0)
local state = schedules.get(q, args[1])
if not state or (args[2] == '1' and state[S_SOURCE] ~= args[3]) then
  return 0
end
schedules.drop(q, args[1])
return 1
