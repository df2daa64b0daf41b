-- group_pause: pauses or resumes a group.
-- KEYS: queue root
-- ARGV: now or '', group, 1 (pause) or 0 (resume)
-- returns: 1 if that changed something, 1 if the queue is new
-- emits: promoted, failed
-- flags: allow-oom
local q = open(keys[1], now_from(args[1]))
local changed = groups.pause(q, args[2], tonumber(args[3]))
local known = redis.call('HSETNX', q.root, 'known', 1)
close(q)
return { changed, known }
