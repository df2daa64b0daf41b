-- log_rows: rows of the event log or the history log after a position.
-- KEYS: queue root
-- ARGV: packed {'v' (events) or 'h' (history), after, limit}
-- returns: number of the last row, number of the oldest, then for each entry that may contain wanted rows the number of its
--          last row and its fields, see `30_notes.lua`
-- flags: no-writes
local log, after, limit = unpack(cmsgpack.unpack(args[1]))
local names = log == 'v' and { 'ev', 'ev0' } or { 'hi', 'hi0' }
local marks = redis.call('HMGET', keys[1], unpack(names))
local last, oldest = tonumber(marks[1] or 0), tonumber(marks[2] or 1)
if log == 'v' then
  oldest = math.max(oldest, last - KEPT.EVENTS + 1)
end
local answer = { last, oldest }
local from = math.max(after + 1, oldest)
local wanted = math.min(from + limit - 1, last)
while limit > 0 and from <= wanted do
  local most = math.min(wanted - from + 1, 32) -- an entry has at least one row
  local entries = redis.call('XRANGE', keys[1] .. ':' .. log, text(from), '+', 'COUNT', most)
  for _, entry in ipairs(entries) do
    local number = tonumber(string.match(entry[1], '^%d+'))
    if from <= wanted then
      answer[#answer + 1] = number
      answer[#answer + 1] = entry[2]
      from = number + 1
    end
  end
  if #entries == 0 then
    break
  end
end
return answer
