-- Schedules of a queue. The rules of `windlass.core.schedule_rules`; clients compute the slots.
--
--   :schedules        hash    name -> length of its state (4 bytes), state, the record as it was put
--   :schedules:names  zset    names, with score 0: in the order of listings
--   :schedules:due    zset    names of schedules that have a next slot and are not paused: score that slot

local schedules = {}

-- State and record of a schedule; nil if it does not exist or cannot be read.
function schedules.get(q, name)
  local stored = redis.call('HGET', q.root .. ':schedules', name)
  if not stored then
    return nil
  end
  local ok, size = pcall(struct.unpack, '>I4', stored)
  local state = ok and damaged.unpacked(stored:sub(5, 4 + size), nil)
  if not state then
    return nil
  end
  return state, stored:sub(5 + size)
end

function schedules.save(q, name, state, record)
  local key, packed = q.root .. ':schedules', cmsgpack.pack(state)
  redis.call('HSET', key, name, struct.pack('>I4', #packed) .. packed .. record)
  redis.call('ZADD', key .. ':names', 0, name)
  if state[SCHEDULE.PAUSED] == 1 or state[SCHEDULE.NEXT] < 0 then
    redis.call('ZREM', key .. ':due', name)
  else
    redis.call('ZADD', key .. ':due', text(state[SCHEDULE.NEXT]), name)
  end
end

function schedules.drop(q, name)
  local key = q.root .. ':schedules'
  redis.call('HDEL', key, name)
  redis.call('ZREM', key .. ':names', name)
  redis.call('ZREM', key .. ':due', name)
end

-- Removes the schedules of a queue that is removed.
function schedules.forget(q)
  local key = q.root .. ':schedules'
  redis.call('UNLINK', key, key .. ':names', key .. ':due')
end

-- The next slot, or -1 if the limit or the end of the schedule is reached.
function schedules.bounded(state, next_ms)
  if state[SCHEDULE.LIMIT] >= 0 and state[SCHEDULE.FIRED] >= state[SCHEDULE.LIMIT] then
    return -1
  elseif state[SCHEDULE.END] >= 0 and next_ms > state[SCHEDULE.END] then
    return -1
  end
  return next_ms
end

-- The state after `new` is put over `old` (nil: there was none).
function schedules.merged(old, new)
  if old then
    new[SCHEDULE.PAUSED], new[SCHEDULE.LAST], new[SCHEDULE.LAST_JOB_ID] = old[SCHEDULE.PAUSED], old[SCHEDULE.LAST], old[SCHEDULE.LAST_JOB_ID]
    if old[SCHEDULE.RULE] == new[SCHEDULE.RULE] then
      new[SCHEDULE.FIRED], new[SCHEDULE.SKIPPED] = old[SCHEDULE.FIRED], old[SCHEDULE.SKIPPED]
      new[SCHEDULE.NEXT] = old[SCHEDULE.NEXT] >= 0 and old[SCHEDULE.NEXT] or new[SCHEDULE.NEXT]
    end
  end
  new[SCHEDULE.NEXT] = schedules.bounded(new, new[SCHEDULE.NEXT])
  return new
end

-- How many of the jobs of due slots may be added, by the limit and, if jobs must not overlap, by the last job.
function schedules.room(q, state, wanted)
  if state[SCHEDULE.ALONE] == 1 and wanted > 0 then
    local last = state[SCHEDULE.LAST_JOB_ID] ~= '' and head_of(q, state[SCHEDULE.LAST_JOB_ID])
    wanted = (last and not ENDS[last[HEAD.STATE]]) and 0 or 1
  end
  if state[SCHEDULE.LIMIT] >= 0 then
    wanted = math.min(wanted, math.max(state[SCHEDULE.LIMIT] - state[SCHEDULE.FIRED], 0))
  end
  return wanted
end

-- Adds the first `amount` of `jobs` (as `add` takes them), whose tails start at args[4]; returns 1 if the queue was new, how many
-- jobs were added, and the number of the last of them.
function schedules.add(q, jobs, args, amount)
  if amount == 0 then
    return 0, 0, nil
  end
  local chosen = { unpack(jobs, 1, amount) }
  adds.prepare_add({ q }, chosen)
  local first, new = take_numbers({ q }, amount, true)
  local added, last = 0, nil
  for index, job in ipairs(chosen) do
    local answer = adds.add_one(q, job, args[index + 3], first + index - 1)
    if answer == 0 or answer[1] == ADDED.QUEUED then
      added, last = added + 1, index
    end
  end
  write_plain(q)
  return #new, added, last
end
