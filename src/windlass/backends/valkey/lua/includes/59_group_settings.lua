-- Groups: settings, writing and removing records.

-- Starts no job of a group for `ms` (0: ends the hold); returns until when.
function groups.hold(q, name, ms)
  local g = groups.get(q, name)
  g.r[GROUP.HOLD] = ms > 0 and math.max(g.r[GROUP.HOLD], q.now + ms) or 0
  q.touched[name], q.ready = g, true
  groups.advance(q, g, STEP)
  return g.r[GROUP.HOLD]
end

function groups.pause(q, name, paused)
  local g = groups.get(q, name)
  if g.r[GROUP.PAUSED] == paused then
    return 0
  end
  g.r[GROUP.PAUSED], q.touched[name], q.ready = paused, g, true
  groups.advance(q, g, STEP)
  return 1
end

-- After a change of limits: removes use that no longer counts.
function groups.fit(q, g)
  local l = groups.limits(q, g)
  if l[GROUP_LIMIT.RATE] == 0 then
    redis.call('UNLINK', limits.starts_key(q, g.name))
  else
    limits.trim(q, g.name, l[GROUP_LIMIT.RATE])
  end
  if l[GROUP_LIMIT.CAPACITY] == 0 then
    g.r[GROUP.LEVEL_AT] = -1
  end
  q.touched[g.name] = g
  if g.r[GROUP.PARKED] > 0 then
    groups.wait_until(q, g, q.now)
  end
end

-- The names of up to 1,000 groups after `name` ('': from the first).
function groups.names(q, name)
  return redis.call('ZRANGEBYLEX', q.A, name == '' and '-' or ('(' .. name), '+', 'LIMIT', 0, STEP)
end

-- Applies a new `every` to up to 1,000 groups without their own limits; claims continue with the rest.
function groups.refit_some(q)
  groups.write(q)
  local names = groups.names(q, q.refit)
  for _, name in ipairs(names) do
    local g = groups.get(q, name)
    if g.r[GROUP.OWN] == 0 then
      groups.fit(q, g)
    end
  end
  if #names == STEP then
    q.refit = names[STEP]
    redis.call('HSET', q.root, 'refit', q.refit)
  else
    q.refit = false
    redis.call('HDEL', q.root, 'refit')
  end
end

-- The name of the first group that new limits would make ordered although it has jobs with a priority or `lifo`; nil if there is
-- none. `name` nil: the limits of every group without its own limits change.
function groups.refuses_order(q, name, l)
  local every = limits.settings(q).every
  local after = l ~= 0 and l or (name and every or limits.none)
  if after[GROUP_LIMIT.ORDERED] ~= 1 then
    return nil
  end
  for _, each in ipairs(name and { name } or redis.call('ZRANGE', q.R, 0, STEP - 1)) do
    local g = groups.get(q, each)
    if g.r[GROUP.RANKED] > 0 and (name or g.r[GROUP.OWN] == 0) and groups.limits(q, g)[GROUP_LIMIT.ORDERED] ~= 1 then
      return each
    end
  end
  return nil
end

function groups.set_every(q, l)
  limits.settings(q).every = l ~= 0 and l or limits.none
  if l ~= 0 then
    redis.call('HSET', q.root, 'every', cmsgpack.pack(l))
  else
    redis.call('HDEL', q.root, 'every')
  end
  q.refit, q.ready = '', true
  groups.advance_timed(q, STEP)
end

function groups.set_own(q, name, l)
  local g = groups.get(q, name)
  g.r[GROUP.OWN], q.ready = l, true
  groups.fit(q, g)
  groups.advance(q, g, STEP)
end

-- --- records -----------------------------------------------------------------------------------------------

-- Whether the record of a group can be removed: no job, no settings, no use that still counts.
function groups.is_idle(q, g)
  local l, r = groups.limits(q, g), g.r
  if r[GROUP.OWN] ~= 0 or r[GROUP.SIZE] > 0 or r[GROUP.PAUSED] == 1 or r[GROUP.HOLD] > q.now then
    return false
  elseif l[GROUP_LIMIT.RATE] > 0 and limits.in_window(q, g.name, l[GROUP_LIMIT.PER]) > 0 then
    return false
  end
  return l[GROUP_LIMIT.CAPACITY] == 0 or groups.tokens(q, g, l) >= l[GROUP_LIMIT.CAPACITY] * MICRO
end

function groups.forget(q, g)
  redis.call('ZREM', q.R, g.name)
  redis.call('HDEL', q.G, g.name)
  redis.call('ZREM', q.A, g.name)
  redis.call('ZREM', q.H, g.name)
  redis.call('UNLINK', limits.starts_key(q, g.name))
  q.groups[g.name] = nil
end

-- Writes the records of changed groups. The record of an idle group without rate and bucket is removed.
function groups.write(q)
  for name, g in pairs(rawget(q, 'touched') or {}) do
    local l = groups.limits(q, g)
    if l[GROUP_LIMIT.RATE] == 0 and l[GROUP_LIMIT.CAPACITY] == 0 and groups.is_idle(q, g) then
      groups.forget(q, g)
    else
      redis.call('HSET', q.G, name, cmsgpack.pack(g.r))
      local ranked = g.r[GROUP.RANKED] > 0
      if ranked ~= g.was_ranked then
        redis.call(ranked and 'ZADD' or 'ZREM', q.R, unpack(ranked and { 0, name } or { name }))
        g.was_ranked = ranked
      end
      if g.is_new then
        redis.call('ZADD', q.A, 0, name)
        redis.call('HSET', q.root, 'groups', 1)
        g.is_new, q.has_groups = false, '1'
      end
    end
  end
  q.touched = nil
end

-- Removes the records of up to 1,000 idle groups; returns whether there may be more.
function groups.prune(q)
  if not limits.settings(q).has_groups then
    return false
  end
  local names = groups.names(q, redis.call('HGET', q.root, 'tidy') or '')
  for _, name in ipairs(names) do
    local g = groups.get(q, name)
    if groups.is_idle(q, g) then
      groups.forget(q, g)
    else
      local oldest = q.now - math.max(groups.limits(q, g)[GROUP_LIMIT.PER], STARTS_KEPT_MS)
      redis.call('ZREMRANGEBYSCORE', limits.starts_key(q, name), '-inf', text(oldest))
    end
  end
  if #names == STEP then
    redis.call('HSET', q.root, 'tidy', names[STEP])
  else
    redis.call('HDEL', q.root, 'tidy')
  end
  return #names == STEP
end

-- Removes up to 1,000 groups of a queue that is removed; it has no jobs. Returns whether there may be more.
function groups.forget_some(q)
  groups.write(q)
  local names = groups.names(q, '')
  for _, name in ipairs(names) do
    groups.forget(q, groups.get(q, name))
  end
  return #names == STEP
end
