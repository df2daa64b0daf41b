-- Live output of running jobs. The same rules as `windlass.core.streams`.

local OUT_LAST, OUT_OLDEST, OUT_SIZE, OUT_DELIVERY, OUT_BASE = 1, 2, 3, 4, 5

function flow.output_of(q, id)
  local known = redis.call('HGET', q.q, id)
  return known and cmsgpack.unpack(known) or { 0, 1, 0, 0, 0 }
end

-- Lets the oldest chunks go over the bounds; the newest always stays.
function flow.trim_output(key, out, most_chunks, most_bytes)
  local oldest = out[OUT_OLDEST]
  while true do
    local extra = out[OUT_LAST] - out[OUT_OLDEST] + 1 - most_chunks
    if extra <= 0 and (out[OUT_SIZE] <= most_bytes or out[OUT_OLDEST] >= out[OUT_LAST]) then
      break
    end
    local entry = redis.call('XRANGE', key, text(out[OUT_OLDEST]), '+', 'COUNT', 1)[1]
    out[OUT_SIZE] = out[OUT_SIZE] - #entry[2][4]
    out[OUT_OLDEST] = out[OUT_OLDEST] + 1
  end
  if out[OUT_OLDEST] > oldest then
    redis.call('XTRIM', key, 'MINID', text(out[OUT_OLDEST]))
  end
end

-- Appends chunks (args from position `from` on); false when that would leave a gap.
function flow.append(q, id, head, first, args, from, most_chunks, most_bytes)
  local out, key = flow.output_of(q, id), q.root .. ':p:' .. id
  if out[OUT_DELIVERY] ~= head[DELIVERIES] then
    out[OUT_DELIVERY], out[OUT_BASE] = head[DELIVERIES], out[OUT_LAST]
  end
  local number = out[OUT_BASE] + first
  if number > out[OUT_LAST] + 1 then
    return false
  end
  for at = from, #args do
    if number > out[OUT_LAST] then
      redis.call('XADD', key, text(number), 'd', out[OUT_DELIVERY], 'c', args[at])
      out[OUT_LAST], out[OUT_SIZE] = number, out[OUT_SIZE] + #args[at]
    end
    number = number + 1
  end
  flow.trim_output(key, out, most_chunks, most_bytes)
  put(q.hset, q.q, id, cmsgpack.pack(out))
  flow.widen(head)
  head[STREAMED], q.dirty[id] = 1, head
  return true
end
