-- schedule_put: creates or changes a schedule.
-- KEYS: queue root
-- ARGV: name, packed state (see `87_schedules.lua`), record
-- returns: 1 if the queue is new, 1 if it had no schedule before, state
local q = open(keys[1], 0)
local known = redis.call('HSETNX', q.root, 'known', 1)
local first = redis.call('EXISTS', q.root .. ':schedules') == 0 and 1 or 0
local state = schedules.merged(schedules.get(q, args[1]), cmsgpack.unpack(args[2]))
schedules.save(q, args[1], state, args[3])
return { known, first, cmsgpack.pack(state) }
