-- Completing plain jobs (`15_plain.lua`). Nearly all jobs end this way, many in one call, so values that consecutive jobs share
-- are computed once.

-- What is appended to the lean head of a job that completes now, and whether its result has to be in :r.
local function plain_end(q, result)
  local finished = struct.pack('>I6', q.now)
  if result == 0 then
    return finished .. string.char(0), false
  elseif #result <= INLINE then
    return finished .. string.char(1) .. result, false
  end
  return finished .. string.char(2), true
end

-- Counts and notes completed plain jobs of one task: `ids` from `first` to `last`.
local function note_completed(q, ids, first, last, task)
  if last >= first then
    count(q, 'completed', task, last - first + 1)
    note_all(q, EVENT.COMPLETED, ids, first, last, task)
  end
end

-- As `complete`, for the jobs of a run (see `work.lua`) from position `first` on, as long as they have lean heads and the given
-- tokens. The first one must. Returns the position of the first job that was not completed.
local function complete_plain(q, run, first)
  local ids, tokens, durations, results = run[2], run[3], run[4], run[5]
  local one_duration, one_result = type(durations) ~= 'table' and durations, type(results) ~= 'table' and results
  local writes, rows, lean, parts, sub = writes_of(q, 'completed'), plain_history(q, run[6] or 0), q.lean, struct.unpack, string.sub
  local heads, active, done, n, row = writes.heads, writes.active, writes.done, writes.n, #rows
  local now, at, from, size = text(q.now), first, first, #ids
  local names, task, last_result, ending, is_large, last_duration, row_tail, id_size, row_head -- of the previous job
  while at <= size do
    local id = ids[at]
    local packed = lean[id]
    if not packed then
      break
    end
    local token, names_at = parts('>Bc0', packed, TOKEN_AT)
    if token ~= tokens[at] then
      break
    end
    local of_names = sub(packed, names_at) -- worker and task; and more, if the job is not active
    if of_names ~= names then
      local first_of_task, last_of_task = task_in(packed)
      if last_of_task < #packed then
        break
      end
      note_completed(q, ids, from, at - 1, task)
      names, task, from = of_names, sub(packed, first_of_task, last_of_task), at
    end
    local result, duration = one_result or results[at], one_duration or durations[at]
    if result ~= last_result then
      last_result, ending, is_large = result, plain_end(q, result)
    end
    if is_large then
      put(q.hset, q.r, id, result)
    end
    if duration ~= last_duration then
      last_duration, row_tail = duration, struct.pack('>i6', duration)
    end
    if #id ~= id_size then
      id_size, row_head = #id, struct.pack('>I2', #id)
    end
    local head, member, pair = packed .. ending, sub(packed, 2, 8) .. id, n + n
    lean[id] = head
    heads[pair + 1], heads[pair + 2] = id, head
    done[pair + 1], done[pair + 2] = now, member
    rows[row + 1], rows[row + 2], rows[row + 3], rows[row + 4] = row_head, id, row_tail, packed
    n, row, at = n + 1, row + 4, at + 1
    active[n] = member
  end
  note_completed(q, ids, from, at - 1, task)
  writes.n, q.recorded = n, q.recorded + at - first
  q.freed, q.done = true, q.done or MARK.PLAIN
  return at
end
