-- result_ttl: keeps a completed job's result until now + ttl.
-- KEYS: queue root
-- ARGV: now or '', packed {id, ttl}
-- returns: status (0 ok, 1 not found, 2 illegal), state
local q = open(keys[1], now_from(args[1]))
local id, ttl = unpack(cmsgpack.unpack(args[2]))
local head = head_of(q, id)
if not head then
  return { 1, 0 }
elseif head[STATE] ~= COMPLETED then
  return { 2, head[STATE] }
end
leave(q, id, head)
if head[OPTIONS] == 0 then
  head[OPTIONS] = { unpack(DEFAULTS) }
end
head[RESULT_UNTIL] = q.now + ttl
head[OPTIONS][RESULT_TTL] = head[RESULT_UNTIL] - head[FINISHED]
enter(q, id, head)
close(q)
return { 0, head[STATE] }
