-- result_ttl: keeps a completed job's result, or a failed job's errors, until now + ttl.
-- KEYS: queue root
-- ARGV: now or '', packed {id, ttl}
-- returns: status, one of CHANGED, and state
local q = open(keys[1], now_from(args[1]))
local id, ttl = unpack(cmsgpack.unpack(args[2]))
local head = head_of(q, id)
if not head then
  return { CHANGED.NOT_FOUND, 0 }
elseif head[HEAD.STATE] ~= STATE.COMPLETED and head[HEAD.STATE] ~= STATE.FAILED then
  return { CHANGED.ILLEGAL, head[HEAD.STATE] }
end
leave(q, id, head)
if head[HEAD.OPTIONS] == 0 then
  head[HEAD.OPTIONS] = { unpack(USUAL) }
end
local kept = q.now + ttl - head[HEAD.FINISHED]
head[HEAD.OPTIONS][OPTION.RESULT_TTL] = kept
if head[HEAD.STATE] == STATE.COMPLETED then
  head[HEAD.RESULT_UNTIL] = q.now + ttl
else
  head[HEAD.OPTIONS][OPTION.KEEP_FAILED] = kept
end
enter(q, id, head)
close(q)
return { CHANGED.OK, head[HEAD.STATE] }
