-- Choosing who is first in line.
--
-- Order is (priority from high to low, turn, place). The zset :w holds it exactly; the stream :f, behind its cursor, holds
-- the fresh jobs of priority 0. Both are read from the front and merged.

-- Returns ids in order, those of them that are fresh, and the others.
local function front(q, amount)
  local ranked = redis.call('ZRANGE', q.w, 0, amount - 1, 'WITHSCORES')
  local order, fresh, others, plain = {}, {}, {}, nil
  if #ranked == 0 then -- the usual case
    local entries = unpicked(q, amount + 1)
    for index = 1, math.min(#entries, amount) do
      fresh[index] = entries[index][2][2]
    end
    q.more = #entries > amount
    return fresh, fresh, others
  end
  q.more = nil
  local at, plain_at = 1, 1
  while #order < amount do
    local score = ranked[at] and tonumber(ranked[at + 1])
    local place, entry
    if not score or score >= 0 then
      plain = plain or unpicked(q, amount - #order)
      entry = plain[plain_at]
      place = entry and tonumber(string.match(entry[1], '^%d+'))
    end
    local first = place and (not score or score > 0)
    if place and not first then -- those in :f have turn 0
      first = line.turn_of(ranked[at]) > 0 or place < line.place_of(ranked[at])
    end
    if first then
      order[#order + 1] = entry[2][2]
      fresh[plain_at] = entry[2][2]
      plain_at = plain_at + 1
    elseif score then
      order[#order + 1] = line.id_of(ranked[at])
      others[#others + 1] = order[#order]
      at = at + 2
    else
      break
    end
  end
  return order, fresh, others
end

local function new_claim(request, now)
  local claim = { worker = request[1], lease_ms = request[2], id = request[3], seat = '', paused = {} }
  claim.ids, claim.from, claim.plain = {}, {}, {} -- of every leased job: id, queue, record if it is plain
  claim.fits = #claim.worker < 256 and #claim.id < 250
  if claim.fits then
    claim.head, claim.started, claim.deadline = string.char(LEAN), struct.pack('>I6', now), text(now + claim.lease_ms)
    claim.worker_text = string.char(#claim.worker) .. claim.worker
  end
  return claim
end

local function note_pick(claim, q, id, record)
  local size = #claim.ids + 1
  claim.ids[size], claim.from[size], claim.plain[size] = id, q, record
end

-- Leases a plain job to which nothing happened yet.
local function lease_plain(q, id, record, claim)
  local token = claim.id .. '.' .. #claim.ids
  local task_end = 15 + record:byte(15)
  local writes = writes_of(q, 'leased')
  local n = writes.n
  writes.heads[2 * n + 1], writes.n = id, n + 1
  writes.heads[2 * n + 2] = claim.head .. record:sub(2, 14) .. claim.started .. string.char(#token) .. token
    .. claim.worker_text .. record:sub(15, task_end)
  writes.active[2 * n + 1], writes.active[2 * n + 2] = claim.deadline, record:sub(2, 8) .. id
  note_run(q, E_STARTED, id, record:sub(16, task_end), 1, claim.worker)
  q.last, q.picked = record, q.picked + 1
  note_pick(claim, q, id, record)
end

-- Leases the next in line; false when it may not start: it is past its time, or its group has no room.
local function take(q, id, claim)
  local head, record = q.heads[id], q.records[id]
  if head == nil and claim.fits and is_plain(record) then
    lease_plain(q, id, record, claim)
    return true
  elseif head == nil then
    head = unpack_fresh(record)
    q.heads[id], q.fresh[id] = head, true
  end
  if head[EXPIRES] ~= 0 and head[EXPIRES] <= q.now and head[DELIVERIES] == 0 then
    expire(q, id, head)
    return false
  end
  local group = groups.of(head)
  if group and not groups.may_start(q, id, head, group) then
    file(q)
    return false
  end
  lease(q, id, head, claim.id .. '.' .. #claim.ids, claim.worker, claim.lease_ms)
  note_pick(claim, q, id, false)
  if group then
    groups.started(q, group, head)
    file(q)
  end
  return true
end

-- Leases up to `room` jobs of `q`, as far as its limits allow; ends those that are past their time on the way. Returns how many were leased.
local function pick(q, room, claim)
  local taken, passed = 0, 0
  if q.own then
    room = math.min(room, (limits.room(q)))
  end
  while taken < room and passed < STEP and q.more ~= false do
    local order, fresh, others = front(q, math.min(room - taken, STEP))
    if #order == 0 then
      break
    end
    load(q, others)
    load_records(q, fresh)
    q.picking, q.inserted = true, false
    for _, id in ipairs(order) do
      if take(q, id, claim) then
        taken = taken + 1
      else
        passed = passed + 1
      end
      if q.inserted then -- somebody was let in, who may be first in line now
        q.more = nil
        break
      end
    end
    q.picking = false
    settle_down(q)
  end
  if q.own then
    limits.started(q, taken)
  end
  return taken
end

-- Promotes what is due in `q`, at most `budget`; returns how many.
local function promote_due(q, budget)
  local first = redis.call('ZRANGE', q.d, 0, 0, 'WITHSCORES')
  if budget <= 0 or not first[2] or tonumber(first[2]) > q.now then
    q.first_due = first[2] and tonumber(first[2]) or false -- nothing else enters :d in a claim
    return 0
  end
  return promote_members(q, redis.call('ZRANGEBYSCORE', q.d, '-inf', q.now, 'LIMIT', 0, budget))
end
