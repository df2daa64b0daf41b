-- Listing jobs: the stream :f and the index :i of all other jobs, merged by sequence.

local listing = {}

function listing.plain_rows(q, newest, cursor, count)
  local entries
  if newest then
    local from = cursor >= 0 and ('(' .. text(cursor) .. '-0') or '+'
    entries = redis.call('XREVRANGE', q.f, from, '-', 'COUNT', count)
  else
    local from = cursor >= 0 and ('(' .. text(cursor) .. '-0') or '-'
    entries = redis.call('XRANGE', q.f, from, '+', 'COUNT', count)
  end
  local rows = {}
  for index, entry in ipairs(entries) do
    rows[index] = { tonumber(string.match(entry[1], '^%d+')), entry[2][2] }
  end
  return rows
end

-- Rows of an index by sequence.
function listing.numbered_rows(key, newest, cursor, count)
  local found
  if newest then
    local from = cursor >= 0 and ('(' .. text(cursor)) or '+inf'
    found = redis.call('ZREVRANGEBYSCORE', key, from, '-inf', 'WITHSCORES', 'LIMIT', 0, count)
  else
    local from = cursor >= 0 and ('(' .. text(cursor)) or '-inf'
    found = redis.call('ZRANGEBYSCORE', key, from, '+inf', 'WITHSCORES', 'LIMIT', 0, count)
  end
  local rows = {}
  for at = 1, #found, 2 do
    rows[(at + 1) / 2] = { tonumber(found[at + 1]), found[at] }
  end
  return rows
end

-- Up to `count` rows {sequence, id} after `cursor`, and whether there may be more.
function listing.rows_from(q, newest, cursor, count)
  local plain, others = listing.plain_rows(q, newest, cursor, count), listing.numbered_rows(q.i, newest, cursor, count)
  local rows, p, o = {}, 1, 1
  while #rows < count and (plain[p] or others[o]) do
    local take_plain = plain[p] ~= nil
    if plain[p] and others[o] then
      take_plain = (plain[p][1] < others[o][1]) ~= newest
    end
    rows[#rows + 1] = take_plain and plain[p] or others[o]
    if take_plain then
      p = p + 1
    else
      o = o + 1
    end
  end
  return rows, #rows == count
end

-- The keys of jobs in a state.
local PLACES = {
  [STATE.WAITING] = { 'f', 'w' }, [STATE.SCHEDULED] = { 'd' }, [STATE.RETRYING] = { 'd' }, [STATE.SUSPENDED] = { 'd', 'u' }, [STATE.BLOCKED] = { 'b' },
  [STATE.PARKED] = { 'Q' }, [STATE.ACTIVE] = { 'a' }, [STATE.COMPLETED] = { 'P', 'C' }, [STATE.FAILED] = { 'F' }, [STATE.CANCELLED] = { 'X' },
}

-- The keys of finished jobs.
local ENDED = { P = true, C = true, F = true, X = true }

-- The keys that contain all jobs in `states`, if these are at most 1,000 jobs; else nil.
function listing.few_places(q, states)
  local found, total = {}, 0
  for _, state in ipairs(states) do
    for _, name in ipairs(PLACES[state]) do
      if not found[name] then
        found[name] = true
        total = total + (name == 'f' and waiting(q) or name ~= 'w' and redis.call('ZCARD', q[name]) or 0)
      end
    end
  end
  return #states > 0 and total <= STEP and found or nil
end

-- All rows of one key.
function listing.rows_in(q, name)
  local rows = {}
  if name == 'f' then
    for index, entry in ipairs(next_fresh(q, STEP)) do
      rows[index] = { tonumber(string.match(entry[1], '^%d+')), entry[2][2] }
    end
    return rows
  end
  for index, member in ipairs(redis.call('ZRANGE', q[name], 0, -1)) do
    local id = name == 'w' and line.id_of(member) or id_of(member)
    local head = name == 'w' and head_of(q, id)
    rows[index] = { head and head[HEAD.SEQ] or number_of(member), id }
  end
  return rows
end

-- Adds a row to a list if it is after the cursor.
function listing.put_row(rows, newest, cursor, row)
  if cursor < 0 or (row[1] ~= cursor and (row[1] < cursor) == newest) then
    rows[#rows + 1] = row
  end
end

function listing.in_order(rows, newest)
  table.sort(rows, function(one, other)
    return one[1] ~= other[1] and (one[1] < other[1]) ~= newest
  end)
  return rows
end

-- Rows of all jobs in `states` after `cursor`, if there are few: a walk over all jobs would take long to find them.
function listing.few_rows(q, newest, cursor, states)
  local places = listing.few_places(q, states)
  if not places then
    return nil
  end
  local rows = {}
  for name in pairs(places) do
    for _, row in ipairs(listing.rows_in(q, name)) do
      listing.put_row(rows, newest, cursor, row)
    end
  end
  return listing.in_order(rows, newest)
end

-- The cursor after a row: its sequence, in an order by time 'time.sequence'.
function listing.cursor_of(row)
  return row[3] and (text(row[3]) .. '.' .. text(row[1])) or row[1]
end

-- How many members of a key are before a time and sequence (`with`: or equal to them). Members with the same time are ordered
-- by sequence.
function listing.rank_of(q, name, time, seq, with)
  local low = redis.call('ZCOUNT', q[name], '-inf', '(' .. text(time))
  local high = low + redis.call('ZCOUNT', q[name], text(time), text(time))
  while low < high do
    local middle = math.floor((low + high) / 2)
    local number = number_of(redis.call('ZRANGE', q[name], middle, middle)[1])
    if number < seq or (with and number == seq) then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

-- Up to STEP rows {sequence, id, time} of one key after a time and sequence, and whether there are more.
function listing.timed_rows_in(q, name, newest, time, seq)
  local size = redis.call('ZCARD', q[name])
  local first = 0
  if newest then
    size = time < 0 and size or listing.rank_of(q, name, time, seq)
    first = math.max(size - STEP, 0)
  elseif time >= 0 then
    first = listing.rank_of(q, name, time, seq, true)
  end
  local last = math.min(first + STEP, size) - 1
  local found = last >= first and redis.call('ZRANGE', q[name], first, last, 'WITHSCORES') or {}
  local rows, count = {}, #found / 2
  for at = 1, count do
    local member, score = found[2 * at - 1], tonumber(found[2 * at])
    rows[newest and count + 1 - at or at] = { number_of(member), id_of(member), score }
  end
  return rows, newest and first > 0 or not newest and last + 1 < size
end

-- The same for several keys, merged.
function listing.timed_rows(q, newest, names, time, seq)
  local rows, more = {}, false
  for _, name in ipairs(names) do
    local part, further = listing.timed_rows_in(q, name, newest, time, seq)
    more = more or further
    for _, row in ipairs(part) do
      rows[#rows + 1] = row
    end
  end
  if #names > 1 then
    table.sort(rows, function(one, other)
      if one[3] ~= other[3] then
        return (one[3] < other[3]) ~= newest
      end
      return one[1] ~= other[1] and (one[1] < other[1]) ~= newest
    end)
  end
  more = more or #rows > STEP
  for index = #rows, STEP + 1, -1 do
    rows[index] = nil
  end
  return rows, more and #rows > 0
end

-- Rows of all jobs that ended in the wanted time, after `cursor`. Nil if no time is given, or there are more than 1,000.
function listing.few_ended(q, newest, cursor, wanted)
  if wanted.from < 0 and wanted.before < 0 then
    return nil
  end
  local low, high = wanted.from < 0 and '-inf' or text(wanted.from), wanted.before < 0 and '+inf' or '(' .. text(wanted.before)
  local total = 0
  for name in pairs(ENDED) do
    total = total + redis.call('ZCOUNT', q[name], low, high)
  end
  if total > STEP then
    return nil
  end
  local rows = {}
  for name in pairs(ENDED) do
    for _, member in ipairs(redis.call('ZRANGEBYSCORE', q[name], low, high)) do
      listing.put_row(rows, newest, cursor, { number_of(member), id_of(member) })
    end
  end
  return listing.in_order(rows, newest)
end

-- The filters of a listing. `some`: there is any besides the state.
function listing.wanted(request, patterns)
  local states, in_error, in_payload, in_any = {}, {}, {}, {}
  for _, state in ipairs(request[4]) do
    states[state] = true
  end
  for _, hint in ipairs(request[17]) do
    local list = hint[1] == 1 and in_error or hint[1] == 2 and in_payload or in_any
    list[#list + 1] = hint[2]
  end
  local wanted = {
    raw = request[19],
    states = #request[4] > 0 and states or nil, task = #patterns > 0 and patterns or nil, tag = request[5] ~= '' and request[5] or nil,
    class = request[6] == 1 and request[7] or nil, fingerprint = request[13] == 1 and request[14] or nil,
    group = request[11] ~= '' and request[11] or nil, worker = request[12] ~= '' and request[12] or nil,
    tops = request[18] == 1, from = request[15], before = request[16], in_error = in_error, in_payload = in_payload, in_any = in_any,
  }
  wanted.needs_error = wanted.class or wanted.fingerprint or #in_error > 0
  wanted.needs_record = #in_payload > 0 or #in_any > 0
  wanted.some = wanted.task or wanted.tag or wanted.group or wanted.worker or wanted.needs_error or wanted.needs_record
    or wanted.from >= 0 or wanted.before >= 0 or wanted.tops
  return wanted
end

-- Reads the jobs of `count` rows from `first` on for `fits`, except those whose bytes show that they do not match.
function listing.load_rows(q, rows, first, count, wanted)
  local ids = {}
  for index = first, math.min(first + count - 1, #rows) do
    ids[#ids + 1] = rows[index][2]
  end
  if wanted.needs_error or #wanted.in_any > 0 then
    ids = listing.load_errors(q, ids, wanted)
  end
  if #wanted.raw > 0 or wanted.needs_record then
    ids = listing.load_bytes(q, ids, wanted)
  end
  load(q, ids)
end

-- Reads the errors of jobs; returns the ids of those that may match.
function listing.load_errors(q, ids, wanted)
  local found, failed = read('HMGET', q.e, ids), {}
  wanted.errors = {}
  for index, id in ipairs(ids) do
    if found[index] and listing.holds_all(found[index], wanted.in_error) then
      wanted.errors[id], failed[#failed + 1] = found[index], id
    end
  end
  return wanted.needs_error and failed or ids
end

-- Whether the payload of a stored record is JSON; false also if that is unknown.
function listing.is_json(record)
  if record:byte() == MARK.PLAIN then
    return true
  elseif #record < 2 then
    return false
  end
  local at = tail_at(record) + 4 -- the packed {request id, codec, options}
  local id = record:byte(at + 1) or 0
  if record:byte(at) ~= 0x93 or (id ~= 1 and id ~= 0xd9 and (id < 0xa0 or id > 0xbf)) then
    return false
  end
  at = at + 2 + (id == 0xd9 and 1 + (record:byte(at + 2) or 0) or id ~= 1 and id - 0xa0 or 0)
  return record:sub(at, at + 4) == '\164json'
end

-- Searches heads and records as bytes, which is much faster than unpacking them. Returns the ids of jobs that may match.
function listing.load_bytes(q, ids, wanted)
  local heads, left = read('HMGET', q.m, ids), {}
  local records = wanted.needs_record and read('HMGET', q.j, ids) or {}
  for index, id in ipairs(ids) do
    local record = records[index] or ''
    q.records[id] = records[index] or nil
    if (not heads[index] or listing.has_all(heads[index], wanted.raw))
      and (not wanted.needs_record or not listing.is_json(record) or listing.texts_fit(id, record, heads[index] or '', wanted)) then
      left[#left + 1] = id
    end
  end
  return left
end

function listing.has_all(packed, texts)
  for _, one in ipairs(texts) do
    if not string.find(packed, one, 1, true) then
      return false
    end
  end
  return true
end

function listing.has_tag(head, tag)
  local tags = options_of(head)[OPTION.TAGS]
  for _, one in ipairs(tags ~= 0 and tags or {}) do
    if one == tag then
      return true
    end
  end
  return false
end

function listing.holds_all(packed, texts)
  return #texts == 0 or listing.has_all(string.lower(packed), texts)
end

-- Whether the last error of a job matches.
function listing.error_fits(id, wanted)
  local packed = wanted.errors[id]
  if not packed then
    return false
  end
  if not wanted.class and not wanted.fingerprint then
    return true
  end
  local errors = damaged.unpacked(packed, {})
  local last = errors[#errors]
  return last and (not wanted.class or last[3] == wanted.class)
    and (not wanted.fingerprint or last[3 + FAILURE.FINGERPRINT - FAILURE.ERROR_CLASS] == wanted.fingerprint)
end

-- Whether a job with a JSON payload contains the wanted texts; `head` is packed.
function listing.texts_fit(id, record, head, wanted)
  return listing.holds_all(record, wanted.in_payload)
    and (#wanted.in_any == 0 or listing.holds_all(table.concat({ id, record, head, wanted.errors[id] or '' }, ' '), wanted.in_any))
end

-- Whether a text matches all patterns, each after the end of the one before. A single pattern with several `.*` would try all
-- combinations, which may block the server for hours.
function listing.fits_parts(text, parts)
  local from, last = nil, 0
  for _, part in ipairs(parts) do
    from, last = string.find(text, part, last + 1)
    if not from then
      return false
    end
  end
  return true
end

-- Whether a job matches the filters of a listing.
function listing.fits(q, id, wanted)
  local head = q.heads[id]
  if not head then
    return false
  end
  local finished = head[HEAD.FINISHED]
  return (not wanted.states or wanted.states[head[HEAD.STATE]])
    and (not wanted.task or listing.fits_parts(head[HEAD.TASK], wanted.task))
    and (not wanted.tag or listing.has_tag(head, wanted.tag))
    and (not wanted.group or groups.of(head) == wanted.group)
    and (not wanted.worker or head[HEAD.WORKER] == wanted.worker)
    and (not wanted.tops or options_of(head)[OPTION.ROOT] == name_of(q) .. '/' .. id)
    and (wanted.from < 0 or (finished > 0 and finished >= wanted.from))
    and (wanted.before < 0 or (finished > 0 and finished < wanted.before))
    and (not wanted.needs_error or listing.error_fits(id, wanted))
    and (not wanted.needs_record or not listing.is_json(q.records[id] or '')
      or listing.texts_fit(id, q.records[id] or '', q.packed[id] or '', wanted))
end

-- When the oldest waiting job became ready; -1 if none waits. It is exact if :w has at most 1,000 jobs; otherwise only the first
-- ones in line are considered.
function listing.oldest_ready(q)
  local ids = {}
  local plain = next_fresh(q, 100) -- nearly in the order of their ready times
  for index, entry in ipairs(plain) do
    ids[index] = entry[2][2]
  end
  for _, member in ipairs(redis.call('ZRANGE', q.w, 0, STEP - 1)) do
    ids[#ids + 1] = line.id_of(member)
  end
  load(q, ids)
  local oldest = -1
  for _, id in ipairs(ids) do
    local ready = q.heads[id] and q.heads[id][HEAD.READY] or 0
    if ready > 0 and (oldest < 0 or ready < oldest) then
      oldest = ready
    end
  end
  return oldest
end
