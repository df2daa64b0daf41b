-- task_restore: ends the revocation of a task.
-- KEYS: queue root
-- ARGV: now or '', task
-- returns: 1 if it was revoked
-- flags: allow-oom
local q = open(keys[1], now_from(args[1]))
local held = limits.revoked(q)
if not held[args[2]] then
  return 0
end
held[args[2]] = nil
limits.save_revoked(q, held)
return 1
