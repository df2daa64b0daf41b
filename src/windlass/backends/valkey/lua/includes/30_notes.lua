-- Events, history, counters and hints.
--
-- Events are {code, id, task, ...}; `codes.py` has the names of the other values. Consecutive equal events of several jobs are
-- one row {-code, ids separated by spaces, task, ...}. History rows are {run id, id, attempt, delivery, task, tags or 0, worker,
-- enqueued, ready, started, duration or -1, outcome, error class or 0, fingerprint or 0, group or 0, message or 0, facts or 0
-- [, priority, schedule or 0, slot or -1, parent or 0, root or 0, cost [, queue time]]}. Facts are the facts of the worker as it
-- sent them. Rows of earlier releases end with the group or before.
--
-- A call writes one stream entry to each log. Its id is the number of its last row. Its fields, in order: `b`, packed {time,
-- rows}; in the history also `p`, completed plain jobs: time (6 bytes), then for each job length and text of the id (2 + n),
-- duration (6) and its head from when it was active. `s`, packed {facts, {}}, follows `p`; `t`, packed {version of the rows,
-- {}}, follows `b`. Earlier releases read these two as entries without rows.

local function note(q, code, id, head, ...)
  q.events[#q.events + 1] = { code, id, head and head[HEAD.TASK] or '', ... }
  q.noted, q.run = q.noted + 1, nil
end

-- Notes an event that often repeats with other ids: consecutive ones become one row.
local function note_run(q, code, id, task, one, two)
  local run = q.run
  if not run or run[1] ~= -code or run[3] ~= task then
    run = { -code, {}, task, one, two }
    q.events[#q.events + 1], q.run = run, run
  end
  local ids = run[2]
  ids[#ids + 1] = id
  q.noted = q.noted + 1
end

-- Notes the same event of several jobs: `ids` from `first` to `last`.
local function note_all(q, code, ids, first, last, task, one, two)
  q.events[#q.events + 1] = { -code, table.concat(ids, ' ', first, last), task, one, two }
  q.noted, q.run = q.noted + last - first + 1, nil
end

local function count(q, outcome, task, more)
  local tasks = list_of(q.counts, outcome)
  tasks[task] = (tasks[task] or 0) + (more or 1)
end

-- The message of an error for the history; 0 if it is empty.
local function stored_message(failure)
  local said = failure[FAILURE.SAID] or 0
  if said == 0 then
    said = failure[FAILURE.BRIEF] or string.sub(failure[FAILURE.MESSAGE], 1, KEPT.BRIEF)
  end
  return said ~= '' and said or 0
end

-- Adds the history row of a job. Call it before the change that ends the attempt; `item` is the settlement, if there is one.
local function record(q, id, head, outcome, item, failure)
  local ran = head[HEAD.TOKEN] ~= ''
  local run_id, options = head[HEAD.TOKEN], options_of(head)
  if not ran then
    run_id = table.concat({ 'end', name_of(q), id, text(head[HEAD.SEQ]), text(head[HEAD.MANUAL_RETRIES]) }, '.')
  end
  local row = {
    run_id, id, ran and head[HEAD.ATTEMPTS] + 1 or 0, head[HEAD.DELIVERIES], head[HEAD.TASK], options[OPTION.TAGS],
    ran and head[HEAD.WORKER] or '', head[HEAD.ENQUEUED], head[HEAD.READY], ran and head[HEAD.STARTED] or 0,
    item and item[END.DURATION] or -1, outcome, 0, 0, groups.of(head) or 0, 0, item and item[END.FACTS] or 0,
  }
  if failure then
    row[13], row[14], row[16] = failure[FAILURE.ERROR_CLASS], failure[FAILURE.FINGERPRINT], stored_message(failure)
  end
  local time = ran and line.time_at_start(head) or 0
  local schedule, parent, cost = options[OPTION.SCHEDULE] or 0, options[OPTION.PARENT] or 0, options[OPTION.COST] or 1
  local root = options[OPTION.ROOT] or 0
  if head[HEAD.PRIORITY] ~= 0 or schedule ~= 0 or parent ~= 0 or cost ~= 1 or root ~= 0 or time ~= 0 then
    row[18], row[19], row[20] = head[HEAD.PRIORITY], schedule, options[OPTION.SLOT] or -1
    row[21], row[22], row[23] = parent, root, cost
  end
  if time ~= 0 then
    row[24] = time
  end
  local rows = q.history[#q.history]
  if not rows or rows.plain then
    rows = {}
    q.history[#q.history + 1] = rows
  end
  rows[#rows + 1] = row
  q.recorded = q.recorded + 1
  count(q, RAN_NAMES[outcome], head[HEAD.TASK])
end

-- The list for rows of completed plain jobs of a worker with these facts. They are strings, which are joined in the end.
local function plain_history(q, facts)
  local rows = q.history[#q.history]
  if not rows or rows.plain ~= facts then
    rows = { struct.pack('>I6', q.now), plain = facts }
    q.history[#q.history + 1] = rows
  end
  return rows
end

-- Writes `count` events, the last with number `last`.
local function write_events(root, now, rows, count, last)
  redis.call('XADD', root .. ':v', text(last), 'b', cmsgpack.pack({ now, rows }))
  if last > KEPT.EVENTS and math.floor(last / 100) > math.floor((last - count) / 100) then
    redis.call('XTRIM', root .. ':v', 'MINID', text(last - KEPT.EVENTS + 1))
  end
  redis.call('SPUBLISH', root .. ':event', '')
end

local function append_events(q)
  for _, row in ipairs(q.events) do
    if type(row[2]) == 'table' then
      row[2] = table.concat(row[2], ' ')
    end
  end
  write_events(q.root, q.now, q.events, q.noted, redis.call('HINCRBY', q.root, 'ev', q.noted))
  q.events, q.noted, q.run = nil, 0, nil
end

local function append_history(q)
  local last = redis.call('HINCRBY', q.root, 'hi', q.recorded)
  local fields = {}
  for _, rows in ipairs(q.history) do
    fields[#fields + 1] = rows.plain and 'p' or 'b'
    fields[#fields + 1] = rows.plain and table.concat(rows) or cmsgpack.pack({ q.now, rows })
    if rows.plain then
      fields[#fields + 1], fields[#fields + 2] = 's', cmsgpack.pack({ rows.plain, {} })
    else
      fields[#fields + 1], fields[#fields + 2] = 't', cmsgpack.pack({ KEPT.HISTORY_VERSION, {} })
    end
  end
  redis.call('XADD', q.h, text(last), unpack(fields))
  q.history, q.recorded = nil, 0
end

-- The message for clients that wait for results. '' means: read the store. If only a few plain jobs have completed and nothing
-- else has ended, it is 1, then for each job length and text of its id (2 + n) and of its head (4 + n), which has the result.
local function result_notice(q)
  local heads = q.published or {}
  if q.done ~= MARK.PLAIN or #heads == 0 or #heads > 16 then
    return ''
  end
  local parts = { string.char(MARK.NEWS) }
  for at = 1, #heads, 2 do
    local id, head = heads[at], heads[at + 1]
    local _, task_end = task_in(head)
    if head:byte(task_end + 7) == 2 then -- the result is not in the head
      return ''
    end
    parts[#parts + 1] = struct.pack('>I2c0I4c0', #id, id, #head, head)
  end
  return table.concat(parts)
end

local function hint(q)
  if q.ready or (q.freed and limits.is_bounded(q)) then
    redis.call('SPUBLISH', q.root .. ':ready', '')
  end
  if q.done then
    redis.call('SPUBLISH', q.root .. ':done', result_notice(q))
  end
end

-- Applies the last change of a job to its group. This happens before the next change begins.
local function update_group(q)
  local group_change = rawget(q, 'group_change')
  if group_change then
    q.group_change = nil
    groups.apply_change(q, group_change)
  end
end

-- Executes all pending writes of one queue.
local function close_one(q)
  update_group(q)
  apply_pending(q)
  if rawget(q, 'touched') then
    groups.write(q)
  end
  if q.noted > 0 then
    append_events(q)
  end
  if q.recorded > 0 then
    append_history(q)
  end
  for outcome, tasks in pairs(rawget(q, 'counts') or {}) do
    for task, total in pairs(tasks) do
      redis.call('HINCRBY', q.root, 'c:' .. outcome .. ':' .. task, total)
    end
  end
  hint(q)
end

-- Notifies dependents of ended jobs and executes all pending writes. Every function that changes something ends with this.
local function close_all(queues)
  for _, q in ipairs(queues) do
    update_group(q)
  end
  flow.notify_dependents(queues)
  for _, q in ipairs(queues) do
    close_one(q)
  end
end

local function close(q)
  local queues = { q }
  close_all(queues)
  return queues
end
