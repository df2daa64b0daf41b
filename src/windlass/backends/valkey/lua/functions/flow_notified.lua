-- flow_notified: notes that the dependents up to a link were notified of an end; removes the end from the outbox if
--                these were all.
-- KEYS: queue roots
-- ARGV: packed {{queue, number of the end, id, sequence, number of the link, 1 if these were all}, ...}
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
      if not head or head[HEAD.SEQ] ~= seq then -- the record was removed before
        redis.call('UNLINK', links)
      end
    end
    if redis.call('XLEN', q.x) == 0 then
      redis.call('DEL', q.x)
    end
  end
end
return 0
