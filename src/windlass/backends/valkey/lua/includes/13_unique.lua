-- Unique keys: who holds them. The same rules as `windlass.core.unique_rules`, in `57_unique.lua`.
--
--   :K      hash    key -> packed {id of its holder, until or -1, request id of the last add that replaced its data}
--   :Y      zset    all keys, of score 0: listings are in order of keys
--   :E      zset    keys with a time: score until when

local unique = {}

-- What these options say of a key: nil when nothing.
function unique.of(options)
  local found = options ~= 0 and options[OPTION.UNIQUE]
  return found ~= 0 and found or nil
end
