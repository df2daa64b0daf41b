-- Statements about roll-ups and marks; see statements.py.

-- entries: metrics_cursor (queue) at, seen_ms
-- entries: metrics (queue, step_ms, start_ms, task) record

-- Takes a list of step, start and task.
-- name: metrics_find
SELECT step_ms, start_ms, task, record FROM json_each(?2) AS asked
CROSS JOIN [metrics] ON queue = ?1 AND step_ms = asked.value ->> 0 AND start_ms = asked.value ->> 1
    AND task = asked.value ->> 2

-- name: metrics_cursors_all
SELECT queue, at, seen_ms FROM [metrics_cursor]

-- name: metrics_read
SELECT start_ms, task, record FROM [metrics]
WHERE queue = ?1 AND step_ms = ?2 AND (start_ms, task) > (?3, ?4) AND start_ms < ?5 AND (?6 IS NULL OR task = ?6)
ORDER BY start_ms, task LIMIT ?7

-- name: metrics_past
SELECT queue, start_ms, task FROM [metrics] WHERE step_ms = ? AND start_ms < ? ORDER BY start_ms LIMIT ?

-- name: mark
SELECT at_ms, label FROM [mark] WHERE id = ?

-- name: mark_insert
INSERT INTO [mark] (id, at_ms, label) VALUES (?, ?, ?)

-- name: mark_trim
DELETE FROM [mark] WHERE id IN (SELECT id FROM [mark] ORDER BY at_ms DESC, id DESC LIMIT -1 OFFSET ?)

-- name: mark_list
SELECT id, at_ms, label FROM [mark] WHERE at_ms >= ? ORDER BY at_ms, id
