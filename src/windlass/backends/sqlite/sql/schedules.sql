-- Statements about schedules; see statements.py.

-- entries: schedule (queue, name) source, due_ms, record

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
