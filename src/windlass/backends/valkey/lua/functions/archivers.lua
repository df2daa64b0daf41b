-- archivers: the archivers and how far each has copied the history.
-- KEYS: namespace root
-- ARGV: now or '', milliseconds after which an archiver is left out
-- returns: name and packed {last seen, queue, position, ...} of each archiver that was seen since
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
