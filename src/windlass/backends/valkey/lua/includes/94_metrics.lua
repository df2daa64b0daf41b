-- Roll-ups of a queue's history: rows by minute and by hour, which clients compute and merge.
--
--   (root)         `ro`: the last history row that was rolled up, `ro_ms`: when
--   :minutes       hash    start of the window (6 bytes) + task -> row
--   :minutes:keys  zset    the same keys, with score 0: by time, then task
--   :hours, :hours:keys    the same

local metrics = {}

local METRICS_KEPT = 500000 -- rows of one queue and step
local METRICS_STEPS = { ':minutes', KEPT.MINUTES_MS, ':hours', KEPT.HOURS_MS }

function metrics.cursor(root)
  return tonumber(redis.call('HGET', root, 'ro') or 0)
end

-- Up to which row the history may be removed: `copied` (-1: no archiver), or less while a process rolls it up.
function metrics.held(q, copied)
  local marks = redis.call('HMGET', q.root, 'ro', 'ro_ms')
  if not marks[1] or tonumber(marks[2]) <= q.now - KEPT.ROLL_UP_MS then
    return copied
  end
  local rolled_up = tonumber(marks[1])
  return copied < 0 and rolled_up or math.min(copied, rolled_up)
end

-- Removes the oldest rows that are too old or too many, at most `limit`; returns how many.
function metrics.prune(q, limit)
  local removed = 0
  for at = 1, #METRICS_STEPS, 2 do
    local key = q.root .. METRICS_STEPS[at]
    local before = '(' .. struct.pack('>I6', math.max(q.now - METRICS_STEPS[at + 1], 0))
    local old = redis.call('ZRANGEBYLEX', key .. ':keys', '-', before, 'LIMIT', 0, limit - removed)
    local extra = math.min(redis.call('ZCARD', key .. ':keys') - METRICS_KEPT, limit - removed)
    if extra > #old then
      old = redis.call('ZRANGE', key .. ':keys', 0, extra - 1)
    end
    if #old > 0 then
      send('ZREM', key .. ':keys', old)
      send('HDEL', key, old)
    end
    removed = removed + #old
  end
  return removed
end
