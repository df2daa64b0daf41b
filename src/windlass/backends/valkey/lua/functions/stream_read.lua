-- stream_read: live output of a job after a chunk.
-- KEYS: queue root
-- ARGV: packed {id, after, limit}
-- returns: state or 0, codec, number of the newest and of the oldest chunk, then number, delivery and data per chunk
-- flags: no-writes
local id, after, limit = unpack(cmsgpack.unpack(args[1]))
local q = open(keys[1], 0)
local head = head_of(q, id)
if not head then
  return { 0, 'json', 0, 1 }
end
local codec, out = options_of(head)[OPTION.CODEC], flow.output_of(q, id)
local answer = { head[HEAD.STATE], codec ~= 0 and codec or 'json', out[OUT.LAST], out[OUT.OLDEST] }
if limit > 0 and out[OUT.LAST] > after then
  for _, entry in ipairs(redis.call('XRANGE', q.root .. ':p:' .. id, text(after + 1), '+', 'COUNT', limit)) do
    local size = #answer
    answer[size + 1], answer[size + 2] = tonumber(string.match(entry[1], '^%d+')), tonumber(entry[2][2])
    answer[size + 3] = entry[2][4]
  end
end
return answer
