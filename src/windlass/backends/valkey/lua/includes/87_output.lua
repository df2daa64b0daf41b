-- Live output of running jobs. The rules of `windlass.core.stream_rules`.

local OUT = { LAST = 1, OLDEST = 2, SIZE = 3, DELIVERY = 4, BASE = 5 }

function flow.output_of(q, id)
  local known = redis.call('HGET', q.q, id)
  return known and cmsgpack.unpack(known) or { 0, 1, 0, 0, 0 }
end

-- Removes the oldest chunks beyond the bounds; the newest always stays.
function flow.trim_output(key, out, most_chunks, most_bytes)
  local oldest = out[OUT.OLDEST]
  while true do
    local extra = out[OUT.LAST] - out[OUT.OLDEST] + 1 - most_chunks
    if extra <= 0 and (out[OUT.SIZE] <= most_bytes or out[OUT.OLDEST] >= out[OUT.LAST]) then
      break
    end
    local entry = redis.call('XRANGE', key, text(out[OUT.OLDEST]), '+', 'COUNT', 1)[1]
    out[OUT.SIZE] = out[OUT.SIZE] - #entry[2][4]
    out[OUT.OLDEST] = out[OUT.OLDEST] + 1
  end
  if out[OUT.OLDEST] > oldest then
    redis.call('XTRIM', key, 'MINID', text(out[OUT.OLDEST]))
  end
end

-- Appends chunks (args from position `from` on); returns false if that would leave a gap.
function flow.append(q, id, head, first, args, from, most_chunks, most_bytes)
  local out, key = flow.output_of(q, id), q.root .. ':p:' .. id
  if out[OUT.DELIVERY] ~= head[HEAD.DELIVERIES] then
    out[OUT.DELIVERY], out[OUT.BASE] = head[HEAD.DELIVERIES], out[OUT.LAST]
  end
  local number = out[OUT.BASE] + first
  if number > out[OUT.LAST] + 1 then
    return false
  end
  for at = from, #args do
    if number > out[OUT.LAST] then
      redis.call('XADD', key, text(number), 'd', out[OUT.DELIVERY], 'c', args[at])
      out[OUT.LAST], out[OUT.SIZE] = number, out[OUT.SIZE] + #args[at]
    end
    number = number + 1
  end
  flow.trim_output(key, out, most_chunks, most_bytes)
  put(q.hset, q.q, id, cmsgpack.pack(out))
  flow.add_fields(head)
  head[HEAD.STREAMED], q.dirty[id] = 1, head
  return true
end
