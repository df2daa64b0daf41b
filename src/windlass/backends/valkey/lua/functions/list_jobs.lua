-- list_jobs: jobs of a queue by sequence, due time or end; reads at most 1,000 of them.
-- KEYS: queue root
-- ARGV: now or '', packed {newest first, cursor or -1, limit, {state, ...}, tag or '',
--       has error class, error class, {index, ...} to list by time or {}, time and sequence to continue from,
--       group or '', worker or '', has fingerprint, fingerprint, end from or -1, end before or -1, {{where, text}, ...},
--       only roots of flows, {text, ...} that the head of every matching job contains},
--       then Lua patterns that the name of the task must match, one after the other
-- returns: cursor to continue from (-1: there is no more; by time 'time.sequence'), how many were read, then a view per job
-- flags: no-writes
local q = open(keys[1], now_from(args[1]))
local request = cmsgpack.unpack(args[2])
local newest, cursor, limit, states = request[1] == 1, request[2], request[3], request[4]
local wanted = listing.wanted(request, { unpack(args, 3) })
local all = #states == 0 and not wanted.some
local by_time = #request[8] > 0
local rows, more
if by_time then
  rows, more = listing.timed_rows(q, newest, request[8], request[9], request[10])
else
  rows, more = listing.few_ended(q, newest, cursor, wanted) or listing.few_rows(q, newest, cursor, states), false
end
if not rows then
  rows, more = indexes.rows(q, newest, cursor, wanted)
end
if not rows then
  rows, more = listing.rows_from(q, newest, cursor, all and math.min(limit + 1, STEP) or STEP)
end
local answer, matched, last = { -1, #rows }, 0, -1
for index, row in ipairs(rows) do
  if index % 100 == 1 then
    listing.load_rows(q, rows, index, 100, wanted)
  end
  if listing.fits(q, row[2], wanted) then
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
