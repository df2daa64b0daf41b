-- Listing: the stream of jobs that were added ready and the index of all others, merged by sequence.

local function plain_rows(q, newest, cursor)
  local entries
  if newest then
    local from = cursor >= 0 and ('(' .. text(cursor) .. '-0') or '+'
    entries = redis.call('XREVRANGE', q.f, from, '-', 'COUNT', STEP)
  else
    local from = cursor >= 0 and ('(' .. text(cursor) .. '-0') or '-'
    entries = redis.call('XRANGE', q.f, from, '+', 'COUNT', STEP)
  end
  local rows = {}
  for index, entry in ipairs(entries) do
    rows[index] = { tonumber(string.match(entry[1], '^%d+')), entry[2][2] }
  end
  return rows
end

local function other_rows(q, newest, cursor)
  local found
  if newest then
    local from = cursor >= 0 and ('(' .. text(cursor)) or '+inf'
    found = redis.call('ZREVRANGEBYSCORE', q.i, from, '-inf', 'WITHSCORES', 'LIMIT', 0, STEP)
  else
    local from = cursor >= 0 and ('(' .. text(cursor)) or '-inf'
    found = redis.call('ZRANGEBYSCORE', q.i, from, '+inf', 'WITHSCORES', 'LIMIT', 0, STEP)
  end
  local rows = {}
  for at = 1, #found, 2 do
    rows[(at + 1) / 2] = { tonumber(found[at + 1]), found[at] }
  end
  return rows
end

-- Up to 1,000 rows {sequence, id} beyond `cursor`, their heads read; and whether there are more.
local function rows_from(q, newest, cursor)
  local plain, others = plain_rows(q, newest, cursor), other_rows(q, newest, cursor)
  local rows, ids, p, o = {}, {}, 1, 1
  while #rows < STEP and (plain[p] or others[o]) do
    local take_plain = plain[p] ~= nil
    if plain[p] and others[o] then
      take_plain = (plain[p][1] < others[o][1]) ~= newest
    end
    rows[#rows + 1] = take_plain and plain[p] or others[o]
    ids[#rows] = rows[#rows][2]
    if take_plain then
      p = p + 1
    else
      o = o + 1
    end
  end
  load(q, ids)
  return rows, #rows == STEP
end

local function has_tag(head, tag)
  local tags = options_of(head)[TAGS]
  for _, one in ipairs(tags ~= 0 and tags or {}) do
    if one == tag then
      return true
    end
  end
  return false
end

local function last_error_is(q, id, class)
  local packed = redis.call('HGET', q.e, id)
  local errors = packed and cmsgpack.unpack(packed) or {}
  return #errors > 0 and errors[#errors][3] == class
end

-- A function that tells whether the job under an id fits the filters of a listing.
local function matcher(q, request, pattern)
  local states, tag = {}, request[5]
  for _, state in ipairs(request[4]) do
    states[state] = true
  end
  return function(id)
    local head = q.heads[id]
    return (#request[4] == 0 or states[head[STATE]])
      and (pattern == '' or string.find(head[TASK], pattern) ~= nil)
      and (tag == '' or has_tag(head, tag))
      and (request[6] == 0 or last_error_is(q, id, request[7]))
  end
end

-- When the oldest waiting job became ready; -1 when none waits. Exact while at most 1,000 jobs of other
-- priorities or returned ones wait; beyond that, of those that are first in line.
local function oldest_ready(q)
  local ids = {}
  local plain = unpicked(q, 100) -- in order of their times, but for a few
  for index, entry in ipairs(plain) do
    ids[index] = entry[2][2]
  end
  for _, member in ipairs(redis.call('ZRANGE', q.w, 0, STEP - 1)) do
    ids[#ids + 1] = line.id_of(member)
  end
  load(q, ids)
  local oldest = -1
  for _, id in ipairs(ids) do
    local ready = q.heads[id][READY]
    if oldest < 0 or ready < oldest then
      oldest = ready
    end
  end
  return oldest
end
