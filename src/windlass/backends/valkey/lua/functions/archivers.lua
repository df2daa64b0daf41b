-- archivers: who copies history, and how far they are.
-- KEYS: namespace root
-- ARGV: now or '', how long one may be silent
-- returns: name and packed {last seen, queue, position, ...} of every archiver that was seen since
-- flags: no-writes
local now = now_from(args[1])
local found, answer = redis.call('HGETALL', keys[1] .. ':archivers'), {}
for at = 1, #found, 2 do
  if cmsgpack.unpack(found[at + 1])[1] > now - args[2] then
    answer[#answer + 1] = found[at]
    answer[#answer + 1] = found[at + 1]
  end
end
return answer
