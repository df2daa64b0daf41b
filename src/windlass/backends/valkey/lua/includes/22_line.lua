-- The line: waiting jobs in the order in which they start, by priority, turn and place.
--
-- Turns make groups share a queue fairly. A job that joins the line gets the turn after the last waiting job of its group and
-- priority, but at least the turn at the front of the line. Jobs without a group form one group. Until a queue has its first
-- group all turns are 0 and nothing is counted. Jobs in :f have turn 0.
--
-- A member of :w is place (7 bytes) and id. If the turn is not 0, 32 and the turn (5 bytes) come first. The first byte of a
-- place is less than 32, so the bytes sort by turn, then by place.

local TURNED = 32

function line.member(id, head)
  local turn = head[HEAD.TURN] or 0
  if turn == 0 then
    return place_member_of(id, head)
  end
  return struct.pack('>BI5', TURNED, turn) .. place_member_of(id, head)
end

function line.turn_of(member)
  if member:byte() == TURNED then
    return (struct.unpack('>I5', member, 2))
  end
  return 0
end

function line.place_of(member)
  return place_of(member:byte() == TURNED and member:sub(7) or member)
end

function line.id_of(member)
  return id_of(member:byte() == TURNED and member:sub(7) or member)
end

-- Whether turns are counted.
function line.turns(q)
  if q.turns == nil then
    limits.settings(q)
  end
  return q.turns
end

function line.of_group(q, head)
  return q.root .. ':W:' .. (groups.of(head) or '')
end

function line.put(q, id, head)
  q.more = nil
  local member, score = line.member(id, head), 0 - head[HEAD.PRIORITY]
  if line.turns(q) then
    redis.call('ZADD', q.w, score, member)
    redis.call('ZADD', line.of_group(q, head), score, member)
    q.inserted = true
  else
    put(q.zadd, q.w, score, member)
  end
end

function line.remove(q, id, head)
  local member = line.member(id, head)
  if line.turns(q) then
    redis.call('ZREM', q.w, member)
    redis.call('ZREM', line.of_group(q, head), member)
  else
    put(q.zrem, q.w, member)
  end
end
