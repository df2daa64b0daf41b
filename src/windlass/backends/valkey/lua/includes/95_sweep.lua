-- Removing records past their retention, and removing on request. Every step is bounded.

local sweep = {}

function sweep.by_score(one, two)
  return one[1] < two[1] or (one[1] == two[1] and one[2] < two[2])
end

-- The first `limit` jobs that ended in `state`, from one end of the index or the other: {finished, member}.
function sweep.ended(q, state, command, from, to, limit)
  local found = {}
  for _, key in ipairs(state == STATE.COMPLETED and { q.P, q.C } or { q[ENDS[state]] }) do
    local part = redis.call(command, key, from, to, 'WITHSCORES', 'LIMIT', 0, limit)
    for at = 1, #part, 2 do
      found[#found + 1] = { tonumber(part[at + 1]), part[at] }
    end
  end
  if state == STATE.COMPLETED then
    table.sort(found, sweep.by_score)
    if command == 'ZREVRANGEBYSCORE' then
      return { found[#found] }
    end
  end
  for at = #found, limit + 1, -1 do
    found[at] = nil
  end
  return found
end

function sweep.count_ended(q, state)
  local count = redis.call('ZCARD', q[ENDS[state]])
  return state == STATE.COMPLETED and count + redis.call('ZCARD', q.P) or count
end

-- Members of finished jobs beyond the count that the options of the newest one allow, if their grace time is over.
function sweep.surplus(q, state, limit)
  local newest = sweep.ended(q, state, 'ZREVRANGEBYSCORE', '+inf', '-inf', 1)[1]
  if not newest then
    return {}
  end
  local options = options_of(head_of(q, id_of(newest[2])))
  local kept = state == STATE.FAILED and options[OPTION.KEEP_FAILED_COUNT] or options[OPTION.KEEP_COMPLETED_COUNT]
  local extra = kept >= 0 and sweep.count_ended(q, state) - kept or 0
  if extra <= 0 then
    return {}
  end
  local found, at = {}, 1
  local oldest = sweep.ended(q, state, 'ZRANGEBYSCORE', '-inf', '+inf', math.min(extra, 5 * STEP))
  while at <= #oldest and #found < limit do
    local ids = {}
    for index = at, math.min(at + STEP - 1, #oldest) do
      ids[#ids + 1] = id_of(oldest[index][2])
    end
    load(q, ids)
    for offset, id in ipairs(ids) do
      local head = q.heads[id]
      if head and #found < limit and spare_until(options_of(head), head[HEAD.FINISHED]) <= q.now then
        found[#found + 1] = oldest[at + offset - 1][2]
      end
    end
    at = at + STEP
  end
  return found
end

-- Finished jobs that may be removed, in the order of their ends: {finished, member, id}.
function sweep.prunable(q, limit)
  local seen, found = {}, {}
  local function gather(members)
    for _, member in ipairs(members) do
      if not seen[member] then
        seen[member] = true
        local id = id_of(member)
        local head = head_of(q, id)
        if head then
          found[#found + 1] = { head[HEAD.FINISHED], member, id }
        end
      end
    end
  end
  gather(redis.call('ZRANGEBYSCORE', q.o, '-inf', q.now, 'LIMIT', 0, limit + 1))
  gather(redis.call('ZRANGEBYSCORE', q.P, '-inf', q.now - USUAL[OPTION.KEEP_COMPLETED], 'LIMIT', 0, limit + 1))
  for state in pairs(ENDS) do
    gather(sweep.surplus(q, state, limit + 1))
  end
  table.sort(found, function(one, two)
    if one[1] ~= two[1] then
      return one[1] < two[1]
    end
    return one[2] < two[2]
  end)
  return found
end

function sweep.prune_ids(q)
  local gone = redis.call('ZRANGEBYSCORE', q.k, '-inf', q.now, 'LIMIT', 0, STEP)
  if #gone > 0 then
    redis.call('ZREM', q.k, unpack(gone))
  end
  return #gone
end

-- When an entry of the history was written.
function sweep.time_of(entry)
  local ok, at_ms = pcall(function()
    if entry[2][1] == 'p' then
      return (struct.unpack('>I6', entry[2][2]))
    end
    local _, at_ms = cmsgpack.unpack_one(entry[2][2], 1)
    return at_ms
  end)
  return ok and type(at_ms) == 'number' and at_ms or 0 -- an unreadable entry counts as old
end

-- Removes rows of the history that are too many or too old, if every archiver has copied them (rows up to `copied`; -1: there
-- is no archiver). Rows beyond the hard bound are removed in any case and counted as lost. Returns how many rows were removed,
-- and 1 if there may be more.
function sweep.prune_history(q, copied)
  local marks = redis.call('HMGET', q.root, 'hi', 'hi0')
  local last, first = tonumber(marks[1] or 0), tonumber(marks[2] or 1)
  local from = math.max(first, last - KEPT.HISTORY + 1)
  local read = 0
  for _, entry in ipairs(redis.call('XRANGE', q.h, '-', '+', 'COUNT', 100)) do
    local end_at = tonumber(string.match(entry[1], '^%d+'))
    local at_ms = sweep.time_of(entry)
    if at_ms > q.now - KEPT.HISTORY_MS then
      break
    end
    from, read = math.max(from, end_at + 1), read + 1
  end
  copied = copied < 0 and last or copied
  from = math.max(first, math.min(from, copied + 1), last - KEPT.HISTORY_HELD + 1)
  if from > first then
    local lost = from - math.max(first, copied + 1)
    if lost > 0 then
      redis.call('HINCRBY', q.root, 'c:history_dropped:', lost)
    end
    redis.call('HSET', q.root, 'hi0', text(from))
    redis.call('XTRIM', q.h, 'MINID', text(from))
  end
  return from - first, read == 100 and 1 or 0
end

-- Removes empty streams. Their last numbers are in the root, so they are not needed.
function sweep.drop_empty_streams(q)
  for _, key in ipairs({ q.f, q.v, q.h }) do
    if redis.call('EXISTS', key) == 1 and redis.call('XLEN', key) == 0 then
      redis.call('DEL', key)
    end
  end
end

-- Adds the oldest jobs that ended in `state` up to `before` to `found`, at most `limit`: {finished, member, id}.
function sweep.oldest_finished(q, state, before, limit, found)
  for _, one in ipairs(sweep.ended(q, state, 'ZRANGEBYSCORE', '-inf', before, limit)) do
    found[#found + 1] = { one[1], one[2], id_of(one[2]) }
  end
end

function sweep.gather_pending(q, ids, state, before, found)
  load(q, ids)
  for _, id in ipairs(ids) do
    local head = q.heads[id]
    if head and (head[HEAD.STATE] == state or q.aside[id]) and head[HEAD.ENQUEUED] <= before then
      found[#found + 1] = { head[HEAD.ENQUEUED], member_of(q, id, head), id }
    end
  end
end

local PENDING = { [STATE.WAITING] = 'w', [STATE.PARKED] = 'Q', [STATE.ACTIVE] = 'a', [STATE.BLOCKED] = 'b' }

function sweep.oldest_pending(q, state, before, limit, found)
  local ids, wanted = {}, math.max(limit, STEP)
  if state == STATE.WAITING then
    for _, entry in ipairs(next_fresh(q, limit)) do
      ids[#ids + 1] = entry[2][2]
    end
  end
  local key = q[PENDING[state] or 'd']
  if state == STATE.SUSPENDED then -- those without a timeout are in :u
    for _, member in ipairs(redis.call('ZRANGE', q.u, 0, limit - 1)) do
      ids[#ids + 1] = id_of(member)
    end
  end
  for from = 0, 10 * STEP - 1, wanted do
    local members = redis.call('ZRANGE', key, from, from + wanted - 1)
    for _, member in ipairs(members) do
      ids[#ids + 1] = state == STATE.WAITING and line.id_of(member) or id_of(member)
    end
    sweep.gather_pending(q, ids, state, before, found)
    if #found >= limit or #members < wanted then
      break
    end
    ids = {}
  end
end
