-- metrics_read: rows by time and task; reads at most 5,000 of them.
-- KEYS: queue root
-- ARGV: step (1 minutes, 2 hours), first and last key as ZRANGEBYLEX takes them, limit, 1 for only one
--       task, task
-- returns: the last key that was read if there may be more, else '', then keys and rows
-- flags: no-writes
local key, limit = keys[1] .. METRICS_STEPS[2 * args[1] - 1], tonumber(args[4])
local most = args[5] == '1' and 5 * STEP or limit + 1
local found = redis.call('ZRANGEBYLEX', key .. ':keys', args[2], args[3], 'LIMIT', 0, most)
local wanted, last = {}, #found == most and found[most] or ''
for _, one in ipairs(found) do
  if args[5] ~= '1' or one:sub(7) == args[6] then
    if #wanted == limit then
      last = wanted[limit]
      break
    end
    wanted[#wanted + 1] = one
  end
end
local answer, rows = { last }, read('HMGET', key, wanted)
for at, one in ipairs(wanted) do
  answer[2 * at], answer[2 * at + 1] = one, rows[at]
end
return answer
