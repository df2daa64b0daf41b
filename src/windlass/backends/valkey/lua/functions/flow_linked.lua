-- flow_linked: notes that all children of these dependents are linked.
-- KEYS: queue roots
-- ARGV: packed {{queue, id}, ...}
-- returns: 0
-- flags: allow-oom
for _, item in ipairs(cmsgpack.unpack(args[1])) do
  redis.call('ZREM', keys[item[1]] .. ':L', item[2])
end
return 0
