-- Plain jobs: those with nothing special about them, which are nearly all. They travel and rest as bytes of fixed
-- layout, so that nothing has to be unpacked and packed again on their way from `add` to `completed`. As soon as
-- anything else happens to one, it gets a head like all others.
--
-- A plain job has priority 0, was ready at once, never expires and has the usual options.
--   record in :j      255, sequence (7 bytes), enqueued (6), length and text of task (1 + n), tail as sent
--   head when active  1, sequence, enqueued, started (6), length and text of token, of worker, of task
--   when completed    2, finished (6), all of the above but its first byte, then 0 (no result), 1 and the result, or
--                     2 (the result is in :r)
-- Both heads stand for the first attempt of the first delivery.

local PLAIN, PLAIN_ACTIVE, PLAIN_DONE = 255, 1, 2
local INLINE = 200 -- results up to so many bytes stay in the head
local LEAN_FORMAT = '>I7I6I6Bc0Bc0Bc0'

local function is_plain(record)
  return record:byte() == PLAIN
end

local function is_lean(packed)
  return packed:byte() <= PLAIN_DONE
end

-- The whole head behind lean bytes; the result, if it is among them, goes to `q.inline`.
local function unpack_lean(q, id, packed)
  local done = packed:byte() == PLAIN_DONE
  local seq, enqueued, started, token, worker, task, after = struct.unpack(LEAN_FORMAT, packed, done and 8 or 2)
  local head = {
    done and COMPLETED or ACTIVE, seq, seq, 0, enqueued, enqueued, 0, 0, task, 0,
    0, 1, 0, 0, 0, done and '' or token, done and token or '', worker, started, 0, '', 0, '',
  }
  if done then
    head[FINISHED] = struct.unpack('>I6', packed, 2)
    head[RESULT_UNTIL] = head[FINISHED] + DEFAULT_RESULT_TTL_MS
    q.inline[id] = packed:byte(after) == 1 and packed:sub(after + 1) or nil
  end
  return head
end

-- What `check_token` answers for a whole head.
local function check_lean(packed, token)
  local done = packed:byte() == PLAIN_DONE
  local at = done and 27 or 21
  if packed:byte(at) == #token and packed:sub(at + 1, at + #token) == token then
    return done and 1 or 0
  end
  return 2
end
