-- metrics_get: reads rows to merge new ones into.
-- KEYS: queue root
-- ARGV: number of minutes, then keys (see `94_metrics.lua`) of minutes and of hours
-- returns: the last history row that was rolled up, then the row under each key, or nil
-- flags: no-writes
local minutes, by_step = tonumber(args[1]), { {}, {} }
for at = 2, #args do
  table.insert(by_step[at - 1 <= minutes and 1 or 2], args[at])
end
local answer = { metrics.cursor(keys[1]) }
for step, wanted in ipairs(by_step) do
  for _, row in ipairs(read('HMGET', keys[1] .. METRICS_STEPS[2 * step - 1], wanted)) do
    answer[#answer + 1] = row
  end
end
return answer
