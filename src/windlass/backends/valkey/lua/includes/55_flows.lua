-- Edges: what the end of a child does to its dependents. The rules of `windlass.core.flow_rules`.
--
-- A stored edge is the length (2 bytes) of its packed `EdgeRow`, the row, and the value of the child. A `Fate` is how a child
-- ended. `layouts.py` has the fields of both.

-- The queue with that name; nil if this call cannot reach it.
function flow.reachable(queues, name)
  if not queues.names then
    queues.names = {}
    for _, q in ipairs(queues) do
      queues.names[name_of(q)] = q
    end
  end
  local found = queues.names[name]
  if not found and flow.alone then
    found = open(string.match(queues[1].root, '^(.*:)[^:}]*}$') .. name .. '}', queues[1].now)
    queues.names[name] = found
    queues[#queues + 1] = found
  end
  return found
end

-- The first 500 bytes, without a broken character at the end.
local function clip_message(message)
  if #message <= 500 then
    return message
  end
  local last = 500
  while last > 0 and message:byte(last + 1) >= 128 and message:byte(last + 1) < 192 do
    last = last - 1
  end
  return message:sub(1, last)
end

-- The fate of a job by its head.
function flow.end_of(q, id, head)
  local codec = options_of(head)[OPTION.CODEC]
  local fate = { head[HEAD.SEQ], 0, codec ~= 0 and codec or 'json', 'removed', '', 0, '' } -- as `layouts.Fate`
  if head[HEAD.STATE] == STATE.COMPLETED then
    local value = q.inline[id] or redis.call('HGET', q.r, id)
    fate[FATE.COMPLETED], fate[FATE.REASON] = 1, ''
    if value then
      fate[FATE.HAS_VALUE], fate[FATE.VALUE] = 1, value
    end
  elseif head[HEAD.STATE] == STATE.FAILED then
    local known = redis.call('HGET', q.e, id)
    local errors = damaged.unpacked(known, {})
    local last = errors[#errors]
    fate[FATE.REASON] = head[HEAD.REASON] ~= '' and head[HEAD.REASON] or 'failed'
    fate[FATE.ERROR] = last and clip_message(last[3] .. ': ' .. last[4]) or ''
  elseif head[HEAD.STATE] == STATE.CANCELLED then
    fate[FATE.REASON] = 'cancelled'
  end
  return fate
end

-- Marks a job as part of a flow.
function flow.mark_linked(q, id, head)
  flow.add_fields(head)
  if head[HEAD.LINKED] == 1 then
    return
  end
  head[HEAD.LINKED] = 1
  if head[HEAD.STATE] == STATE.WAITING and q.fresh[id] then -- jobs in :f have no head in :m
    leave(q, id, head)
    enter(q, id, head)
  else
    q.dirty[id], q.fresh[id] = head, nil
  end
end

-- The key of the links of a child.
function flow.links(q, seq)
  return q.root .. ':N:' .. text(seq)
end

-- Links a child to a dependent (<sequence>:<queue>:<id>), so that its end notifies it. Returns the child's fate if it has ended,
-- true if it has not, false if there is no such job.
function flow.link(q, id, dependent)
  local head = head_of(q, id)
  if not head then
    local ended, value = stubs.head(q, id)
    local codec = ended and options_of(ended)[OPTION.CODEC]
    return ended and { ended[HEAD.SEQ], 1, codec ~= 0 and codec or 'json', '', '', value and 1 or 0, value or '' } or false
  end
  flow.mark_linked(q, id, head)
  local key = flow.links(q, head[HEAD.SEQ])
  local number, notified = redis.call('ZSCORE', key, dependent), redis.call('ZSCORE', key, '')
  if not number then
    redis.call('ZADD', key, redis.call('HINCRBY', q.root, 'xn', 1), dependent)
  elseif notified and tonumber(number) <= tonumber(notified) then -- it was notified of an earlier end, and waits for the next
    if redis.call('HEXISTS', q.y, text(head[HEAD.SEQ])) == 0 then -- all ends were relayed: the link keeps its number
      redis.call('ZADD', key, text(tonumber(number) - 1), '')
    else -- an end in the outbox must not reach it: the link gets a new number
      redis.call('ZADD', key, redis.call('HINCRBY', q.root, 'xn', 1), dependent)
    end
  end
  return not ENDS[head[HEAD.STATE]] or flow.end_of(q, id, head)
end

function flow.read_edge(q, id, child)
  local stored = redis.call('HGET', q.root .. ':D:' .. id, child)
  if not stored then
    return nil
  end
  local _, edge = cmsgpack.unpack_one(stored, 2)
  return edge, stored
end

function flow.write_edge(q, id, child, edge, value)
  local packed = cmsgpack.pack(edge)
  redis.call('HSET', q.root .. ':D:' .. id, child, struct.pack('>I2', #packed) .. packed .. value)
end

function flow.is_broken(edge)
  return edge[EDGE.STATUS] == EDGE_IS.FAILED and edge[EDGE.ON_FAILURE] == ON.FAIL
end

-- Closes an edge with the fate of its child; returns the new row.
function flow.close_edge(q, id, child, edge, fate)
  local status = EDGE_IS.DONE
  if fate[FATE.COMPLETED] == 0 then
    status = edge[EDGE.ON_FAILURE] == ON.IGNORE and EDGE_IS.IGNORED or EDGE_IS.FAILED
  end
  local on = edge[EDGE.ON_FAILURE]
  local closed = { edge[EDGE.NUMBER], fate[FATE.SEQ], on, status } -- as `layouts.EdgeRow`
  for at = FATE.CODEC, FATE.HAS_VALUE do -- these fields are the same in both
    closed[#closed + 1] = fate[at]
  end
  flow.write_edge(q, id, child, closed, fate[FATE.VALUE])
  if flow.is_broken(closed) then
    redis.call('ZADD', q.root .. ':B:' .. id, closed[EDGE.NUMBER], child)
  end
  return closed
end

function flow.has_open(q, id)
  return redis.call('EXISTS', q.root .. ':O:' .. id) == 1
end

function flow.block(q, id, head)
  local state = head[HEAD.STATE]
  if state == STATE.BLOCKED or state == STATE.SUSPENDED or state == STATE.ACTIVE or ENDS[state] then
    return
  end
  leave(q, id, head)
  line.count_time(q, head)
  head[HEAD.STATE] = STATE.BLOCKED
  note(q, EVENT.BLOCKED, id, head)
  enter(q, id, head)
  apply_pending(q)
end

function flow.unblock(q, id, head)
  leave(q, id, head)
  line.count_time(q, head)
  if head[HEAD.DUE] > q.now then
    head[HEAD.STATE], head[HEAD.READY] = STATE.SCHEDULED, head[HEAD.DUE]
    note(q, EVENT.SCHEDULED, id, head, head[HEAD.DUE])
    enter(q, id, head)
  else
    head[HEAD.STATE], head[HEAD.READY], head[HEAD.DUE], head[HEAD.PLACE] = STATE.WAITING, q.now, 0, fresh_place(q, head)
    note(q, EVENT.PROMOTED, id, head)
    enter(q, id, head)
  end
  update_group(q)
end

-- Fails a blocked job whose child did not complete.
function flow.fail(q, id, head, child, edge)
  local name, child_id = string.match(child, '^([^:]*):(.*)$')
  local message = 'job ' .. child_id .. ' of queue ' .. name .. ' did not complete: ' .. edge[EDGE.REASON]
  local failure = { SAID.DEPENDENCY, message, '', SAID.DEPENDENCY }
  keep_error(q, id, head, failure, 0)
  record(q, id, head, RAN.FAILED, nil, failure)
  finish(q, id, head, STATE.FAILED, 'dependency_failed')
  note(q, EVENT.FAILED, id, head, 'dependency_failed', SAID.DEPENDENCY, clip_message(message))
  update_group(q)
end

-- Fails or unblocks a job that was just blocked, if its edges say so.
function flow.review(q, id, head)
  local broken = redis.call('ZRANGE', q.root .. ':B:' .. id, 0, 0)[1]
  if broken then
    flow.fail(q, id, head, broken, flow.read_edge(q, id, broken))
  elseif not flow.has_open(q, id) then
    flow.unblock(q, id, head)
  end
end

-- Fails or unblocks a job after one of its edges was closed.
function flow.after_edge(q, id, head, child, edge)
  if head[HEAD.STATE] ~= STATE.BLOCKED then
    return
  end
  local continues = edge[EDGE.STATUS] == EDGE_IS.FAILED and edge[EDGE.ON_FAILURE] == ON.CONTINUE
  if flow.is_broken(edge) then
    flow.fail(q, id, head, child, edge)
  elseif continues or not flow.has_open(q, id) then
    flow.unblock(q, id, head)
  end
end

-- Notifies a dependent how its child ended. Returns 1 if the edge was open, else 0, also if its sequence is another.
function flow.settle_edge(q, id, seq, child, fate)
  local head = head_of(q, id)
  if not head or head[HEAD.SEQ] ~= seq or redis.call('SREM', q.root .. ':O:' .. id, child) == 0 then
    return 0
  end
  local edge = flow.close_edge(q, id, child, flow.read_edge(q, id, child), fate)
  flow.after_edge(q, id, head, child, edge)
  return 1
end

-- The edges of a job to children that did not complete, by the name of the child.
function flow.failed_edges(q, id)
  local found = {}
  for _, child in ipairs(redis.call('HKEYS', q.root .. ':D:' .. id)) do
    local edge = flow.read_edge(q, id, child)
    if edge[EDGE.STATUS] == EDGE_IS.FAILED or edge[EDGE.STATUS] == EDGE_IS.IGNORED then
      found[child] = edge
    end
  end
  return found
end

-- Returns a function that answers `start`, then each name that `steps` lead to from it, then nil.
local function walk(steps, start)
  local ahead, seen = { start }, { [start] = true }
  return function()
    local name = table.remove(ahead)
    for other in pairs(name and steps[name] or {}) do
      if not seen[other] then
        seen[other] = true
        table.insert(ahead, other)
      end
    end
    return name
  end
end

-- Whether a job that this call retries waits, directly or not, for `target`. `again`: see `flow.recheck_children`. It searches
-- from both ends in turn, because one of them is short in a chain that is retried from either end.
local function waits_for(again, name, target)
  local down, up = walk(again.waits, name), walk(again.waiters, target)
  repeat
    local awaited, waiter = down(), up()
    if awaited == target or waiter == name then
      return true
    end
  until not awaited or not waiter
  return false
end

-- Notes that a job waits again for another one that this call retries.
local function wait_again(again, dependent, child)
  again.waits[dependent][child] = true
  again.waiters[child] = again.waiters[child] or {}
  again.waiters[child][dependent] = true
end

-- The present fate of a child that did not complete before; true if it is open again, false if it is gone. A child that has not
-- completed now either is not linked: the dependent ignores it. A child that is retried, too, is open, but counts as gone if it
-- would wait for the dependent.
function flow.present_end(queues, q, id, head, child, again)
  local name, child_id = string.match(child, '^([^:]*):(.*)$')
  local there = flow.reachable(queues, name)
  local known = there and head_of(there, child_id)
  local together = again.waits[child] ~= nil
  if together then
    local dependent = name_of(q) .. ':' .. id
    if waits_for(again, child, dependent) then
      return false
    end
    wait_again(again, dependent, child)
  elseif known and ENDS[known[HEAD.STATE]] and known[HEAD.STATE] ~= STATE.COMPLETED then
    return flow.end_of(there, child_id, known)
  end
  local fate = there and flow.link(there, child_id, flow.name_of_dependent(q, id, head))
  return together or fate
end

-- Opens an edge again.
function flow.reopen(q, id, child, edge)
  local row = { edge[EDGE.NUMBER], edge[EDGE.SEQ], edge[EDGE.ON_FAILURE], EDGE_IS.OPEN, 'json', '', '', 0 } -- as `layouts.EdgeRow`
  flow.write_edge(q, id, child, row, '')
  redis.call('SADD', q.root .. ':O:' .. id, child)
end

-- Checks the children of a finished dependent that is retried. Of those that did not complete, one that has completed since
-- counts as done, one that is open again blocks the dependent, and others are ignored. `known`: child -> its fate, or 1 if it
-- is open, for children that this call cannot decide about. `again.waits`: job that the same call retries -> the others of them
-- that it waits for again; `again.waiters`: the reverse. Returns whether the dependent is blocked.
function flow.recheck_children(queues, q, id, head, known, again)
  redis.call('UNLINK', q.root .. ':B:' .. id)
  for child, edge in pairs(flow.failed_edges(q, id)) do
    local far = known[child]
    local fate = far or flow.present_end(queues, q, id, head, child, again)
    if fate == true or fate == 1 then
      flow.reopen(q, id, child, edge)
      if far then
        flow.wait_for_links(q, id)
      end
    elseif fate and fate[FATE.COMPLETED] == 1 then
      flow.close_edge(q, id, child, edge, fate)
    elseif flow.is_broken(edge) then
      edge[EDGE.STATUS] = EDGE_IS.IGNORED
      flow.write_edge(q, id, child, edge, '')
    end
  end
  return flow.has_open(q, id)
end

-- --- ends ---------------------------------------------------------------------------------------------

-- Notes the end of a job with links. `gone`: its record is removed before it has finished.
function flow.note_end(q, id, head, gone)
  flow.ended = flow.ended or {}
  table.insert(flow.ended, { q = q, id = id, head = head, gone = gone })
end

-- Adds an end to the outbox.
function flow.to_outbox(q, id, fate)
  local number = redis.call('HINCRBY', q.root, 'xn', 1)
  local packed = cmsgpack.pack({ unpack(fate, 1, FATE.HAS_VALUE) })
  redis.call('XADD', q.x, text(number), 'i', id, 'f', packed, 'v', fate[FATE.VALUE])
  redis.call('HINCRBY', q.y, text(fate[FATE.SEQ]), 1)
  q.left = true
end

-- Notifies up to `budget` dependents of one end, as far as they can be reached; others are left to the outbox. Returns the
-- numbers of edges that were settled and of dependents that were tried.
function flow.notify_some(queues, one, budget)
  local q, id, seq = one.q, one.id, one.head[HEAD.SEQ]
  local key = flow.links(q, seq)
  local from = '(' .. (redis.call('ZSCORE', key, '') or 0)
  if redis.call('HEXISTS', q.y, text(seq)) == 1 then -- an earlier end of the job must be relayed first
    flow.to_outbox(q, id, flow.end_of(q, id, one.head))
    return 0, 0
  end
  local members = redis.call('ZRANGEBYSCORE', key, from, '+inf', 'WITHSCORES', 'LIMIT', 0, budget)
  local settled, fate, last, left = 0, nil, nil, false
  for at = 1, #members, 2 do
    local number, name, dependent = string.match(members[at], '^(%d+):([^:]*):(.*)$')
    local target = flow.reachable(queues, name)
    fate = fate or flow.end_of(q, id, one.head)
    if target then
      settled = settled + flow.settle_edge(target, dependent, tonumber(number), name_of(q) .. ':' .. id, fate)
    else
      left = true
    end
    last = not left and members[at + 1] or last
  end
  if last then
    redis.call('ZADD', key, last, '')
  end
  if left or redis.call('ZCOUNT', key, last and ('(' .. last) or from, '+inf') > 0 then
    flow.to_outbox(q, id, fate or flow.end_of(q, id, one.head))
  elseif one.gone then
    redis.call('UNLINK', key)
  end
  return settled, #members / 2
end

-- Notifies the dependents of all jobs that ended during this call, and of jobs that end because of that; at most about `budget`
-- of them. Returns the number of edges that were settled.
function flow.notify_dependents(queues, budget)
  local count, room, at = 0, budget or STEP, 1
  if not flow.ended then
    return 0
  end
  for _, q in ipairs(queues) do
    apply_pending(q)
  end
  while flow.ended[at] do
    local settled, seen = flow.notify_some(queues, flow.ended[at], math.max(room, 0))
    count, room, at = count + settled, room - seen, at + 1
  end
  flow.ended = nil
  return count
end

-- The names of queues whose outbox got an entry in this call.
function flow.open_outboxes(queues)
  local names = {}
  for _, q in ipairs(queues) do
    if rawget(q, 'left') then
      names[#names + 1] = name_of(q)
    end
  end
  return names
end

-- Removes the keys of edges, signals and output of a record that is removed.
function flow.drop(q, id, head)
  if head[HEAD.LINKED] == 1 then
    for _, part in ipairs({ ':D:', ':O:', ':B:' }) do
      q.unlink[#q.unlink + 1] = q.root .. part .. id
    end
    put(q.zrem, q.L, id)
    if not ENDS[head[HEAD.STATE]] then
      flow.note_end(q, id, head, true)
    elseif redis.call('HEXISTS', q.y, text(head[HEAD.SEQ])) == 0 then
      q.unlink[#q.unlink + 1] = flow.links(q, head[HEAD.SEQ])
    end
  end
  if head[HEAD.SIGNALS] > 0 then
    q.unlink[#q.unlink + 1] = q.root .. ':S:' .. id
  end
  if head[HEAD.STREAMED] == 1 then
    q.unlink[#q.unlink + 1] = q.root .. ':p:' .. id
    put(q.hdel, q.q, id)
  end
end
