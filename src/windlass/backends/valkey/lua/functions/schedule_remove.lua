-- schedule_remove: removes a schedule.
-- KEYS: queue root
-- ARGV: name, 1 if it must have the given source, source
-- returns: 1 if it existed
-- flags: allow-oom
local q = open(keys[1], 0)
local state = schedules.get(q, args[1])
if args[2] == '1' and (not state or state[SCHEDULE.SOURCE] ~= args[3]) then
  return 0
end
local there = redis.call('HEXISTS', q.root .. ':schedules', args[1]) -- also one that cannot be read
schedules.drop(q, args[1])
return there
