-- Statements about schedules; see statements.py.

-- name: schedules
SELECT name, record FROM [schedule] WHERE queue = ? AND name IN (SELECT value FROM json_each(?))

-- name: schedule_save
INSERT OR REPLACE INTO [schedule] (queue, name, source, due_ms, record) VALUES (?, ?, ?, ?, ?)

-- name: schedule_delete
DELETE FROM [schedule] WHERE queue = ? AND name = ?

-- name: schedule_names
SELECT name FROM [schedule] WHERE queue = ?

-- name: schedule_list
SELECT q.name, s.name, s.record FROM [schedule] s JOIN [queue] q ON q.num = s.queue
WHERE (?1 IS NULL OR q.name = ?1) AND (?2 IS NULL OR s.name = ?2) AND (?3 IS NULL OR s.source = ?3)
    AND (q.name, s.name) > (?4, ?5)
ORDER BY q.name, s.name LIMIT ?6

-- name: schedule_due
SELECT s.due_ms, s.record, q.name, s.name FROM [schedule] s JOIN [queue] q ON q.num = s.queue
WHERE s.due_ms IS NOT NULL AND s.due_ms < ''
ORDER BY s.due_ms, q.name, s.name LIMIT ?
