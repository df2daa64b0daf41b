-- archive: records how far an archiver has copied the history of queues; positions never decrease.
-- KEYS: namespace root
-- ARGV: now or '', name, packed {queue, position, ...}
-- returns: 0
-- flags: allow-oom
local now = now_from(args[1])
local key, news = keys[1] .. ':archivers', cmsgpack.unpack(args[3])
local known = redis.call('HGET', key, args[2])
local archiver = known and cmsgpack.unpack(known) or {}
local places = {}
for at = 2, #archiver, 2 do
  places[archiver[at]] = at
end
archiver[1] = now
for at = 1, #news, 2 do
  local place = places[news[at]] or #archiver + 1
  archiver[place] = news[at]
  archiver[place + 1] = math.max(archiver[place + 1] or 0, news[at + 1])
  places[news[at]] = place
end
redis.call('HSET', key, args[2], cmsgpack.pack(archiver))
return 0
