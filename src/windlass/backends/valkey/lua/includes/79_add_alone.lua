-- Adding one plain job with a new id, as most calls do. The result is that of `75_add_plain.lua`, but the root is read once and
-- written once, and an idle worker (`78_handoff.lua`) may get the job without a claim.

-- Writes the lease that `handoff.assign` returned.
function adds.write_assigned(root, id, task, seq, now, worker, token, lease_ms)
  local head = struct.pack(LEAN_FORMAT, seq, now, now, #token, token, #worker, worker, #task, task)
  redis.call('ZADD', root .. ':a', text(now + lease_ms), struct.pack('>I7', seq) .. id)
  redis.call('HSET', root .. ':m', id, string.char(MARK.LEAN) .. head)
end

-- Returns the answer of `add_plain`. Returns nil and writes nothing if the id is known or the queue counts turns.
function adds.add_alone(root, id, text_of_job, now, micros)
  local task = text_of_job:sub(2, 1 + text_of_job:byte())
  local counter = 'c:enqueued:' .. task
  local marks = redis.call('HMGET', root, 'turns', 'seq', 'ev', counter, 'known', 'passed', 'paused', 'limits', 'groups', 'revoked')
  local seq, passed = math.max(micros, 1 + (marks[2] or 0)), marks[6] or 0
  local number, record = text(seq), struct.pack('>BI7I6', MARK.PLAIN, seq, now) .. text_of_job
  local bare = redis.call('EXISTS', root .. ':k', root .. ':w', root .. ':n') == 0 -- the usual case
  if marks[1] or (not bare and (redis.call('ZSCORE', root .. ':k', id) or redis.call('HEXISTS', root .. ':M', id) == 1)) then
    return nil
  elseif redis.call('HSETNX', root .. ':j', id, record) == 0 then
    return nil
  end
  local worker, token, lease_ms
  if not (marks[7] or marks[8] or marks[9] or marks[10]) and redis.call('XLEN', root .. ':f') == tonumber(passed) then
    if bare or redis.call('EXISTS', root .. ':w') == 0 then -- no other job waits
      worker, token, lease_ms = handoff.assign(root, id, record, now)
    end
  end
  redis.call('XADD', root .. ':f', number, 'i', id)
  local rows = { { EVENT.ENQUEUED, id, task } }
  if worker then
    adds.write_assigned(root, id, task, seq, now, worker, token, lease_ms)
    rows[2], rows[3] = { EVENT.STARTED, id, task, 1, worker }, { EVENT.DRAINED, '', '' }
  else
    redis.call('SPUBLISH', root .. ':ready', '')
  end
  if not marks[2] then
    indexes.begin(root)
  end
  local last, total = #rows + (marks[3] or 0), text(1 + (marks[4] or 0))
  if worker then
    passed = text(passed + 1)
    redis.call('HSET', root, 'seq', number, 'known', 1, 'ev', text(last), counter, total, 'cur', number, 'passed', passed)
  else
    redis.call('HSET', root, 'seq', number, 'known', 1, 'ev', text(last), counter, total)
  end
  write_events(root, now, rows, #rows, last)
  return { now, FLAG.ALONE + (marks[5] and 0 or FLAG.NEW_QUEUE) + (worker and FLAG.GIVEN_AWAY or 0) }
end
