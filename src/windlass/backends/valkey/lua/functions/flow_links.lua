-- flow_links: the dependents that a job notifies when it ends, in the order in which they were linked.
-- KEYS: queue root
-- ARGV: packed {id, number of the last link seen or 0, limit}
-- returns: sequence of the job (0: no such job), then number and dependent <sequence>:<queue>:<id> of each link
-- flags: no-writes
local id, after, limit = unpack(cmsgpack.unpack(args[1]))
local q = open(keys[1], 0)
local head = head_of(q, id)
local answer = { head and head[HEAD.SEQ] or 0 }
if head then
  local found = redis.call('ZRANGEBYSCORE', flow.links(q, head[HEAD.SEQ]), '(' .. text(after), '+inf', 'WITHSCORES', 'LIMIT', 0, limit)
  for at = 1, #found, 2 do
    if found[at] ~= '' then
      answer[#answer + 1] = tonumber(found[at + 1])
      answer[#answer + 1] = found[at]
    end
  end
end
return answer
