-- Keys of unique keys. `57_unique.lua` has the rules, which are those of `windlass.core.unique_rules`.
--
--   :K      hash    key -> packed entry, see ENTRY in `57_unique.lua`
--   :Y      zset    all keys, with score 0: in the order of listings
--   :E      zset    keys with a ttl: score until when

local unique = {}

-- The unique key in these options, or nil.
function unique.of(options)
  local found = options ~= 0 and options[OPTION.UNIQUE]
  return found ~= 0 and found or nil
end
