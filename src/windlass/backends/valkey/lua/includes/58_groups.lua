-- Groups: which jobs are parked, admitted to the line, and may start. The rules of `windlass.core.limit_rules`; the order of
-- steps is that of the engine.

function groups.get(q, name)
  local g = q.groups[name]
  if not g then
    local packed = redis.call('HGET', q.G, name)
    local empty = { 0, 0, 0, 0, 0, 0, 0, 0, 0, -1, -1, 0, 0, 0 }
    g = { name = name, is_new = not packed, r = packed and damaged.unpacked(packed, empty) or empty }
    g.r[GROUP.RANKED] = g.r[GROUP.RANKED] or 0 -- missing in records of earlier releases
    g.was_ranked = g.r[GROUP.RANKED] > 0
    q.groups[name] = g
  end
  return g
end

-- The limits that apply to a group.
function groups.limits(q, g)
  return g.r[GROUP.OWN] ~= 0 and g.r[GROUP.OWN] or limits.settings(q).every
end

function groups.line_key(q, g)
  return q.root .. ':G:' .. g.name
end

-- --- counts, and when the next job may start ---------------------------------------------------------

local COUNTED = { [STATE.WAITING] = GROUP.WAITING, [STATE.ACTIVE] = GROUP.ACTIVE, [STATE.PARKED] = GROUP.PARKED }
local LATER = { [STATE.SCHEDULED] = true, [STATE.RETRYING] = true }

-- Whether a job is not ordered by its sequence: it has a priority or is `lifo`.
function groups.is_ranked(head)
  return head[HEAD.PRIORITY] ~= 0 or head[HEAD.PLACE] < 0
end

-- The key of jobs of a group that are due later.
function groups.later_key(q, g)
  return q.root .. ':V:' .. g.name
end

-- Counts an unfinished job (`by` 1) or removes it from the counts (-1).
function groups.count(q, g, id, head, by)
  local state, r = head[HEAD.STATE], g.r
  if ENDS[state] then
    return
  end
  r[GROUP.SIZE] = r[GROUP.SIZE] + by
  if COUNTED[state] then
    r[COUNTED[state]] = r[COUNTED[state]] + by
  elseif LATER[state] then
    groups.count_later(q, g, id, head, by)
  end
  if state == STATE.WAITING then
    r[GROUP.WAITING_COST] = r[GROUP.WAITING_COST] + by * groups.cost_of(head)
  end
  if groups.is_ranked(head) then
    r[GROUP.RANKED] = math.max(r[GROUP.RANKED] + by, 0)
  end
  q.touched[g.name] = g
end

function groups.count_later(q, g, id, head, by)
  local kept = head[HEAD.DELIVERIES] > 0
  if kept then
    g.r[GROUP.KEPT] = g.r[GROUP.KEPT] + by
  end
  if by > 0 then
    redis.call('ZADD', groups.later_key(q, g), kept and 0 or 1, place_member_of(id, head))
  else
    redis.call('ZREM', groups.later_key(q, g), place_member_of(id, head))
  end
end

-- The place of the first job that is due later, or nil. `score`: 0 for jobs that ran before, 1 for others.
function groups.first_later(q, g, score)
  local found = redis.call('ZRANGEBYSCORE', groups.later_key(q, g), score, score, 'LIMIT', 0, 1)[1]
  local head = found and head_of(q, id_of(found))
  if found and not damaged.read_only and not (head and LATER[head[HEAD.STATE]]) then -- it could not be read and was failed
    redis.call('ZREM', groups.later_key(q, g), found)
    return groups.first_later(q, g, score)
  end
  return found and place_of(found)
end

function groups.cost_of(head)
  return head[HEAD.OPTIONS][OPTION.COST]
end

-- Whether a job of that cost can ever start: its cost fits the bucket.
function groups.takes(l, cost)
  return l[GROUP_LIMIT.CAPACITY] == 0 or cost <= l[GROUP_LIMIT.CAPACITY]
end

-- When the window of the rate has room for one more start after `ahead` others; nil: no known time.
function groups.window_opens(q, g, l, ahead)
  local counted = limits.in_window(q, g.name, l[GROUP_LIMIT.PER])
  local over = counted + ahead + 1 - l[GROUP_LIMIT.RATE]
  if over <= 0 then
    return q.now
  end
  return over <= counted and limits.start_at(q, g.name, over - 1 - counted) + l[GROUP_LIMIT.PER] or nil
end

-- The level of the bucket, in millionths of a token.
function groups.tokens(q, g, l)
  local full, r = l[GROUP_LIMIT.CAPACITY] * MICRO, g.r
  if r[GROUP.LEVEL_AT] < 0 then
    return full
  end
  return math.min(full, r[GROUP.LEVEL] + math.max(q.now - r[GROUP.LEVEL_AT], 0) * l[GROUP_LIMIT.REFILL])
end

function groups.bucket_covers(q, g, l, cost)
  if cost > l[GROUP_LIMIT.CAPACITY] then
    return nil -- waiting jobs must start first
  end
  local missing = cost * MICRO - groups.tokens(q, g, l)
  return missing <= 0 and q.now or q.now + math.ceil(missing / l[GROUP_LIMIT.REFILL])
end

-- Whether an earlier job of an ordered group keeps this one from starting.
function groups.is_held_up(q, g, l, head)
  local first, _, place = groups.first(q, g)
  if first and place < head[HEAD.PLACE] then
    return true
  end
  if g.r[GROUP.KEPT] > 0 then
    local kept = groups.first_later(q, g, 0)
    if not kept or kept < head[HEAD.PLACE] then -- jobs of earlier releases are counted but not in :V
      return true
    end
  end
  local delayed = l[GROUP_LIMIT.SKIP] ~= 1 and groups.first_later(q, g, 1)
  return delayed and delayed < head[HEAD.PLACE]
end

-- From when on one more job may be admitted, behind all that wait; nil: no known time. With `starting`: from when on a waiting
-- job may start, regardless of others that wait.
function groups.opens_at(q, g, l, head, starting)
  local r, cost = g.r, groups.cost_of(head)
  local ahead, ahead_cost = r[GROUP.WAITING], r[GROUP.WAITING_COST]
  if starting then
    ahead, ahead_cost = 0, 0
  end
  local ordered = l[GROUP_LIMIT.ORDERED] == 1
  local slots = ordered and 1 or l[GROUP_LIMIT.MOST]
  if r[GROUP.PAUSED] == 1 or (slots > 0 and r[GROUP.ACTIVE] + ahead >= slots) then
    return nil
  elseif ordered and groups.is_held_up(q, g, l, head) then
    return nil
  end
  local at = math.max(q.now, r[GROUP.HOLD])
  if l[GROUP_LIMIT.RATE] > 0 then
    local opens = groups.window_opens(q, g, l, ahead)
    at = opens and math.max(at, opens)
  end
  if at and l[GROUP_LIMIT.CAPACITY] > 0 then
    local covers = groups.bucket_covers(q, g, l, ahead_cost + cost)
    at = covers and math.max(at, covers)
  end
  return at
end

function groups.is_ordered(q, name)
  return groups.limits(q, groups.get(q, name))[GROUP_LIMIT.ORDERED] == 1
end

-- Whether a group is ordered but a new job (see `add`) has a priority or is `lifo`.
function groups.refuses_rank(q, name, job)
  return (job[JOB.PRIORITY] ~= 0 or job[JOB.LIFO] == 1) and groups.is_ordered(q, name)
end

-- How many more jobs may be added to a group; -1: any number.
function groups.free(q, name)
  local g = groups.get(q, name)
  local most = groups.limits(q, g)[GROUP_LIMIT.SIZE]
  return most > 0 and math.max(most - g.r[GROUP.SIZE], 0) or -1
end

-- Records the start of a job.
function groups.started(q, name, head)
  local g = groups.get(q, name)
  local l, r = groups.limits(q, g), g.r
  if l[GROUP_LIMIT.RATE] > 0 then
    limits.note_starts(q, name, r[GROUP.NUMBER], 1, l[GROUP_LIMIT.RATE])
    r[GROUP.NUMBER] = r[GROUP.NUMBER] + 1
  end
  if l[GROUP_LIMIT.CAPACITY] > 0 then
    r[GROUP.LEVEL] = groups.tokens(q, g, l) - groups.cost_of(head) * MICRO
    r[GROUP.LEVEL_AT] = q.now
  end
  q.touched[name] = g
end

-- --- moving jobs ----------------------------------------------------------------------------------------

-- The first parked job: id, score and place; nil if there is none.
function groups.first(q, g)
  if g.r[GROUP.PARKED] == 0 then
    return nil
  end
  local found = redis.call('ZRANGE', groups.line_key(q, g), 0, 0, 'WITHSCORES')
  local head = found[1] and head_of(q, id_of(found[1]))
  if head and ENDS[head[HEAD.STATE]] and not damaged.read_only then -- it could not be read and was failed
    redis.call('ZREM', groups.line_key(q, g), found[1])
    return groups.first(q, g)
  end
  return found[1] and id_of(found[1]), tonumber(found[2]), found[1] and place_of(found[1])
end

function groups.has_room(q, g, l, head)
  local first, score, place = groups.first(q, g)
  if first then
    local own = 0 - head[HEAD.PRIORITY]
    if score < own or (score == own and place < head[HEAD.PLACE]) then
      return false
    end
  end
  local at = groups.opens_at(q, g, l, head)
  return at ~= nil and at <= q.now
end

-- Fails a job whose cost is more than the capacity of its group's bucket.
function groups.refuse(q, id, head)
  local message = 'its cost of ' .. text(groups.cost_of(head)) .. " is more than the bucket of group '"
    .. groups.of(head) .. "' holds"
  local failure = { SAID.COST, message, '', SAID.COST }
  keep_error(q, id, head, failure, 0)
  record(q, id, head, RAN.FAILED, nil, failure)
  finish(q, id, head, STATE.FAILED, 'cost_exceeds_capacity')
  note(q, EVENT.FAILED, id, head, 'cost_exceeds_capacity', SAID.COST, message)
end

function groups.park(q, id, head)
  leave(q, id, head)
  line.count_time(q, head)
  head[HEAD.STATE] = STATE.PARKED
  note(q, EVENT.PARKED, id, head)
  enter(q, id, head)
end

-- Notes when the next parked job of a group may start (nil: no known time).
function groups.wait_until(q, g, at)
  at = at or -1
  if at == g.r[GROUP.NEXT] then
    return
  end
  g.r[GROUP.NEXT], q.touched[g.name] = at, g
  if at < 0 then
    redis.call('ZREM', q.H, g.name)
  else
    redis.call('ZADD', q.H, text(at), g.name)
    q.ready = q.ready or not q.claiming -- wakes idle workers, which must learn how long to sleep
  end
end

-- Admits a parked job to the line, or fails it if it has expired or costs too much.
function groups.move(q, id, head, l)
  if line.is_expired(q, head) then
    expire(q, id, head)
  elseif not groups.takes(l, groups.cost_of(head)) then
    groups.refuse(q, id, head)
  else
    leave(q, id, head)
    line.count_time(q, head)
    head[HEAD.STATE] = STATE.WAITING
    q.joins[head] = true
    note(q, EVENT.PROMOTED, id, head)
    enter(q, id, head)
  end
end

-- Admits parked jobs in order, as many as have room and at most `budget`; returns how many. If more have room, the group is due
-- at once, and the next claim continues.
function groups.advance(q, g, budget)
  local l, moved, at = groups.limits(q, g), 0, nil
  local before = q.moving
  q.moving = true
  while true do
    local id = groups.first(q, g)
    local head = id and head_of(q, id)
    if not head then
      at = nil
      break
    end
    local cost = groups.cost_of(head)
    at = groups.opens_at(q, g, l, head)
    if groups.takes(l, cost) and (not at or at > q.now) then
      break
    elseif moved >= budget or groups.left <= 0 then
      at = q.now
      break
    end
    groups.move(q, id, head, l)
    moved, groups.left = moved + 1, groups.left - 1
  end
  q.moving = before
  groups.wait_until(q, g, at)
  return moved
end

-- Admits parked jobs of all groups of a queue whose time has come; returns how many.
function groups.advance_timed(q, budget)
  if not limits.settings(q).has_groups then
    return 0
  end
  if q.refit then
    groups.refit_some(q)
  end
  local moved, seen = 0, 0
  while moved < budget and groups.left > 0 and seen < STEP do
    local first = redis.call('ZRANGE', q.H, 0, 0, 'WITHSCORES')
    if not first[1] or tonumber(first[2]) > q.now then
      break
    end
    moved, seen = moved + groups.advance(q, groups.get(q, first[1]), budget - moved), seen + 1
  end
  return moved
end

-- Whether a waiting job may start now. If not, it is parked, or failed.
function groups.may_start(q, id, head, name)
  local g = groups.get(q, name)
  local l = groups.limits(q, g)
  if not groups.takes(l, groups.cost_of(head)) then
    groups.refuse(q, id, head)
    return false
  end
  local at = groups.opens_at(q, g, l, head, true)
  if at and at <= q.now then
    return true
  end
  groups.park(q, id, head)
  return false
end

-- --- at every change of a job of a group ---------------------------------------------------------------

-- Called when a job leaves its index. Returns true if it is in none, because its last change was not applied yet.
function groups.leave(q, id, head, name)
  local group_change = rawget(q, 'group_change')
  if group_change and group_change.head == head and group_change.is_undecided then
    q.group_change = nil
    return true
  end
  groups.count(q, groups.get(q, name), id, head, -1)
  return false
end

-- Gives a pending job of an ordered group the place of its sequence, without a priority.
function groups.take_place(q, head, name)
  if head[HEAD.STATE] ~= STATE.ACTIVE and not ENDS[head[HEAD.STATE]] and groups.is_ordered(q, name) then
    head[HEAD.PLACE], head[HEAD.PRIORITY] = head[HEAD.SEQ], 0
  end
end

-- Called when a job enters its index. Returns true if that must wait for `apply_change`, because the group may have no room.
function groups.enter(q, id, head, name)
  if q.moving then
    groups.count(q, groups.get(q, name), id, head, 1)
    return false
  end
  groups.take_place(q, head, name)
  local is_undecided = head[HEAD.STATE] == STATE.WAITING and q.joins[head] ~= nil
  q.group_change = { id = id, head = head, name = name, is_undecided = is_undecided }
  if not is_undecided then
    groups.count(q, groups.get(q, name), id, head, 1)
  end
  return is_undecided
end

-- Applies the change of a job to its group: it may have to be parked, or others may have room now.
function groups.apply_change(q, group_change)
  local g, head, id = groups.get(q, group_change.name), group_change.head, group_change.id
  local l = groups.limits(q, g)
  q.moving = true
  if group_change.is_undecided then
    if not groups.takes(l, groups.cost_of(head)) then
      head[HEAD.STATE] = STATE.NOWHERE
      groups.refuse(q, id, head)
    elseif not groups.has_room(q, g, l, head) then
      head[HEAD.STATE] = STATE.NOWHERE
      groups.park(q, id, head)
    else
      enter(q, id, head)
    end
    q.joins[head] = nil
  end
  q.moving = nil
  groups.advance(q, g, STEP)
end

-- Notes a change that did not move the job, so that its group is checked.
function groups.recheck(q, id, head)
  local name = groups.of(head)
  if name and not rawget(q, 'group_change') then
    q.group_change = { id = id, head = head, name = name }
  end
end
