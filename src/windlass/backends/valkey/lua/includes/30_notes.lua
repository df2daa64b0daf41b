-- Events, history, counters and hints: what a change writes besides the job itself.
--
-- Events are {code, id, task, ...}; `codes.py` names what follows. History rows are {run id, id, attempt,
-- delivery, task, tags or 0, worker, enqueued, ready, started, duration or -1, outcome [, error class,
-- fingerprint]}. Both are written as one stream entry per call, whose id is the number of its last row.

local function note(q, code, id, head, ...)
  q.events[#q.events + 1] = { code, id, head and head[TASK] or '', ... }
end

local function count(q, outcome, task)
  local field = 'c:' .. outcome .. ':' .. task
  q.counts[field] = (q.counts[field] or 0) + 1
end

-- The row for a job as it stands before the change that ends its attempt.
local function record(q, id, head, outcome, duration, failure)
  local ran = head[TOKEN] ~= ''
  local run_id = head[TOKEN]
  if not ran then
    run_id = table.concat({ 'end', name_of(q), id, text(head[SEQ]), text(head[MANUAL]) }, '.')
  end
  local row = {
    run_id, id, ran and head[ATTEMPTS] + 1 or 0, head[DELIVERIES], head[TASK], options_of(head)[TAGS],
    ran and head[WORKER] or '', head[ENQUEUED], head[READY], ran and head[STARTED] or 0, duration or -1, outcome,
  }
  if failure then
    row[13], row[14] = failure[1], failure[4]
  end
  q.history[#q.history + 1] = row
  count(q, OUTCOMES[outcome], head[TASK])
end

local function append(q, key, counter, rows)
  local last = redis.call('HINCRBY', q.root, counter, #rows)
  redis.call('XADD', key, text(last) .. '-0', 'b', cmsgpack.pack({ q.now, rows }))
  return last
end

local function hint(q)
  if q.ready then
    redis.call('SPUBLISH', q.root .. ':ready', '')
  end
  if q.done then
    redis.call('SPUBLISH', q.root .. ':done', '')
  end
end

-- Writes everything that is still open. Every function that changes something ends with this.
local function close(q)
  settle_down(q)
  if #q.events > 0 then
    local last = append(q, q.v, 'ev', q.events)
    if last > EVENTS_KEPT and math.floor(last / 100) > math.floor((last - #q.events) / 100) then
      redis.call('XTRIM', q.v, 'MINID', text(last - EVENTS_KEPT + 1))
    end
    redis.call('SPUBLISH', q.root .. ':event', '')
    q.events = {}
  end
  if #q.history > 0 then
    append(q, q.h, 'hi', q.history)
    q.history = {}
  end
  for field, total in pairs(q.counts) do
    redis.call('HINCRBY', q.root, field, total)
  end
  hint(q)
end

local function close_all(queues)
  for _, q in ipairs(queues) do
    close(q)
  end
end
