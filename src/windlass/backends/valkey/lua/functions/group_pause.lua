-- group_pause: starts no more jobs of a group, or continues.
-- KEYS: queue root
-- ARGV: now or '', group, 1 (pause) or 0 (resume)
-- returns: 1 when that changed something, 1 when the queue became known
-- emits: promoted, failed
-- flags: allow-oom
local q = open(keys[1], now_from(args[1]))
local changed = groups.pause(q, args[2], tonumber(args[3]))
local known = redis.call('HSETNX', q.root, 'known', 1)
close(q)
return { changed, known }
