-- Indexes for searches that would have to read every job: :J has jobs with an error, :I roots of flows.
--
-- Every change updates them. Jobs of earlier releases are added later: `ix` of the root is the sequence up to which that was
-- done, or 'all' and a number once it is complete. The number is the difference of the sizes of :e and :J at that time (errors
-- without a job). If the difference has changed, a client of an earlier release has written since.

-- The value of `ix` for complete indexes.
function indexes.complete(q)
  return 'all ' .. text(redis.call('HLEN', q.e) - redis.call('ZCARD', q.J))
end

-- Up to STEP rows of jobs that may match, and whether there are more; nil if no complete index serves the filters.
function indexes.rows(q, newest, cursor, wanted)
  local key = wanted.tops and q.I or wanted.needs_error and q.J
  if not key or redis.call('HGET', q.root, 'ix') ~= indexes.complete(q) then
    return nil, false
  end
  local rows = listing.numbered_rows(key, newest, cursor, STEP)
  return rows, #rows == STEP
end

-- Adds the next `most` jobs of earlier releases to the indexes; returns how many were read.
function indexes.fill(q, most)
  local at, last = unpack(redis.call('HMGET', q.root, 'ix', 'seq'))
  if most == 0 or not last or at == indexes.complete(q) then
    return 0
  elseif not tonumber(at) then
    redis.call('UNLINK', q.J)
  end
  local rows, more = listing.rows_from(q, false, tonumber(at) or -1, most)
  local ids = {}
  for index, row in ipairs(rows) do
    ids[index] = row[2]
  end
  damaged.read_only = true -- `prune` writes no events: another call will fail a damaged job
  load(q, ids)
  damaged.read_only = false
  for _, row in ipairs(rows) do
    local seq, id = row[1], row[2]
    if q.heads[id] then
      indexes.add_top(q, id, q.heads[id])
    end
    if redis.call('HEXISTS', q.e, id) == 1 then
      put(q.zadd, q.J, seq, id)
    end
  end
  apply_pending(q)
  redis.call('HSET', q.root, 'ix', more and text(rows[#rows][1]) or indexes.complete(q))
  return #rows
end
