-- limits_queue: sets limits of a whole queue.
-- KEYS: queue root
-- ARGV: now or '', packed {concurrency (0: no limit, -1: unchanged), starts per time (the same), that time}
-- returns: 1 if the queue is new
-- flags: allow-oom
local q = open(keys[1], now_from(args[1]))
limits.set(q, unpack(cmsgpack.unpack(args[2])))
q.ready = true
local known = redis.call('HSETNX', q.root, 'known', 1)
close(q)
return known
