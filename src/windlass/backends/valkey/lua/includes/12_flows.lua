-- Keys of flows, signals and live output, and the start of every call.
--
-- An edge is stored with the dependent; the child only has links to the dependents to notify. They may be in different slots.
--   :b      zset    blocked: score enqueued, member sequence + id
--   :u      zset    suspended without a timeout: like :b. Those with a timeout are in :d, and their ids in
--   :T      set
--   :D:<id> hash    edges of a dependent: child (<queue>:<id>) -> edge, see `55_flows.lua`
--   :O:<id> set     children that the dependent waits for
--   :B:<id> zset    children that make the dependent fail, in the order of its edges
--   :N:<n>  zset    links of the child with sequence n, in the order in which they were made: <sequence>:<queue>:<id> of
--                   the dependent; the score of '' is the last link that was notified
--   :x      stream  outbox: ends that are not relayed yet. Ends and links are numbered together (`xn` of the root): an end
--                   concerns links with smaller numbers
--   :y      hash    sequence -> number of ends of that job in the outbox
--   :L      zset    dependents with children that are not linked yet: score since when
--   :S:<id> hash    signals: name -> time (6 bytes), length and text of codec (1 + n), data
--   :p:<id> stream  live output: id = number of the chunk
--   :q      hash    id -> packed {last, oldest, size, delivery, base} of its output

-- Functions for flows. `alone`: there is one server, so every queue can be reached in this call. `ended`: jobs with links
-- that ended during this call, in order.
local flow = {}

-- Functions for limits, groups and the line of waiting jobs, see `14_limits.lua`, `58_groups.lua` and `22_line.lua`.
local limits, groups, line = {}, {}, {}

-- Functions for records that cannot be read, see `53_damaged.lua`. `read_only`: this call must not write.
local damaged = {}

-- Starts a call: resets state of the last one, and removes the guard from the keys, see `loader.guard_key`.
local function begin(keys, read_only)
  damaged.read_only = read_only
  flow.ended = nil
  groups.left = STEP -- the most parked jobs that this call may move
  flow.alone = string.sub(keys[#keys], -2) ~= ':?'
  if not flow.alone then
    keys[#keys] = nil
  end
end

-- Adds the optional fields of a head, which it has once one of them is needed.
function flow.add_fields(head)
  if not head[HEAD.LINKED] then
    head[HEAD.LINKED], head[HEAD.AWAITS], head[HEAD.SIGNALS], head[HEAD.STREAMED] = 0, '', 0, 0
  end
end
