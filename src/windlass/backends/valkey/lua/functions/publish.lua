-- publish: adds a custom event to the log of a queue.
-- KEYS: queue root
-- ARGV: now or '', packed {id of a job or '', name, data}
-- returns: 1 if the queue is new
-- emits: custom
local q = open(keys[1], now_from(args[1]))
local id, name, data = unpack(cmsgpack.unpack(args[2]))
local known = redis.call('HSETNX', q.root, 'known', 1)
note(q, EVENT.CUSTOM, id, nil, name, data)
close(q)
return known
