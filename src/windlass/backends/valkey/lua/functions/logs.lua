-- logs: log lines of a job.
-- KEYS: queue root
-- ARGV: packed {id, start, limit}
-- returns: how many are kept, then the lines
-- flags: no-writes
local id, start, limit = unpack(cmsgpack.unpack(args[1]))
local key = keys[1] .. ':l:' .. id
local answer = { redis.call('LLEN', key) }
if limit > 0 then
  for index, line in ipairs(redis.call('LRANGE', key, start, start + limit - 1)) do
    answer[index + 1] = line
  end
end
return answer
