-- Leasing the next jobs in line.
--
-- The order is priority from high to low, turn, place. The zset :w has this order; the stream :f, after its cursor, has the
-- fresh jobs of priority 0, which have not changed since they were added. Both are read from the front and merged.

-- Returns the next ids in order, the fresh ones among them, and the others.
local function front(q, amount)
  local ranked = redis.call('ZRANGE', q.w, 0, amount - 1, 'WITHSCORES')
  local fresh, others = {}, {}
  if #ranked == 0 then -- the usual case
    local entries = next_fresh(q, amount + 1)
    for index = 1, math.min(#entries, amount) do
      fresh[index] = entries[index][2][2]
    end
    q.more = #entries > amount
    return fresh, fresh, others
  end
  local order, plain = {}, nil
  q.more = nil
  local at, plain_at = 1, 1
  while #order < amount do
    local score = ranked[at] and tonumber(ranked[at + 1])
    local place, entry
    if not score or score >= 0 then
      plain = plain or next_fresh(q, amount - #order)
      entry = plain[plain_at]
      place = entry and tonumber(string.match(entry[1], '^%d+'))
    end
    local first = place and (not score or score > 0)
    if place and not first then -- jobs in :f have turn 0
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
  local worker, lease_ms, id = request[1], request[2], request[3]
  local fits = #worker < 256 and #id < 250 -- in a lean head
  return {
    worker = worker, lease_ms = lease_ms, id = id, unregistered = '', paused = {}, fits = fits,
    count = 0, leased = {}, others = {}, -- leased: {queue, ids, records} for plain jobs, {queue, id} for another
    started = struct.pack('>I6', now), deadline = text(now + lease_ms),
    worker_text = fits and string.char(#worker) .. worker, left = '', next_due = -1,
  }
end

local function note_pick(claim, q, id)
  claim.count = claim.count + 1
  claim.leased[#claim.leased + 1] = { q, id }
  local others = list_of(claim.others, q)
  others[#others + 1] = id
end

-- Notes the start of leased plain jobs of one task: `ids` from `first` to `last`.
local function note_started(q, ids, first, last, task, worker)
  if last >= first then
    note_all(q, EVENT.STARTED, ids, first, last, task, 1, worker)
  end
end

-- Adds leased plain jobs to the claim: `ids` from `first` to `last`.
local function note_picks(claim, q, ids, records, first, last)
  if first > 1 or last < #ids then
    ids, records = { unpack(ids, first, last) }, { unpack(records, first, last) }
  end
  claim.leased[#claim.leased + 1] = { q, ids, records }
end

local LEAN_MARK = MARK.LEAN_BYTE
local NUMBERS = {} -- the suffixes of tokens, each made once

local function number_text(number)
  local made = '.' .. number
  if number < STEP then
    NUMBERS[number] = made
  end
  return made
end

-- Leases plain jobs from position `first` of `ids` on, as long as they are plain and have not changed in this call. Returns the
-- position of the first that was not leased. Values that consecutive jobs share are computed once.
local function lease_plain(q, ids, records, first, claim)
  local known, writes, parts, byte = rawget(q, 'heads') or {}, writes_of(q, 'leased'), struct.unpack, string.byte
  local heads, active, n, number = writes.heads, writes.active, writes.n, claim.count
  local at, from, size = first, first, #ids
  local plain, task, number_size, before, after = MARK.PLAIN, nil, nil, nil, nil
  while at <= size do
    local id, record = ids[at], records[at]
    if not record or byte(record) ~= plain or known[id] ~= nil or not damaged.plain_is_valid(record) then
      break
    end
    local seq, enqueued, of_task = parts(RECORD_PARTS, record, 2)
    if of_task ~= task then
      note_started(q, ids, from, at - 1, task, claim.worker)
      task, from = of_task, at
      after = claim.worker_text .. string.char(#task) .. task
    end
    local token_end = NUMBERS[number] or number_text(number)
    if #token_end ~= number_size then
      number_size = #token_end
      before = claim.started .. string.char(#claim.id + number_size) .. claim.id
    end
    local pair = n + n
    heads[pair + 1], heads[pair + 2] = id, LEAN_MARK .. seq .. enqueued .. before .. token_end .. after
    n, number, at = n + 1, number + 1, at + 1
    active[n] = seq .. id
  end
  if at > first then
    note_started(q, ids, from, at - 1, task, claim.worker)
    note_picks(claim, q, ids, records, first, at - 1)
    writes.n, writes.deadline, claim.count = n, claim.deadline, number
    q.last, q.picked = records[at - 1], q.picked + at - first
  end
  return at
end

-- Leases the next job in line. Returns false if it may not start: it has expired, cannot be read, its group has no room, or
-- its task is revoked.
local function take(q, id, record, claim)
  local head = q.heads[id]
  if head == nil then
    head = damaged.head(unpack_fresh, record)
    q.records[id] = record or nil
    if not head then
      damaged.set_aside(q, id, damaged.stand_in(q, id))
      return false
    end
    q.heads[id], q.fresh[id] = head, true
  end
  if not head or ENDS[head[HEAD.STATE]] then -- it cannot be read
    return false
  end
  if line.is_expired(q, head) then
    expire(q, id, head)
    return false
  end
  local group = groups.of(head)
  if group and not groups.may_start(q, id, head, group) then
    update_group(q)
    return false
  end
  if q.revoked and limits.uses_revocation(q, head[HEAD.TASK]) then
    line.cancel(q, id, head, string.format(SAID.REVOKED, head[HEAD.TASK]))
    return false
  end
  lease(q, id, head, claim.id .. '.' .. claim.count, claim.worker, claim.lease_ms)
  note_pick(claim, q, id)
  if group then
    groups.started(q, group, head)
    update_group(q)
  end
  return true
end

-- The records of the fresh jobs, at their positions in `order`.
local function fresh_records(q, order, fresh)
  local found = read('HMGET', q.j, fresh)
  if order == fresh then
    return found
  end
  local records, at = {}, 1
  for position, id in ipairs(order) do
    records[position] = fresh[at] == id and found[at]
    at = records[position] and at + 1 or at
  end
  return records
end

-- Leases jobs in `order`; stops if a job has entered the line, which may be the next one now. Returns how many jobs were leased
-- and skipped.
local function take_all(q, order, records, claim)
  local at, taken, size = 1, 0, #order
  while at <= size and not q.inserted do
    if claim.fits and not q.revoked and records[at] and is_plain(records[at]) then
      local first = at
      at = lease_plain(q, order, records, first, claim)
      taken = taken + at - first
    end
    if at <= size then
      taken = taken + (take(q, order[at], records[at], claim) and 1 or 0)
      at = at + 1
    end
  end
  return taken, at - 1 - taken
end

-- Leases up to `room` jobs of `q`, as its limits allow, and fails expired ones that it meets. Returns how many were leased.
local function pick(q, room, claim)
  local taken, passed = 0, 0
  if q.own then
    room = math.min(room, (limits.room(q)))
  end
  if q.revoked then
    limits.prune_revoked(q)
  end
  while taken < room and passed < STEP and q.more ~= false do
    local order, fresh, others = front(q, math.min(room - taken, STEP))
    if #order == 0 then
      break
    end
    if #others > 0 then
      load(q, others)
    end
    q.picking, q.inserted = true, false
    local leased, left = take_all(q, order, fresh_records(q, order, fresh), claim)
    taken, passed = taken + leased, passed + left
    if q.inserted then
      q.more = nil
    end
    q.picking = false
    apply_pending(q)
  end
  if q.own then
    limits.started(q, taken)
  end
  return taken
end

-- Promotes at most `budget` due jobs of `q`; returns how many.
local function promote_due(q, budget)
  local first = redis.call('ZRANGE', q.d, 0, 0, 'WITHSCORES')
  if budget <= 0 or not first[2] or tonumber(first[2]) > q.now then
    q.first_due = first[2] and tonumber(first[2]) or false -- a claim adds nothing to :d
    return 0
  end
  return promote_members(q, redis.call('ZRANGEBYSCORE', q.d, '-inf', q.now, 'LIMIT', 0, budget))
end
