-- Schedules of a queue. The same rules as `windlass.core.schedules`; slots are computed by whoever asks.
--
--   :schedules        hash    name -> length of its state (4 bytes), state, the record as it was put
--   :schedules:names  zset    names, all of score 0: listings are in order of names
--   :schedules:due    zset    name -> next slot, of those that have one and are not paused

-- A state is an array; -1 stands for "none".
local S_PAUSED, S_NEXT, S_LAST, S_LAST_ID, S_FIRED, S_SKIPPED = 1, 2, 3, 4, 5, 6
local S_END, S_LIMIT, S_ALONE, S_SOURCE, S_RULE = 7, 8, 9, 10, 11

local schedules = {}

-- State and record of a schedule; nil when it is not there, or cannot be read.
function schedules.get(q, name)
  local stored = redis.call('HGET', q.root .. ':schedules', name)
  if not stored then
    return nil
  end
  local ok, size = pcall(struct.unpack, '>I4', stored)
  local state = ok and damaged.unpacked(stored:sub(5, 4 + size), nil)
  if not state then
    return nil -- it cannot be read
  end
  return state, stored:sub(5 + size)
end

function schedules.save(q, name, state, record)
  local key, packed = q.root .. ':schedules', cmsgpack.pack(state)
  redis.call('HSET', key, name, struct.pack('>I4', #packed) .. packed .. record)
  redis.call('ZADD', key .. ':names', 0, name)
  if state[S_PAUSED] == 1 or state[S_NEXT] < 0 then
    redis.call('ZREM', key .. ':due', name)
  else
    redis.call('ZADD', key .. ':due', text(state[S_NEXT]), name)
  end
end

function schedules.drop(q, name)
  local key = q.root .. ':schedules'
  redis.call('HDEL', key, name)
  redis.call('ZREM', key .. ':names', name)
  redis.call('ZREM', key .. ':due', name)
end

-- The queue itself is forgotten, and its schedules with it.
function schedules.forget(q)
  local key = q.root .. ':schedules'
  redis.call('UNLINK', key, key .. ':names', key .. ':due')
end

-- A next slot as far as limit and end allow it.
function schedules.bounded(state, next_ms)
  if state[S_LIMIT] >= 0 and state[S_FIRED] >= state[S_LIMIT] then
    return -1
  elseif state[S_END] >= 0 and next_ms > state[S_END] then
    return -1
  end
  return next_ms
end

-- The state after `new` was put where `old` (or nil) was.
function schedules.merged(old, new)
  if old then
    new[S_PAUSED], new[S_LAST], new[S_LAST_ID] = old[S_PAUSED], old[S_LAST], old[S_LAST_ID]
    if old[S_RULE] == new[S_RULE] then
      new[S_FIRED], new[S_SKIPPED] = old[S_FIRED], old[S_SKIPPED]
      new[S_NEXT] = old[S_NEXT] >= 0 and old[S_NEXT] or new[S_NEXT]
    end
  end
  new[S_NEXT] = schedules.bounded(new, new[S_NEXT])
  return new
end

-- How many of the jobs of due slots may be added: within the limit, and without overlap if so asked.
function schedules.room(q, state, wanted)
  if state[S_ALONE] == 1 and wanted > 0 then
    local last = state[S_LAST_ID] ~= '' and head_of(q, state[S_LAST_ID])
    wanted = (last and not ENDS[last[STATE]]) and 0 or 1
  end
  if state[S_LIMIT] >= 0 then
    wanted = math.min(wanted, math.max(state[S_LIMIT] - state[S_FIRED], 0))
  end
  return wanted
end

-- Adds the first `amount` of `jobs` (as `add` takes them), whose tails begin at args[4]; 1 when the queue became known.
function schedules.add(q, jobs, args, amount)
  if amount == 0 then
    return 0
  end
  local chosen = { unpack(jobs, 1, amount) }
  prepare_add({ q }, chosen)
  local first, new = take_numbers({ q }, amount, true)
  for index, job in ipairs(chosen) do
    add_one(q, job, args[index + 3], first + index - 1)
  end
  write_plain(q)
  return #new
end
