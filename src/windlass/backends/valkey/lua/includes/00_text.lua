-- Numbers as text. Names in capitals come from Python, see `words.py`, unless a file says what they are.

local PLACE_OFFSET = 4503599627370496 -- 2^52: microseconds until the year 2112, and as many below 0
local INTEGER = nil -- '%d' is quicker, but some servers have integers of 32 bits

local function text(number)
  INTEGER = INTEGER or (string.format('%d', PLACE_OFFSET) == '4503599627370496' and '%d' or '%.0f')
  return string.format(number % 1 == 0 and INTEGER or '%.0f', number)
end
