-- schedule_remove: forgets a schedule.
-- KEYS: queue root
-- ARGV: name, 1 when it must come from the source given, source
-- returns: 1 when it was there
-- flags: allow-oom
local q = open(keys[1], 0)
local state = schedules.get(q, args[1])
if args[2] == '1' and (not state or state[SCHEDULE.SOURCE] ~= args[3]) then
  return 0
end
local there = redis.call('HEXISTS', q.root .. ':schedules', args[1]) -- one that cannot be read can still go
schedules.drop(q, args[1])
return there
