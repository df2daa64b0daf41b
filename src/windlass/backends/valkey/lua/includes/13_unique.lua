-- Unique keys: who holds them. The same rules as `windlass.core.unique`, in `57_unique.lua`.
--
--   :K      hash    key -> packed {id of its holder, until or -1, request id of the last add that replaced its data}
--   :Y      zset    all keys, of score 0: listings are in order of keys
--   :E      zset    keys with a time: score until when

-- OPTIONS is longer for jobs with a group or a unique key: these override what the record says.
-- GROUP is 0 or its name, UNIQUE is 0 or {key, mode, ttl or -1}, LIFO 1 or 0. TOTAL, how long all attempts together may
-- take, is there only where it was said.
local GROUP, COST, UNIQUE, LIFO, TOTAL = 11, 12, 13, 14, 15
local KEY, MODE, KEY_TTL = 1, 2, 3
local UNTIL_START, THROTTLE, DEBOUNCE, KEEP_LAST = 2, 3, 4, 5

local unique = {}

-- What these options say of a key: nil when nothing.
function unique.of(options)
  local found = options ~= 0 and options[UNIQUE]
  return found ~= 0 and found or nil
end
