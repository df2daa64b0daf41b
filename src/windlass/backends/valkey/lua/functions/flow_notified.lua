-- flow_notified: every dependent up to a link was notified of an end, which leaves the outbox when those were all.
-- KEYS: queue roots
-- ARGV: packed {{queue, number of the end, id, sequence, how far, 1 when that was all}, ...}
-- returns: 0
-- flags: allow-oom
for _, item in ipairs(cmsgpack.unpack(args[1])) do
  local q = open(keys[item[1]], 0)
  local number, id, seq, done = item[2], item[3], item[4], item[6] == 1
  local links = flow.links(q, seq)
  if redis.call('EXISTS', links) == 1 then
    redis.call('ZADD', links, 'GT', item[5], '')
  end
  if done and redis.call('XDEL', q.x, text(number)) == 1 then
    if redis.call('HINCRBY', q.y, text(seq), -1) <= 0 then
      redis.call('HDEL', q.y, text(seq))
      local head = head_of(q, id)
      if not head or head[HEAD.SEQ] ~= seq then -- the record went before
        redis.call('UNLINK', links)
      end
    end
    if redis.call('XLEN', q.x) == 0 then
      redis.call('DEL', q.x)
    end
  end
end
return 0
