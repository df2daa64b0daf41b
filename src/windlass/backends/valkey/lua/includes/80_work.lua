-- A worker's turn: settle attempts and claim the next jobs.

local batch = {}

-- The answer to a settlement with `token`.
function batch.check_token(head, token)
  if not head then
    return SETTLED.GONE
  elseif head[HEAD.STATE] == STATE.ACTIVE and head[HEAD.TOKEN] == token then
    return SETTLED.OK
  end
  return (token ~= '' and head[HEAD.SETTLED_TOKEN] == token) and SETTLED.ALREADY or SETTLED.LOST
end

-- Reads the heads of items {queue, id, ...}, one read per queue.
function batch.load_items(queues, items)
  local ids = {}
  for _, item in ipairs(items) do
    local list = ids[item[1]] or {}
    list[#list + 1] = item[2]
    ids[item[1]] = list
  end
  for index, list in pairs(ids) do
    load(queues[index], list)
  end
end

-- Whether an end is a run of completions, see `work.lua`.
function batch.is_run(part)
  return type(part[2]) == 'table'
end

function batch.load_ends(queues, ends)
  if #ends == 1 and batch.is_run(ends[1]) then -- the usual case
    load_ended(queues[ends[1][1]], ends[1][2])
    return
  end
  local all = {}
  for _, part in ipairs(ends) do
    local list = list_of(all, part[1])
    for _, id in ipairs(batch.is_run(part) and part[2] or { part[2] }) do
      list[#list + 1] = id
    end
  end
  for index, list in pairs(all) do
    load_ended(queues[index], list)
  end
end

-- Ends one attempt; returns the answer of `check_token`.
function batch.settle_one(q, item)
  local id, token = item[END.ID], item[END.TOKEN]
  local lean = q.lean[id]
  if lean then
    local status = check_lean(lean, token)
    if status ~= SETTLED.OK then
      return status
    end
    q.heads[id], q.lean[id] = unpack_lean(q, id, lean), nil
  end
  local head = q.heads[id]
  local status = batch.check_token(head or stubs.head(q, id), token)
  if status == SETTLED.OK then
    settle(q, id, head, item)
  end
  return status
end

-- The value for one job of a run, which has a list or one value for all.
function batch.of_run(values, at)
  return type(values) == 'table' and values[at] or values
end

-- Ends the attempts of a run; returns one character for each.
function batch.settle_run(q, run)
  local ids, tokens = run[2], run[3]
  local statuses, at, size = {}, 1, #ids
  while at <= size do
    local packed = q.lean[ids[at]]
    if packed and check_lean(packed, tokens[at]) == SETTLED.OK then
      local first = at
      at = complete_plain(q, run, first)
      statuses[#statuses + 1] = string.rep(SETTLED.OK, at - first)
    else
      local duration, result = batch.of_run(run[4], at), batch.of_run(run[5], at)
      local item = { run[1], ids[at], tokens[at], OUTCOME.COMPLETE, duration, result }
      item[END.FACTS] = run[6]
      statuses[#statuses + 1] = batch.settle_one(q, item)
      at = at + 1
    end
  end
  return table.concat(statuses)
end

function batch.settle_all(queues, ends)
  local statuses = {}
  batch.load_ends(queues, ends)
  for index, part in ipairs(ends) do
    statuses[index] = (batch.is_run(part) and batch.settle_run or batch.settle_one)(queues[part[1]], part)
  end
  flow.notify_dependents(queues) -- so that jobs which this unblocks can be claimed now
  for _, q in ipairs(queues) do
    stubs.drop(q)
    apply_pending(q)
  end
  return table.concat(statuses)
end

-- Leases jobs from the queues in order, first up to their shares, then up to their caps.
function batch.rounds(queues, claim, lines, limit)
  local taken = {}
  for bound = 2, 3 do -- the share first, then the cap
    for index, one in ipairs(lines) do
      local room = math.min(one[bound] - (taken[index] or 0), limit - claim.count)
      if room > 0 and not claim.paused[index] then
        taken[index] = (taken[index] or 0) + pick(queues[one[1]], room, claim)
      end
    end
  end
  return taken
end

-- A claim of one queue may have flags to register the worker as idle and to end its registration (`78_handoff.lua`).
function batch.claim_jobs(queues, request)
  local lines = request[5]
  local claim = new_claim(request, queues[1].now)
  local budget, flags = STEP, lines[1] and lines[1][5] or 0
  for index, one in ipairs(lines) do
    local q = queues[one[1]]
    q.claiming = true
    claim.paused[index] = limits.settings(q).paused
    budget = budget - promote_due(q, budget)
  end
  for _, one in ipairs(lines) do
    budget = budget - groups.advance_timed(queues[one[1]], budget)
  end
  if flags >= HANDOFF.LEAVE then
    handoff.unregister(queues[lines[1][1]], claim)
  end
  local taken = batch.rounds(queues, claim, lines, request[4])
  local left = {}
  for index, one in ipairs(lines) do
    local q = queues[one[1]]
    local more = any_waiting(q)
    left[index] = (more and not claim.paused[index] and not (q.own and limits.room(q) == 0)) and 1 or 0
    if (taken[index] or 0) + one[4] > 0 and not more and not (q.has_groups and redis.call('EXISTS', q.Q) == 1) then
      note(q, EVENT.DRAINED, '')
    end
    local due = next_due_in(q)
    if due and (claim.next_due < 0 or due < claim.next_due) then
      claim.next_due = due
    end
  end
  if flags % HANDOFF.LEAVE == HANDOFF.TAKE and left[1] == 0 and handoff.register(queues[lines[1][1]], claim, request[4]) then
    left[1] = HANDOFF.TAKEN
  end
  claim.left = table.concat(left) .. claim.unregistered
  return claim
end

-- Appends the leased jobs to `answer`: queue, ids, records for plain ones; -queue, id, record, head, errors, signals for others.
function batch.append_leased(answer, queues, claim)
  local position = {}
  for index, q in ipairs(queues) do
    position[q] = index
  end
  for q, ids in pairs(claim.others) do
    load_records(q, ids)
    q.found_errors = redis.call('EXISTS', q.e) == 1
  end
  local size = #answer
  for _, one in ipairs(claim.leased) do
    local q, id, records = one[1], one[2], one[3]
    if records then
      answer[size + 1], answer[size + 2], answer[size + 3] = position[q], id, records
      size = size + 3
    else
      answer[size + 1], answer[size + 2], answer[size + 3] = -position[q], id, q.records[id]
      answer[size + 4] = q.packed[id]
      answer[size + 5] = q.found_errors and redis.call('HGET', q.e, id) or ''
      answer[size + 6] = flow.signals(q, id, q.heads[id])
      size = size + 6
    end
  end
end
