-- Adding plain jobs (`15_plain.lua`) of one queue. Ids that exist are left to `70_add.lua`.

function adds.create_plain(q, id, text_of_job, seq, task)
  local list = list_of(q.hset, q.j)
  local size = #list
  list[size + 1], list[size + 2] = id, struct.pack('>BI7I6', MARK.PLAIN, seq, q.now) .. text_of_job
  adds.put_plain(q, seq, id)
  q.heads[id], q.added[id] = nil, true
  count(q, 'enqueued', task)
  note_run(q, EVENT.ENQUEUED, id, task)
end

-- Adds the jobs in `args` from position 2 on. Appends position and answer of jobs that `add_one` has handled to `special`.
function adds.add_plain(q, args, first, special)
  q.added, q.ready = {}, true
  for at = 2, #args, 2 do
    local id, text_of_job, index = args[at], args[at + 1], at / 2
    local task_end = 1 + text_of_job:byte()
    local task = text_of_job:sub(2, task_end)
    local seq = first + index - 1
    if q.heads[id] or q.kept[id] or q.stubs[id] or q.added[id] or q.turns then
      local job = { 1, id, task, 0, 0, -1, -1, 0, 0 } -- as `layouts.Wanted`
      local answer = adds.add_one(q, job, text_of_job:sub(task_end + 1), seq)
      if answer ~= 0 then
        special[#special + 1] = index
        special[#special + 1] = answer
      end
    else
      adds.create_plain(q, id, text_of_job, seq, task)
    end
  end
  write_plain(q)
end
