-- limits_group: replaces the limits of a group, or of every group without its own limits.
-- KEYS: queue root
-- ARGV: now or '', packed {group, 1: every group, limits (see `14_limits.lua`) or 0}
-- returns: 1 if the queue is new; the name of a group that cannot be made ordered ('': none)
-- emits: promoted, failed
-- flags: allow-oom
local q = open(keys[1], now_from(args[1]))
local name, every, given = unpack(cmsgpack.unpack(args[2]))
local refused = groups.refuses_order(q, every == 0 and name or nil, given)
if refused then
  return { 0, refused }
end
if every == 1 then
  groups.set_every(q, given)
else
  groups.set_own(q, name, given)
end
local known = redis.call('HSETNX', q.root, 'known', 1)
close(q)
return { known, '' }
