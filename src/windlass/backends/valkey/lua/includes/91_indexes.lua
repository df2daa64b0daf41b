-- Indexes for searches that would have to look at every job: :J of jobs that have an error, :I of tops of flows.
--
-- Every change keeps them. Jobs of earlier releases are not in them: `ix` of the root is the sequence up to which all jobs
-- were entered since, and 'all' and a number when all were. The number is by how much :e was longer than :J then (records
-- without a job): when that differs, an earlier release writes beside this one.

function indexes.whole(q)
  return 'all ' .. text(redis.call('HLEN', q.e) - redis.call('ZCARD', q.J))
end

-- Up to STEP rows of jobs that may be wanted, and whether there are more; nil when no index holds all of them.
function indexes.rows(q, newest, cursor, wanted)
  local key = wanted.tops and q.I or wanted.needs_error and q.J
  if not key or redis.call('HGET', q.root, 'ix') ~= indexes.whole(q) then
    return nil, false
  end
  local rows = listing.numbered_rows(key, newest, cursor, STEP)
  return rows, #rows == STEP
end

-- Enters the next `most` jobs that earlier releases wrote; returns how many were looked at.
function indexes.fill(q, most)
  local at, last = unpack(redis.call('HMGET', q.root, 'ix', 'seq'))
  if most == 0 or not last or at == indexes.whole(q) then
    return 0
  elseif not tonumber(at) then
    redis.call('UNLINK', q.J)
  end
  local rows, more = listing.rows_from(q, false, tonumber(at) or -1, most)
  local ids = {}
  for index, row in ipairs(rows) do
    ids[index] = row[2]
  end
  damaged.looks = true -- `prune` writes no events: the next call that meets a damaged job ends it
  load(q, ids)
  damaged.looks = false
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
  redis.call('HSET', q.root, 'ix', more and text(rows[#rows][1]) or indexes.whole(q))
  return #rows
end
