-- Limits of queues and groups, and fair turns: keys, records, limits of a queue. The rules of `windlass.core.limit_rules`.
--
-- Fields of the root: `limits` (of the queue) and `every` (of every group without its own limits), packed as below; `groups`,
-- set by the first group; `turns`, set when a job of a group first waits: from then on turns are counted; `refit` and `tidy`,
-- the last group that a new `every` was applied to, and that was pruned; `revoked`, packed task -> {until (-1: until it is
-- restored), 1 for the next start only}.
--   :G      hash    group -> its record
--   :A      zset    names of groups, with score 0: in the order of listings
--   :H      zset    groups whose next parked job may start at a known time: score when
--   :Q      zset    all parked jobs: score enqueued, member sequence + id
--   :R      zset    names of groups with unfinished jobs that have a priority or `lifo`, with score 0
--   :G:<g>  zset    parked jobs of a group: score -priority, member place + id
--   :V:<g>  zset    jobs of a group that are due later: score 0 if they ran before, else 1, member place + id
--   :W:<g>  zset    waiting jobs of a group, as in :w; `:W:` for jobs without a group. Only while turns are counted
--   :s:<g>  zset    starts that count for the rate of a group; `:s:` for the whole queue: score time, member number

-- Limits of a queue: concurrency, starts per time, that time (0: no limit), held until, number of the last start.
local LIMIT = { MOST = 1, RATE = 2, PER = 3, HOLD = 4, NUMBER = 5 }

-- The record of a group: numbers of its jobs, settings, and use of its limits. LEVEL is the level of the bucket in millionths
-- of a token at LEVEL_AT (-1: full), NEXT when its next parked job may start (-1: no known time), NUMBER the number of the last
-- start, OWN its own limits or 0. KEPT jobs ran and are due again later, RANKED jobs have a priority or are `lifo`.
local GROUP = {
  SIZE = 1, WAITING = 2, WAITING_COST = 3, ACTIVE = 4, PARKED = 5, KEPT = 6, PAUSED = 7, HOLD = 8,
  LEVEL = 9, LEVEL_AT = 10, NEXT = 11, NUMBER = 12, OWN = 13, RANKED = 14,
}

local STARTS_KEPT_MS = 86400000 -- starts are kept for this long, or for the window of the rate if that is longer

limits.none = { '', 0, 0, 0, 0, 0, 0, 0, 0 } -- for a group

-- The settings of a queue, read once per call.
function limits.settings(q)
  if not q.marked then
    local found = redis.call('HMGET', q.root, 'paused', 'limits', 'every', 'groups', 'refit', 'turns', 'cur', 'revoked')
    q.marked = true
    q.cursor = q.cursor or found[7] or '0'
    q.paused = found[1]
    q.own = found[2] and damaged.unpacked(found[2], false)
    q.every = found[3] and damaged.unpacked(found[3], limits.none) or limits.none
    q.has_groups = found[4]
    q.refit = found[5]
    q.turns = found[6]
    q.revoked = found[8] and damaged.unpacked(found[8], false)
  end
  return q
end

-- The group that these options name, or nil.
function groups.named(options)
  local found = options ~= 0 and options[OPTION.GROUP]
  return found ~= 0 and found or nil
end

-- The group of a job, or nil.
function groups.of(head)
  return groups.named(head[HEAD.OPTIONS])
end

-- --- starts within a rate -----------------------------------------------------------------------------

function limits.starts_key(q, name)
  return q.root .. ':s:' .. name
end

function limits.in_window(q, name, per)
  return redis.call('ZCOUNT', limits.starts_key(q, name), '(' .. text(q.now - per), '+inf')
end

-- The time of a start by its rank: -1 is the newest.
function limits.start_at(q, name, rank)
  return tonumber(redis.call('ZRANGE', limits.starts_key(q, name), rank, rank, 'WITHSCORES')[2])
end

-- Keeps only the newest `most` starts.
function limits.trim(q, name, most)
  redis.call('ZREMRANGEBYRANK', limits.starts_key(q, name), 0, -most - 1)
end

-- Records `count` starts with the numbers after `number`.
function limits.note_starts(q, name, number, count, most)
  local key, at = limits.starts_key(q, name), text(q.now)
  for each = number + 1, number + count do
    redis.call('ZADD', key, at, struct.pack('>I6', each))
  end
  limits.trim(q, name, most)
end

-- --- the whole queue ----------------------------------------------------------------------------------

-- How many jobs may start now. If none may, also the time from which one may (nil: no known time).
function limits.room(q)
  local own = limits.settings(q).own
  if not own then
    return STEP * STEP
  elseif own[LIMIT.HOLD] > q.now then
    return 0, own[LIMIT.HOLD]
  end
  local room = STEP * STEP
  if own[LIMIT.MOST] > 0 then
    room = math.max(own[LIMIT.MOST] - redis.call('ZCARD', q.a), 0)
  end
  if own[LIMIT.RATE] == 0 then
    return room
  end
  local free = own[LIMIT.RATE] - limits.in_window(q, '', own[LIMIT.PER])
  if free <= 0 then
    return 0, limits.start_at(q, '', -own[LIMIT.RATE]) + own[LIMIT.PER]
  end
  return math.min(room, free)
end

function limits.save(q)
  local own = q.own
  if own[LIMIT.MOST] == 0 and own[LIMIT.RATE] == 0 and own[LIMIT.HOLD] <= q.now then
    redis.call('HDEL', q.root, 'limits')
    q.own = false
  else
    redis.call('HSET', q.root, 'limits', cmsgpack.pack(own))
  end
end

-- The limits of a queue; call `save` after a change.
function limits.open(q)
  limits.settings(q)
  q.own = q.own or { 0, 0, 0, 0, 0 }
  return q.own
end

-- Records starts of jobs of the queue.
function limits.started(q, count)
  local own = limits.settings(q).own
  if own and own[LIMIT.RATE] > 0 and count > 0 then
    limits.note_starts(q, '', own[LIMIT.NUMBER], count, own[LIMIT.RATE])
    own[LIMIT.NUMBER] = own[LIMIT.NUMBER] + count
    limits.save(q)
  end
end

-- Sets concurrency and rate, each unless it is -1.
function limits.set(q, most, rate, per)
  local own = limits.open(q)
  if most >= 0 then
    own[LIMIT.MOST] = most
  end
  if rate >= 0 then
    own[LIMIT.RATE], own[LIMIT.PER] = rate, per
  end
  if own[LIMIT.RATE] == 0 then
    redis.call('UNLINK', limits.starts_key(q, ''))
  else
    limits.trim(q, '', own[LIMIT.RATE])
  end
  limits.save(q)
end

-- Starts no job for `ms` (0: ends the hold); returns until when.
function limits.hold(q, ms)
  local own = limits.open(q)
  local until_ms = ms > 0 and math.max(own[LIMIT.HOLD], q.now + ms) or 0
  own[LIMIT.HOLD], q.ready = until_ms, true
  limits.save(q)
  return until_ms
end

-- Whether a job that ends may make room for another.
function limits.is_bounded(q)
  if not q.marked and redis.call('HEXISTS', q.root, 'limits') == 0 then -- most queues have none
    return false
  end
  local own = limits.settings(q).own
  return own and own[LIMIT.MOST] > 0
end

-- --- revoked tasks -----------------------------------------------------------------------------------

-- The revoked tasks of a queue, without expired revocations.
function limits.revoked(q)
  local held = {}
  for task, one in pairs(limits.settings(q).revoked or {}) do
    if one[1] < 0 or q.now < one[1] then
      held[task] = one
    end
  end
  return held
end

-- Writes the revoked tasks. The field is removed when there are none, so that claims need not check.
function limits.save_revoked(q, held)
  if next(held) then
    redis.call('HSET', q.root, 'revoked', cmsgpack.pack(held))
    q.revoked = held
  else
    redis.call('HDEL', q.root, 'revoked')
    q.revoked = false
  end
end

-- Removes expired revocations, before a claim.
function limits.prune_revoked(q)
  local held = limits.revoked(q)
  for task in pairs(q.revoked) do
    if not held[task] then
      return limits.save_revoked(q, held)
    end
  end
end

-- Whether a task is revoked. A revocation for one start is removed by this call.
function limits.uses_revocation(q, task)
  local found = q.revoked[task]
  if found and found[2] == 1 then
    q.revoked[task] = nil
    limits.save_revoked(q, q.revoked)
  end
  return found
end

-- --- upkeep -------------------------------------------------------------------------------------------

-- Removes starts that no longer count.
function limits.prune(q)
  local own = limits.settings(q).own
  if own then
    redis.call('ZREMRANGEBYSCORE', limits.starts_key(q, ''), '-inf', text(q.now - math.max(own[LIMIT.PER], STARTS_KEPT_MS)))
  end
end

-- Removes the limits of a queue that is removed; its groups are gone.
function limits.forget(q)
  redis.call('UNLINK', limits.starts_key(q, ''), q.G, q.A, q.H, q.R)
  redis.call('HDEL', q.root, 'limits', 'every', 'groups', 'turns', 'refit', 'tidy')
  q.marked, q.turns, q.groups, q.touched = nil, nil, nil, nil
end
