-- Members of an index whose time has passed, earliest first over several queues.

function sweep.earlier(one, two)
  if one[1] ~= two[1] then
    return one[1] < two[1]
  end
  return one[2] < two[2] -- by sequence
end

-- Members of the index `suffix` whose score has passed, at most `limit` in all: a list for each queue, and `order` over all.
function sweep.passed(queues, suffix, limit)
  local found = {}
  for index, q in ipairs(queues) do
    local part = redis.call('ZRANGEBYSCORE', q[suffix], '-inf', q.now, 'WITHSCORES', 'LIMIT', 0, limit)
    for at = 1, #part, 2 do
      found[#found + 1] = { tonumber(part[at + 1]), part[at], index }
    end
  end
  table.sort(found, sweep.earlier)
  local chosen = { count = math.min(#found, limit), order = {} }
  for index in ipairs(queues) do
    chosen[index] = {}
  end
  for at = 1, chosen.count do
    local member, index = found[at][2], found[at][3]
    table.insert(chosen[index], member)
    chosen.order[at] = { index, id_of(member), found[at][1] }
  end
  return chosen
end
