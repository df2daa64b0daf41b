-- Jobs that wait for jobs, for signals, and live output: their keys, and what every call begins with.
--
-- An edge lives with the dependent; the child only knows whom to notify. Both may be in different slots.
--   :b      zset    blocked: score enqueued, member sequence + id
--   :u      zset    suspended without a limit: the same. With a limit they are in :d, and their ids in
--   :T      set
--   :D:<id> hash    edges of a dependent: child (<queue>:<id>) -> edge, see `55_flows.lua`
--   :O:<id> set     children that it waits for
--   :B:<id> zset    children that make it fail, in the order of its edges
--   :N:<n>  zset    links of the child with sequence n, in the order of their making: <sequence>:<queue>:<id> of the
--                   dependent; '' marks how far they were notified
--   :x      stream  outbox: ends that were not relayed yet, under numbers (`xn` of the root) that links have, too: an
--                   end concerns links with smaller numbers
--   :y      hash    sequence -> how many ends of that job are in the outbox
--   :L      zset    dependents of which some child was not linked yet: score since when
--   :S:<id> hash    signals: name -> time (6 bytes), length and text of codec (1 + n), data
--   :p:<id> stream  live output: id = number of the chunk
--   :q      hash    id -> packed {last, oldest, size, delivery, base} of its output

-- Functions of this subject; `alone`: there is one server, so every queue can be reached from here; `ended`: jobs
-- with links that ended during this call, in order.
local flow = {}

-- Functions of limits, groups and turns, see `14_limits.lua`.
local limits, groups, line = {}, {}, {}

-- Functions about records that cannot be read, see `53_damaged.lua`; `looks`: this call must not write.
local damaged = {}

-- Takes the guard off the keys of a call, see `loader.guard_key`.
local function begin(keys, looks)
  damaged.looks = looks
  flow.ended = nil
  groups.left = STEP -- this many parked jobs may be moved in one call
  flow.alone = string.sub(keys[#keys], -2) ~= ':?'
  if not flow.alone then
    keys[#keys] = nil
  end
end

-- Gives a head the fields that it has only once one of them is needed.
function flow.add_fields(head)
  if not head[HEAD.LINKED] then
    head[HEAD.LINKED], head[HEAD.AWAITS], head[HEAD.SIGNALS], head[HEAD.STREAMED] = 0, '', 0, 0
  end
end
