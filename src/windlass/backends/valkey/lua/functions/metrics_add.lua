-- metrics_add: writes rows and moves the cursor, if it has the expected value.
-- KEYS: queue root
-- ARGV: now or '', cursor, new cursor, number of minutes, then key and row of minutes and of hours
-- returns: 1, or 0 if the cursor has another value
-- flags: allow-oom
if metrics.cursor(keys[1]) ~= tonumber(args[2]) then
  return 0
end
local last = 4 + 2 * tonumber(args[4])
local parts = { { 5, last }, { last + 1, #args } }
redis.call('HSET', keys[1], 'ro', args[3], 'ro_ms', text((now_from(args[1]))))
for step, part in ipairs(parts) do
  local key, rows, index = keys[1] .. METRICS_STEPS[2 * step - 1], {}, {}
  for at = part[1], part[2], 2 do
    rows[#rows + 1], rows[#rows + 2] = args[at], args[at + 1]
    index[#index + 1], index[#index + 2] = 0, args[at]
  end
  send('HSET', key, rows)
  send('ZADD', key .. ':keys', index)
end
return 1
