-- unique_list: unique keys that are held, by key; reads at most 1,000 of them.
-- KEYS: queue root
-- ARGV: now or '', packed {limit, 1 if there is a cursor}, cursor: the key after which to start
-- returns: 1 if there may be more, the last key that was read, then key, id, until (-1: no time) of each
-- flags: no-writes
local q = open(keys[1], now_from(args[1]))
local limit, beyond = unpack(cmsgpack.unpack(args[2]))
local names = redis.call('ZRANGEBYLEX', q.Y, beyond == 1 and ('(' .. args[3]) or '-', '+', 'LIMIT', 0, STEP)
local answer, last = { 0, '' }, ''
for _, key in ipairs(names) do
  local entry = unique.get(q, key)
  if entry and #answer == 2 + 3 * limit then
    answer[1], answer[2] = 1, answer[#answer - 2]
    return answer
  elseif entry then
    answer[#answer + 1], answer[#answer + 2], answer[#answer + 3] = key, entry[ENTRY.HOLDER], entry[ENTRY.UNTIL]
  end
  last = key
end
if #names == STEP then
  answer[1], answer[2] = 1, last
end
return answer
