-- Turns of waiting jobs, see `22_line.lua`.

-- Starts counting turns. The jobs that wait now (the first 10,000; jobs in :f need no entry) become one group.
function line.begin_turns(q)
  make_visible(q)
  redis.call('HSET', q.root, 'turns', 1)
  q.turns = true
  local found = redis.call('ZRANGE', q.w, 0, 10 * STEP - 1, 'WITHSCORES')
  local pairs_of = {}
  for at = 1, #found, 2 do
    pairs_of[at], pairs_of[at + 1] = found[at + 1], found[at]
  end
  send('ZADD', q.root .. ':W:', pairs_of)
end

-- The turn of a job that joins the line.
function line.fresh_turn(q, priority, group)
  if rawget(q, 'xdel') then
    write_indexes(q)
  end
  local score = text(0 - priority)
  local plain = priority == 0 and #next_fresh(q, 1) > 0
  local last = redis.call('ZREVRANGEBYSCORE', q.root .. ':W:' .. group, score, score, 'LIMIT', 0, 1)[1]
  local turn = 0
  if last then
    turn = line.turn_of(last) + 1
  elseif plain and group == '' then
    turn = 1
  end
  if not plain then
    local first = redis.call('ZRANGEBYSCORE', q.w, score, score, 'LIMIT', 0, 1)[1]
    turn = math.max(turn, first and line.turn_of(first) or 0)
  end
  return turn
end

-- Adds a job with a new place to the line.
function line.join(q, id, head)
  local group = groups.of(head)
  if group and not line.turns(q) then
    line.begin_turns(q)
  end
  if line.turns(q) then
    flow.add_fields(head)
    head[HEAD.TURN] = line.fresh_turn(q, head[HEAD.PRIORITY], group or '')
  end
  line.put(q, id, head)
end
