-- stream_append: appends to the live output of a running job; chunks that exist already are skipped.
-- KEYS: queue root
-- ARGV: now or '', packed {id, token, number of the first chunk within this attempt, most chunks, most bytes}, then chunks
-- returns: status, one of CHANGED (-1: it would leave a gap), and state
local q = open(keys[1], now_from(args[1]))
local id, token, first, most_chunks, most_bytes = unpack(cmsgpack.unpack(args[2]))
local head = head_of(q, id)
if not head then
  return { CHANGED.NOT_FOUND, 0 }
elseif batch.check_token(head, token) ~= SETTLED.OK then
  return { CHANGED.LOST, head[HEAD.STATE] }
elseif not flow.append(q, id, head, first, args, 3, most_chunks, most_bytes) then
  return { -1, head[HEAD.STATE] }
end
close(q)
redis.call('SPUBLISH', q.root .. ':stream', '')
return { CHANGED.OK, head[HEAD.STATE] }
