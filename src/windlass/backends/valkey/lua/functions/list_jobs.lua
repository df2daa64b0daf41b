-- list_jobs: records of a queue in order of their adding, or by due time or end; looks at no more than 1,000 of them.
-- KEYS: queue root
-- ARGV: now or '', packed {newest first, cursor or -1, limit, {state, ...}, tag or '',
--       has error class, error class, {place, ...} to list by time or {}, time and sequence to continue from},
--       Lua pattern for the task or ''
-- returns: cursor to continue from (-1: that was all; by time 'time.sequence'), how many were looked at, then one view per job
-- flags: no-writes
local q = open(keys[1], now_from(args[1]))
local request = cmsgpack.unpack(args[2])
local newest, cursor, limit, states = request[1] == 1, request[2], request[3], request[4]
local all = #states == 0 and request[5] == '' and request[6] == 0 and args[3] == ''
local by_time = #request[8] > 0
local rows, more
if by_time then
  rows, more = listing.timed_rows(q, newest, request[8], request[9], request[10])
else
  rows, more = listing.few_rows(q, newest, cursor, states), false
end
if not rows then
  rows, more = listing.rows_from(q, newest, cursor, all and math.min(limit + 1, STEP) or STEP)
end
local answer, matched, last = { -1, #rows }, 0, -1
local matches = listing.matcher(q, request, args[3])
for index, row in ipairs(rows) do
  if index % 100 == 1 then
    listing.load_rows(q, rows, index, 100)
  end
  if matches(row[2]) then
    if matched == limit then
      answer[1], answer[2] = last, index - 1
      return answer
    end
    matched, last = matched + 1, listing.cursor_of(row)
    answer[matched + 2] = view(q, row[2])
  end
end
if more then
  answer[1] = listing.cursor_of(rows[#rows])
end
return answer
