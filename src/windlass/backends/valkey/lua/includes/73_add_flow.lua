-- Adding flows: jobs first, then their edges. `layouts.Wanted` has the fields for jobs of a flow.

-- Adds a new job whose head is in :m from the start.
function flow.create(q, job, stored, seq, later, blocked)
  local id, head = job[JOB.ID], unpack_fresh(stored)
  if blocked or (job[JOB.KIND] or 0) > 0 then
    flow.add_fields(head)
    head[HEAD.LINKED] = 1
  end
  if blocked then
    head[HEAD.STATE] = STATE.BLOCKED
    note(q, EVENT.BLOCKED, id, head)
  elseif later then
    note(q, EVENT.SCHEDULED, id, head, head[HEAD.DUE])
  else
    note_run(q, EVENT.ENQUEUED, id, head[HEAD.TASK])
  end
  q.heads[id], q.joins[head] = head, true
  put(q.zadd, q.i, seq, id)
  enter(q, id, head)
  update_group(q)
  count(q, 'enqueued', head[HEAD.TASK])
  return { ADDED.QUEUED, head[HEAD.STATE], head[HEAD.ENQUEUED], head[HEAD.DUE] }
end

-- Creates a job that is blocked until a running job of its queue has ended, with any outcome.
function flow.create_behind(q, job, stored, seq, follows)
  local answer = flow.create(q, job, stored, seq, false, true)
  local id, own = job[JOB.ID], { q }
  apply_pending(q)
  flow.make_edge(own, q, id, q.heads[id], name_of(q), follows, ON.IGNORE)
  return answer
end

function flow.name_of_dependent(q, id, head)
  return text(head[HEAD.SEQ]) .. ':' .. name_of(q) .. ':' .. id
end

-- Whether a child may not be linked to its dependent yet.
function flow.is_unlinked(q, id, child)
  return redis.call('SISMEMBER', q.root .. ':O:' .. id, child) == 1 and redis.call('ZSCORE', q.L, id) ~= false
end

-- Creates an edge, which is closed at once if the child has ended. Returns the edge (nil: it existed before), and whether the
-- child still has to be linked.
function flow.make_edge(queues, q, id, head, name, child_id, on)
  local child, key = name .. ':' .. child_id, q.root .. ':D:' .. id
  if redis.call('HEXISTS', key, child) == 1 then
    return nil, flow.is_unlinked(q, id, child)
  end
  flow.mark_linked(q, id, head)
  local edge = { redis.call('HLEN', key), 0, on, EDGE_IS.OPEN, 'json', '', '', 0 }
  local there = flow.reachable(queues, name)
  local fate = there and flow.link(there, child_id, flow.name_of_dependent(q, id, head))
  if type(fate) == 'table' then
    return flow.close_edge(q, id, child, edge, fate), false
  end
  if fate then
    edge[EDGE.SEQ] = there.heads[child_id][HEAD.SEQ]
  end
  flow.write_edge(q, id, child, edge, '')
  redis.call('SADD', q.root .. ':O:' .. id, child)
  return edge, not fate
end

-- Notes that children of a dependent still have to be linked, see `flow_outbox`.
function flow.wait_for_links(q, id)
  redis.call('ZADD', q.L, q.now, id)
end

-- Creates the edges of a job, unless the job existed before. Returns the positions of edges whose children still have to be
-- linked.
function flow.make_edges(queues, q, job, fresh)
  local id, edges, left = job[JOB.ID], job[JOB.EDGES], {}
  local head = head_of(q, id)
  for at = 1, #edges, 3 do
    local _, unlinked
    if fresh then
      _, unlinked = flow.make_edge(queues, q, id, head, edges[at], edges[at + 1], edges[at + 2])
    else
      unlinked = flow.is_unlinked(q, id, edges[at] .. ':' .. edges[at + 1])
    end
    if unlinked then
      left[#left + 1] = at
    end
  end
  if #left > 0 then
    flow.wait_for_links(q, id)
  end
  if fresh and head[HEAD.STATE] == STATE.BLOCKED then
    apply_pending(q)
    flow.review(q, id, head)
  end
  return left
end

-- Makes a parent wait for a child. Returns the parent's sequence (0: it has finished or is gone) and 1 if the child still has to
-- be linked.
function flow.adopt(queues, q, id, name, child_id, on)
  local head = head_of(q, id)
  if not head or ENDS[head[HEAD.STATE]] then
    return { 0, 0 }
  end
  apply_pending(q)
  local edge, unlinked = flow.make_edge(queues, q, id, head, name, child_id, on)
  apply_pending(q)
  if unlinked then
    flow.wait_for_links(q, id)
  end
  if edge then
    if edge[EDGE.STATUS] == EDGE_IS.OPEN or flow.is_broken(edge) then
      flow.block(q, id, head)
    end
    if edge[EDGE.STATUS] ~= EDGE_IS.OPEN then
      flow.after_edge(q, id, head, name .. ':' .. child_id, edge)
    end
    update_group(q)
  end
  return { head[HEAD.SEQ], unlinked and 1 or 0 }
end

-- Links a job to dependents of other slots. Answers for each: 1 if it will be notified, 0 if there is no such job, or the fate.
function flow.link_all(q, id, links)
  local answers = {}
  for at = 1, #links, 3 do
    local fate = flow.link(q, id, text(links[at + 2]) .. ':' .. links[at] .. ':' .. links[at + 1])
    answers[#answers + 1] = fate == true and 1 or fate or 0
  end
  return answers
end

-- The outcome that adding an id would have.
function flow.predict_add(q, id, head, request_id)
  if head then
    return adds.outcome_of(q, id, head, request_id) or ADDED.WOULD_BE_NEW
  end
  local kept = redis.call('ZSCORE', q.k, id)
  return kept and tonumber(kept) > q.now and ADDED.ONLY_ID_KEPT or ADDED.WOULD_BE_NEW
end
