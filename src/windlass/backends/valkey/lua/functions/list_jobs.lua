-- list_jobs: records of a queue in order of their adding; looks at no more than 1,000 of them.
-- KEYS: queue root
-- ARGV: now or '', packed {newest first, cursor or -1, limit, {state, ...}, tag or '',
--       has error class, error class}, Lua pattern for the task or ''
-- returns: cursor to go on from (-1: that was all), then one view per job
-- flags: no-writes
local q = open(keys[1], now_from(args[1]))
local request = cmsgpack.unpack(args[2])
local newest, cursor, limit, states = request[1] == 1, request[2], request[3], request[4]
local all = #states == 0 and request[5] == '' and request[6] == 0 and args[3] == ''
local rows, more = listing.few_rows(q, newest, cursor, states), false
if not rows then
  rows, more = listing.rows_from(q, newest, cursor, all and math.min(limit + 1, STEP) or STEP)
end
local answer, matched, last = { -1 }, 0, -1
local matches = listing.matcher(q, request, args[3])
for index, row in ipairs(rows) do
  if index % 100 == 1 then
    listing.load_rows(q, rows, index, 100)
  end
  if matches(row[2]) then
    if matched == limit then
      answer[1] = last
      return answer
    end
    matched, last = matched + 1, row[1]
    answer[matched + 1] = view(q, row[2])
  end
end
if more then
  answer[1] = rows[#rows][1]
end
return answer
