-- report: stores progress and log lines of a job; without a token from outside of its attempt.
-- KEYS: queue root
-- ARGV: now or '', packed {id, token or '', has progress, log lines kept, level}, progress, then log lines
-- returns: status, one of CHANGED, and state
-- emits: progress
-- flags: allow-oom
local q = open(keys[1], now_from(args[1]))
local id, token, has_progress, kept, level = unpack(cmsgpack.unpack(args[2]))
local head = head_of(q, id)
if not head then
  return { CHANGED.NOT_FOUND, 0 }
end
if has_progress == 1 then
  if token == '' then
    if ENDS[head[HEAD.STATE]] then
      return { CHANGED.ILLEGAL, head[HEAD.STATE] }
    end
  elseif batch.check_token(head, token) ~= SETTLED.OK then
    return { CHANGED.LOST, head[HEAD.STATE] }
  end
  put(q.hset, q.g, id, args[3])
  local readable = options_of(head)[OPTION.CODEC] == 0 and #args[3] <= 1000
  note(q, EVENT.PROGRESS, id, head, readable and args[3] or (#args[3] .. ' bytes'))
end
if #args > 3 then
  local key, attempt = q.root .. ':l:' .. id, head[HEAD.ATTEMPTS] + (head[HEAD.STATE] == STATE.ACTIVE and 1 or 0)
  for line = 4, #args do
    redis.call('RPUSH', key, LOG_LINE .. cmsgpack.pack({ args[line], q.now, level, attempt, head[HEAD.DELIVERIES] }))
  end
  redis.call('LTRIM', key, -kept, -1)
end
close(q)
return { CHANGED.OK, head[HEAD.STATE] }
