-- Numbers as text. Names in capitals come from Python (`words.py`) unless a Lua file defines them.

local PLACE_OFFSET = 4503599627370496 -- 2^52: more than the microseconds until the year 2112
local INTEGER = nil -- '%d' is faster, but integers of some servers have 32 bits

local function text(number)
  INTEGER = INTEGER or (string.format('%d', PLACE_OFFSET) == '4503599627370496' and '%d' or '%.0f')
  return string.format(number % 1 == 0 and INTEGER or '%.0f', number)
end
