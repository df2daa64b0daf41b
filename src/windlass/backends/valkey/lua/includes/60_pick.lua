-- Choosing who is first in line.
--
-- Order is (priority from high to low, place). The zset :w holds it exactly; the stream :f holds the fresh
-- jobs of priority 0. Both are read from the front and merged.

-- Returns ids in order, and those of them that are fresh.
local function front(q, amount)
  local line, fresh = {}, {}
  local ranked = redis.call('ZRANGE', q.w, 0, amount - 1, 'WITHSCORES')
  local plain = nil
  local at, plain_at = 1, 1
  while #line < amount do
    local score = ranked[at] and tonumber(ranked[at + 1])
    if score and score < 0 then
      line[#line + 1] = id_of(ranked[at])
      at = at + 2
    else
      plain = plain or redis.call('XRANGE', q.f, '-', '+', 'COUNT', amount - #line)
      local entry = plain[plain_at]
      local place = entry and tonumber(string.match(entry[1], '^%d+'))
      if place and (not score or score > 0 or place < number_of(ranked[at])) then
        line[#line + 1] = entry[2][2]
        fresh[plain_at] = entry[2][2]
        plain_at = plain_at + 1
      elseif score then
        line[#line + 1] = id_of(ranked[at])
        at = at + 2
      else
        break
      end
    end
  end
  return line, fresh
end

-- Leases up to `room` jobs of `q` into `claim.picked`; ends those that are past their time on the way.
local function pick(q, room, claim)
  local taken, expired = 0, 0
  while taken < room and expired < STEP do
    local line, fresh = front(q, math.min(room - taken, STEP))
    if #line == 0 then
      break
    end
    load_fresh(q, fresh)
    load(q, line)
    q.picking = true
    for _, id in ipairs(line) do
      local head = q.heads[id]
      if head[EXPIRES] ~= 0 and head[EXPIRES] <= q.now and head[DELIVERIES] == 0 then
        expire(q, id, head)
        expired = expired + 1
      else
        local token = claim.id .. '.' .. #claim.picked
        lease(q, id, head, token, claim.worker, claim.lease_ms)
        claim.picked[#claim.picked + 1] = { q, id }
        taken = taken + 1
      end
    end
    q.picking = false
    settle_down(q)
  end
  return taken
end

-- Promotes what is due in `q`, at most `budget`; returns how many.
local function promote_due(q, budget)
  local first = redis.call('ZRANGE', q.d, 0, 0, 'WITHSCORES')
  if budget <= 0 or not first[2] or tonumber(first[2]) > q.now then
    return 0
  end
  return promote_members(q, redis.call('ZRANGEBYSCORE', q.d, '-inf', q.now, 'LIMIT', 0, budget))
end
