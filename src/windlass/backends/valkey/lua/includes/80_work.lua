-- A worker's turn: ending attempts and claiming the next jobs.

-- 0: the newest lease, 1: it settled before, 2: another lease is newer, 3: no such job.
local function check_token(head, token)
  if not head then
    return 3
  elseif head[STATE] == ACTIVE and head[TOKEN] == token then
    return 0
  end
  return (token ~= '' and head[SETTLED] == token) and 1 or 2
end

-- Reads the heads of items {queue, id, ...}, one read per queue.
local function load_items(queues, items)
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

local function settle_all(queues, items, args)
  local statuses = {}
  load_items(queues, items)
  for index, item in ipairs(items) do
    local q, id = queues[item[1]], item[2]
    local head = q.heads[id]
    local status = check_token(head, item[3])
    if status == 0 then
      settle(q, id, head, item, item[6] > 0 and args[item[6] + 2])
    end
    statuses[index] = status
  end
  for _, q in ipairs(queues) do
    settle_down(q)
  end
  return table.concat(statuses)
end

local function rounds(queues, claim, lines, limit)
  local taken = {}
  for bound = 2, 3 do -- the share first, then the cap
    for index, line in ipairs(lines) do
      local room = math.min(line[bound] - (taken[index] or 0), limit - #claim.picked)
      if room > 0 and not claim.paused[index] then
        taken[index] = (taken[index] or 0) + pick(queues[line[1]], room, claim)
      end
    end
  end
  return taken
end

local function claim_jobs(queues, request)
  local lines = request[5]
  local claim = { worker = request[1], lease_ms = request[2], id = request[3], picked = {}, paused = {} }
  local budget = STEP
  for index, line in ipairs(lines) do
    local q = queues[line[1]]
    budget = budget - promote_due(q, budget)
    claim.paused[index] = redis.call('HEXISTS', q.root, 'paused') == 1
  end
  local taken = rounds(queues, claim, lines, request[4])
  local left = {}
  claim.next_due = -1
  for index, line in ipairs(lines) do
    local q = queues[line[1]]
    local more = waiting(q)
    left[index] = (more > 0 and not claim.paused[index]) and 1 or 0
    if (taken[index] or 0) + line[4] > 0 and more == 0 then
      note(q, E_DRAINED, '')
    end
    local due = next_due_in(q)
    if due and (claim.next_due < 0 or due < claim.next_due) then
      claim.next_due = due
    end
  end
  claim.left = table.concat(left)
  return claim
end

-- Adds queue, id, record, head and errors of every leased job to `answer`.
local function append_leased(answer, queues, claim)
  local ids, position = {}, {}
  for index, q in ipairs(queues) do
    ids[q], position[q] = {}, index
  end
  for _, picked in ipairs(claim.picked) do
    table.insert(ids[picked[1]], picked[2])
  end
  for _, q in ipairs(queues) do
    load_records(q, ids[q])
    q.found_errors = #ids[q] > 0 and redis.call('EXISTS', q.e) == 1
  end
  for _, picked in ipairs(claim.picked) do
    local q, id = picked[1], picked[2]
    local size = #answer
    answer[size + 1], answer[size + 2], answer[size + 3] = position[q], id, q.records[id]
    answer[size + 4] = q.packed[id]
    answer[size + 5] = q.found_errors and redis.call('HGET', q.e, id) or ''
  end
end
