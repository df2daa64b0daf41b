-- signal: stores a signal for a job; a job that is suspended on it becomes ready.
-- KEYS: queue root
-- ARGV: now or '', packed {id, name, most names per job, codec}, data
-- returns: status, one of CHANGED (-1: too many names), and state
-- emits: promoted, changed
-- flags: allow-oom
local q = open(keys[1], now_from(args[1]))
local id, name, most, codec = unpack(cmsgpack.unpack(args[2]))
local head = head_of(q, id)
if not head then
  return { CHANGED.NOT_FOUND, 0 }
end
local value = struct.pack('>I6Bc0', q.now, #codec, codec) .. args[3]
local status = flow.signal(q, id, head, name, value, most)
close(q)
return { status, head[HEAD.STATE] }
