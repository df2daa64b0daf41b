-- limits_get: the limits of a queue, of every group, and of some groups.
-- KEYS: queue root
-- ARGV: now or '', then names of groups
-- returns: concurrency, starts per time, that time (0: no limit), held until or 0, limits of every group as they were sent
--          ('': none), milliseconds until rate and hold allow the next start, revoked tasks in one list: name, until (-1: until
--          restored) and 1 for the next start only; then per group its own limits ('': none), 1 if paused, held until or 0
-- flags: no-writes
local q = open(keys[1], now_from(args[1]))
local own = limits.settings(q).own or { 0, 0, 0, 0, 0 }
local answer = { own[LIMIT.MOST], own[LIMIT.RATE], own[LIMIT.PER], own[LIMIT.HOLD] > q.now and own[LIMIT.HOLD] or 0, q.every[GROUP_LIMIT.TEXT] }
local opens = math.max(own[LIMIT.HOLD] - q.now, 0)
if opens == 0 and own[LIMIT.RATE] > 0 and limits.in_window(q, '', own[LIMIT.PER]) >= own[LIMIT.RATE] then
  opens = limits.start_at(q, '', -own[LIMIT.RATE]) + own[LIMIT.PER] - q.now
end
local revoked = {}
for task, one in pairs(limits.revoked(q)) do
  revoked[#revoked + 1], revoked[#revoked + 2], revoked[#revoked + 3] = task, one[1], one[2]
end
answer[6], answer[7] = opens, revoked
for at = 2, #args do
  local r = groups.get(q, args[at]).r
  answer[#answer + 1] = r[GROUP.OWN] ~= 0 and r[GROUP.OWN][GROUP_LIMIT.TEXT] or ''
  answer[#answer + 1] = r[GROUP.PAUSED]
  answer[#answer + 1] = r[GROUP.HOLD] > q.now and r[GROUP.HOLD] or 0
end
return answer
