-- Statements about the store, queues, jobs, logs, workers and stubs. See statements.py for the notation.

-- Plain adds do not update the row of the store: see tx.Meta. A damaged time is ignored.
-- name: meta
SELECT max(last_place, coalesce(newest, 0)),
    CASE WHEN newest > last_place
        THEN coalesce(
            (SELECT enqueued_ms FROM [job] WHERE seq = newest AND typeof(enqueued_ms) = 'integer'), clock_ms)
        ELSE clock_ms END,
    serial
FROM [store], (SELECT max(seq) AS newest FROM [job])

-- name: meta_save
UPDATE [store] SET last_place = ?, clock_ms = ?, serial = ?

-- name: queue_num
SELECT num FROM [queue] WHERE name = ?

-- name: queue_name
SELECT name FROM [queue] WHERE num = ?

-- name: queue_insert
INSERT INTO [queue] (name) VALUES (?) RETURNING num

-- name: queue
SELECT known, last_event, last_history,
    (SELECT max(key) FROM [event] WHERE key BETWEEN ?1 AND ?2),
    (SELECT max(key) FROM [history] WHERE key BETWEEN ?1 AND ?2),
    folded,
    (SELECT count(*) FROM [event] WHERE key > ?1 + folded AND key <= ?2),
    special, paused
FROM [queue] WHERE num = ?3

-- name: queue_save
UPDATE [queue] SET paused = ?, known = ?, special = ? WHERE num = ?

-- name: queue_fold
UPDATE [queue]
SET folded = ?, last_event = ?, last_history = ?,
    waiting = waiting + ?, scheduled = scheduled + ?, retrying = retrying + ?, blocked = blocked + ?,
    parked = parked + ?, suspended = suspended + ?, active = active + ?, completed = completed + ?, failed = failed + ?,
    cancelled = cancelled + ?
WHERE num = ?

-- name: queue_events_from
UPDATE [queue] SET event_floor = ? WHERE num = ?

-- name: queue_nums
SELECT num, name FROM [queue] ORDER BY num

-- name: queue_list
SELECT num, name, paused FROM [queue] WHERE known ORDER BY name

-- name: queue_tally
SELECT folded, waiting, scheduled, retrying, blocked, parked, suspended, active, completed, failed,
    cancelled
FROM [queue] WHERE num = ?

-- name: queue_logs
SELECT last_event, last_history, event_floor, history_floor,
    (SELECT max(key) FROM [event] WHERE key BETWEEN ?1 AND ?2),
    (SELECT max(key) FROM [history] WHERE key BETWEEN ?1 AND ?2)
FROM [queue] WHERE num = ?3

-- name: job_by_id
SELECT /*job*/ FROM [job] WHERE queue = ? AND id = ?

-- name: job_by_ids
SELECT /*job*/ FROM [job] WHERE queue = ? AND id IN (SELECT value FROM json_each(?))

-- name: job_by_seqs
SELECT /*job*/ FROM [job] WHERE /*among*/

-- name: job_insert
INSERT OR IGNORE INTO [job] (/*whole*/) VALUES (/*marks*/)

-- name: job_insert_plain
INSERT OR IGNORE INTO [job]
    (seq, queue, id, task, state, priority, place, payload, codec, options, enqueued_ms, ready_ms)
VALUES (?1, ?2, ?3, ?4, 'waiting', ?5, ?1, ?6, ?7, ?8, ?9, ?9)

-- name: job_undo_insert
DELETE FROM [job] WHERE seq > ?

-- name: job_save
UPDATE [job] SET /*changes*/ WHERE seq = ?

-- name: job_ends
SELECT seq, queue, id, state, options, enqueued_ms, linked FROM [job] WHERE /*among*/

-- name: job_delete
DELETE FROM [job] WHERE /*among*/ RETURNING queue, state

-- name: payload_insert
INSERT OR REPLACE INTO [payload] (seq, data) VALUES (?, ?)

-- name: payload_delete
DELETE FROM [payload] WHERE /*among*/

-- A damaged row may have a text or a BLOB in a column of numbers. SQLite sorts these after every number, so such a
-- time never comes. Other statements leave them out (due_ms < ''); this one finds them.
-- name: job_timeless
SELECT /*job*/ FROM [job] WHERE lease_until_ms IS NOT NULL AND lease_until_ms >= ''
UNION ALL
SELECT /*job*/ FROM [job] WHERE queue IN (SELECT num FROM [queue]) AND due_ms IS NOT NULL AND due_ms >= ''
LIMIT ?

-- name: job_stateless
SELECT /*job*/ FROM [job] WHERE seq > ? AND seq <= ? AND state NOT IN (/*states*/) ORDER BY seq

-- Few columns, because the sqlite3 module takes as long for one column as SQLite takes for many comparisons. The
-- last column is NULL for a job with the usual values and default options, 1 for one that was added by name
-- without any options, and otherwise JSON with all other values. JSON cannot hold a BLOB, which only a damaged
-- row has there; then the column is empty.
-- name: job_ready
SELECT seq, id, task, coalesce(payload, (SELECT data FROM [payload] WHERE [payload].seq = [job].seq)), enqueued_ms,
    CASE WHEN options IN ('{}', '{"unsaid":63}') AND place = seq AND ready_ms = enqueued_ms AND priority = 0 AND codec = 'json'
            AND deliveries = 0 AND manual_retries = 0 AND request_id IS NULL AND expires_ms IS NULL
            AND errors IS NULL AND result IS NULL AND linked IS NULL AND signals IS NULL
            AND queue_time IS NULL THEN CASE options WHEN '{}' THEN NULL ELSE 1 END
        WHEN 'blob' IN (typeof(options), typeof(place), typeof(ready_ms), typeof(priority), typeof(codec),
            typeof(request_id), typeof(expires_ms), typeof(queue_time)) THEN ''
        ELSE json_array(options, place, ready_ms, priority, codec, request_id, expires_ms,
            deliveries <> 0 OR manual_retries <> 0 OR errors IS NOT NULL OR result IS NOT NULL OR linked IS NOT NULL
                OR signals IS NOT NULL, queue_time) END
FROM [job] WHERE queue = ? AND state = 'waiting' ORDER BY priority DESC, turn, place LIMIT ? OFFSET ?

-- name: job_line
SELECT /*job*/ FROM [job]
WHERE queue = ? AND state = 'waiting' ORDER BY priority DESC, turn, place LIMIT ? OFFSET ?

-- name: job_lease
UPDATE [job]
SET state = 'active', token = ? || '.' || seq, worker = ?, started_ms = ?, lease_until_ms = ?, expires_ms = ?,
    deliveries = deliveries + 1, progress = NULL, pad = NULL
WHERE /*among*/

-- name: job_expired
SELECT /*job*/ FROM [job]
WHERE expires_ms IS NOT NULL AND expires_ms <= ? AND state <> 'active' ORDER BY expires_ms, seq LIMIT ?

-- name: job_stays
UPDATE [job] SET expires_ms = NULL WHERE /*among*/

-- name: job_complete
UPDATE [job]
SET state = 'completed', finished_ms = ?, result = ?, result_until_ms = ?, keep_until_ms = ?,
    spare_until_ms = ?, settled_token = token, token = NULL, lease_until_ms = NULL, expires_ms = NULL, reason = ''
WHERE token IS NOT NULL AND /*among*/

-- Only one column, because the sqlite3 module describes every column each time it executes a statement.
-- name: job_any_due
SELECT 1 FROM [job] WHERE queue = ? AND due_ms IS NOT NULL AND due_ms < '' LIMIT 1

-- name: job_due
SELECT /*job*/ FROM [job]
WHERE queue = ? AND due_ms IS NOT NULL AND due_ms < '' ORDER BY due_ms, seq LIMIT ?

-- name: job_extend
UPDATE [job] SET lease_until_ms = ? WHERE seq = ?

-- name: job_leased_by
SELECT /*job*/ FROM [job] INDEXED BY [job_lease]
WHERE lease_until_ms IS NOT NULL AND worker = ? ORDER BY seq

-- name: job_lease_over
SELECT /*job*/ FROM [job]
WHERE lease_until_ms IS NOT NULL AND lease_until_ms <= ? ORDER BY lease_until_ms, seq LIMIT ?

-- name: job_lease_after
SELECT /*job*/ FROM [job] INDEXED BY [job_lease] WHERE lease_until_ms IS NOT NULL AND lease_until_ms > ?

-- name: prune_queues
SELECT num, name, completed + failed + cancelled > 0 OR last_history > history_floor
    OR EXISTS (SELECT 1 FROM [event] WHERE key > num * ?1 + folded AND key < (num + 1) * ?1)
FROM [queue] WHERE num > ?2 ORDER BY num LIMIT ?3

-- name: prune_old
SELECT queue, finished_ms, seq FROM [job]
WHERE keep_until_ms IS NOT NULL AND keep_until_ms <= ? ORDER BY keep_until_ms LIMIT ?

-- Finished jobs after (finished_ms, seq), and whether each has default options: see rows.too_old_from.
-- name: prune_plain
SELECT queue, finished_ms, seq, options IN ('{}', '{"unsaid":63}') AND keep_until_ms IS NULL FROM [job]
WHERE queue = ?1 AND state = ?2 AND finished_ms >= ?3 AND finished_ms <= ?5 AND (finished_ms > ?3 OR seq > ?4)
ORDER BY finished_ms, seq LIMIT ?6

-- name: prune_newest
SELECT options FROM [job]
WHERE queue = ? AND state = ? AND finished_ms IS NOT NULL ORDER BY finished_ms DESC, seq DESC LIMIT 1

-- name: prune_surplus
SELECT queue, finished_ms, seq FROM (
    SELECT queue, finished_ms, seq, spare_until_ms FROM [job]
    WHERE queue = ?1 AND state = ?2 AND finished_ms <= ?3 - ?4 ORDER BY finished_ms, seq LIMIT ?5
) WHERE spare_until_ms <= ?3 LIMIT ?6

-- A time that is not a number counts as old enough, because the job is damaged.
-- name: purge_finished
SELECT /*job*/ FROM [job]
WHERE queue = ? AND state = ? AND finished_ms IS NOT NULL AND (finished_ms <= ? OR finished_ms >= '') ORDER BY finished_ms, seq LIMIT ?

-- name: purge_waiting
SELECT /*job*/ FROM [job] INDEXED BY [job_ready]
WHERE queue = ? AND state = 'waiting' AND (enqueued_ms <= ? OR enqueued_ms >= '') ORDER BY enqueued_ms, seq LIMIT ?

-- name: purge_waiting_many
SELECT /*job*/ FROM [job] INDEXED BY [job_ready]
WHERE queue = ? AND state = 'waiting' AND (enqueued_ms <= ? OR enqueued_ms >= '') ORDER BY priority DESC, turn, place LIMIT ?

-- name: purge_due
SELECT /*job*/ FROM [job] INDEXED BY [job_due]
WHERE queue = ? AND due_ms IS NOT NULL AND state = ? AND (enqueued_ms <= ? OR enqueued_ms >= '') ORDER BY enqueued_ms, seq LIMIT ?

-- name: purge_due_many
SELECT /*job*/ FROM [job] INDEXED BY [job_due]
WHERE queue = ? AND due_ms IS NOT NULL AND state = ? AND (enqueued_ms <= ? OR enqueued_ms >= '') ORDER BY due_ms LIMIT ?

-- name: purge_active
SELECT /*job*/ FROM [job] INDEXED BY [job_lease]
WHERE lease_until_ms IS NOT NULL AND queue = ? AND (enqueued_ms <= ? OR enqueued_ms >= '') ORDER BY enqueued_ms, seq LIMIT ?

-- name: purge_idle
SELECT /*job*/ FROM [job]
WHERE queue = ? AND idle = ? AND (enqueued_ms <= ? OR enqueued_ms >= '') ORDER BY enqueued_ms, seq LIMIT ?

-- name: list_edge_{way}
SELECT seq FROM [job] WHERE seq {after} ? ORDER BY seq {order} LIMIT 1 OFFSET ?

-- name: list_walk_{way}
SELECT /*job*/ FROM [job]
WHERE seq {after} ? AND seq {upto} ? AND +queue = ? AND +state IN (SELECT value FROM json_each(?)) /*also*/
ORDER BY seq {order}

-- name: list_passed
SELECT count(*) FROM [job]
WHERE seq > ? AND seq <= ? AND +queue = ? AND +state IN (SELECT value FROM json_each(?))

-- name: list_{index}_edge_{way}
SELECT seq FROM [job] INDEXED BY {by} WHERE {such} AND queue = ? AND seq {after} ? ORDER BY seq {order} LIMIT 1 OFFSET ?

-- name: list_{index}_walk_{way}
SELECT /*job*/ FROM [job] INDEXED BY {by} WHERE {such} AND seq {after} ? AND seq {upto} ? AND queue = ?
    AND +state IN (SELECT value FROM json_each(?)) /*also*/
ORDER BY seq {order}

-- name: list_{index}_passed
SELECT count(*) FROM [job] INDEXED BY {by} WHERE {such} AND queue = ? AND seq > ? AND seq <= ?

-- A part of a statement: the payload of a job as text.
-- name: payload_text
CAST(coalesce(payload, (SELECT data FROM [payload] WHERE [payload].seq = [job].seq)) AS TEXT)

-- name: list_by_seqs
SELECT /*job*/ FROM [job] WHERE seq IN (SELECT value FROM json_each(?)) /*also*/

-- name: list_seqs_ended
SELECT seq FROM [job] INDEXED BY [job_finished]
WHERE queue = ? AND state = ? AND finished_ms >= ? AND finished_ms < ? LIMIT ?

-- name: list_due_{way}
SELECT due_ms, seq FROM [job] INDEXED BY [job_due]
WHERE queue = ? AND due_ms IS NOT NULL AND (due_ms, seq) {after} (?, ?)
ORDER BY due_ms {order}, seq {order} LIMIT ?

-- name: list_finished_{way}
SELECT finished_ms, seq FROM [job] INDEXED BY [job_finished]
WHERE queue = ? AND state = ? AND finished_ms IS NOT NULL AND (finished_ms, seq) {after} (?, ?)
ORDER BY finished_ms {order}, seq {order} LIMIT ?

-- name: event_insert
INSERT INTO [event] (key, first_id, at_ms, deltas, records) VALUES (?, ?, ?, ?, ?)

-- name: event_deltas
SELECT deltas FROM [event] WHERE key > ? AND key <= ? AND deltas IS NOT NULL

-- name: event_trim
DELETE FROM [event] WHERE key > ? AND key <= ?

-- name: event_read
SELECT key, first_id, records FROM [event] WHERE key > ? AND key <= ? ORDER BY key

-- name: history_insert
INSERT INTO [history] (key, first_id, at_ms, records) VALUES (?, ?, ?, ?)

-- name: history_trim
DELETE FROM [history] WHERE key > ? AND key <= ?

-- name: history_read
SELECT key, first_id, records FROM [history] WHERE key > ? AND key <= ? ORDER BY key

-- name: history_ages
SELECT key, first_id, at_ms FROM [history] WHERE key > ? AND key <= ? ORDER BY key LIMIT ?

-- name: history_chunk
SELECT records FROM [history] WHERE key = ?

-- name: queue_floors
SELECT event_floor, history_floor FROM [queue] WHERE num = ?

-- name: history_floor
UPDATE [queue] SET history_floor = ?, last_history = ? WHERE num = ?

-- name: counter_add
INSERT INTO [counter] (queue, task, outcome, total) VALUES (?, ?, ?, ?)
ON CONFLICT DO UPDATE SET total = total + excluded.total

-- name: counter_list
SELECT task, outcome, total FROM [counter] WHERE queue = ?

-- entries: kept_id (queue, id) until_ms

-- name: kept_id_any
SELECT 1 FROM [kept_id] LIMIT 1

-- name: kept_id_past
SELECT queue, id FROM [kept_id] WHERE until_ms <= ? ORDER BY until_ms LIMIT ?

-- name: log_insert
INSERT OR REPLACE INTO [log] (job, n, line, at_ms, level, attempt, run) VALUES (?, ?, ?, ?, ?, ?, ?)

-- name: log_last
SELECT max(n) FROM [log] WHERE job = ?

-- name: log_trim
DELETE FROM [log] WHERE job = ? AND n <= ?

-- name: log_delete
DELETE FROM [log] WHERE job IN (SELECT value FROM json_each(?))

-- name: log_count
SELECT count(*) FROM [log] WHERE job = ?

-- name: log_read
SELECT line, at_ms, level, attempt, run FROM [log] WHERE job = ? ORDER BY n LIMIT ? OFFSET ?

-- name: job_seq
SELECT seq FROM [job] WHERE queue = ? AND id = ?

-- entries: worker (id) started_ms, beat_ms, info
-- entries: archiver (name) seen_ms, cursors
-- entries: leader (role) holder, until_ms

-- name: workers_after
SELECT id, started_ms, beat_ms, info FROM [worker] WHERE beat_ms > ? ORDER BY id

-- name: worker_past
SELECT id FROM [worker] WHERE beat_ms <= ? ORDER BY id LIMIT ?

-- name: archivers_after
SELECT name, seen_ms, cursors FROM [archiver] WHERE seen_ms > ? ORDER BY name

-- name: leaders_after
SELECT role, holder, until_ms FROM [leader] WHERE until_ms > ?

-- name: list_seqs_idle
SELECT seq FROM [job] WHERE queue = ? AND idle = ?

-- name: list_seqs_waiting
SELECT seq FROM [job] WHERE queue = ? AND state = 'waiting'

-- name: list_seqs_due
SELECT seq FROM [job] WHERE queue = ? AND due_ms IS NOT NULL

-- name: list_seqs_active
SELECT seq FROM [job] INDEXED BY [job_lease] WHERE lease_until_ms IS NOT NULL AND queue = ?

-- name: list_seqs_finished
SELECT seq FROM [job] WHERE queue = ? AND state = ? AND finished_ms IS NOT NULL

-- name: oldest_ready
SELECT min(ready_ms) FROM (
    SELECT ready_ms FROM [job] WHERE queue = ? AND state = 'waiting' ORDER BY priority DESC, turn, place LIMIT ?
) WHERE ready_ms < ''

-- name: oldest_ready_in
SELECT min(ready_ms) FROM (
    SELECT ready_ms FROM [job] WHERE queue = ? AND state = 'waiting' AND priority = ? ORDER BY turn, place LIMIT ?
) WHERE ready_ms < ''

-- name: next_priority
SELECT priority FROM [job] WHERE queue = ? AND state = 'waiting' AND priority < ? ORDER BY priority DESC LIMIT 1

-- entries: stub (queue, id) finished_ms, record

-- name: stub_any
SELECT 1 FROM [stub] LIMIT 1

-- name: stub_save
INSERT OR REPLACE INTO [stub] (num, queue, id, finished_ms, record)
VALUES ((SELECT coalesce(max(num), 0) + 1 FROM [stub]), ?, ?, ?, ?)

-- name: stub_trim
DELETE FROM [stub] WHERE num <= (SELECT max(num) FROM [stub]) - ?

-- name: stub_past
SELECT queue, id FROM (SELECT queue, id, finished_ms FROM [stub] ORDER BY num LIMIT ?) WHERE finished_ms <= ?

-- name: stub_names
SELECT id FROM [stub] WHERE queue = ?
