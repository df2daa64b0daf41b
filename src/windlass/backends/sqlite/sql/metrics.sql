-- Statements about roll-ups and marks; see statements.py.

-- name: metrics_cursors
SELECT at, seen_ms FROM [metrics_cursor] WHERE queue = ?

-- name: metrics_cursors_all
SELECT queue, at, seen_ms FROM [metrics_cursor]

-- name: metrics_cursor_delete
DELETE FROM [metrics_cursor] WHERE queue = ?

-- name: metrics_cursor_save
INSERT OR REPLACE INTO [metrics_cursor] (queue, at, seen_ms) VALUES (?, ?, ?)

-- Takes a list of step, start and task.
-- name: metrics_rows
SELECT step_ms, start_ms, task, record FROM json_each(?2) AS asked
CROSS JOIN [metrics] ON queue = ?1 AND step_ms = asked.value ->> 0 AND start_ms = asked.value ->> 1
    AND task = asked.value ->> 2

-- name: metrics_save
INSERT OR REPLACE INTO [metrics] (queue, step_ms, start_ms, task, record) VALUES (?, ?, ?, ?, ?)

-- name: metrics_read
SELECT start_ms, task, record FROM [metrics]
WHERE queue = ?1 AND step_ms = ?2 AND (start_ms, task) > (?3, ?4) AND start_ms < ?5 AND (?6 IS NULL OR task = ?6)
ORDER BY start_ms, task LIMIT ?7

-- name: metrics_past
SELECT queue, start_ms, task FROM [metrics] WHERE step_ms = ? AND start_ms < ? ORDER BY start_ms LIMIT ?

-- name: metrics_delete
DELETE FROM [metrics] WHERE queue = ? AND step_ms = ? AND start_ms = ? AND task = ?

-- name: mark
SELECT at_ms, label FROM [mark] WHERE id = ?

-- name: mark_insert
INSERT INTO [mark] (id, at_ms, label) VALUES (?, ?, ?)

-- name: mark_trim
DELETE FROM [mark] WHERE id IN (SELECT id FROM [mark] ORDER BY at_ms DESC, id DESC LIMIT -1 OFFSET ?)

-- name: mark_list
SELECT id, at_ms, label FROM [mark] WHERE at_ms >= ? ORDER BY at_ms, id
