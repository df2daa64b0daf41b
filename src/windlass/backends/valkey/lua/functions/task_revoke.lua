-- task_revoke: revokes a task: its jobs are cancelled instead of started.
-- KEYS: queue root
-- ARGV: now or '', packed {task, until (-1: until it is restored), for (-1: use until), 1 for the next start only}
-- returns: 1, or 0 if too many tasks are revoked, 1 if the queue is new
-- flags: allow-oom
local q = open(keys[1], now_from(args[1]))
local task, until_ms, for_ms, once = unpack(cmsgpack.unpack(args[2]))
local held, count = limits.revoked(q), 0
held[task] = { for_ms >= 0 and q.now + for_ms or until_ms, once }
for _ in pairs(held) do
  count = count + 1
end
if count > KEPT.REVOKED then
  return { 0, 0 }
end
limits.save_revoked(q, held)
return { 1, redis.call('HSETNX', q.root, 'known', 1) }
