-- Edges between jobs, the outbox of their ends, live output. See statements.py for the notation.

-- name: job_link
UPDATE [job] SET linked = 1 WHERE seq = ?

-- name: job_hold
UPDATE [job] SET linked = 1, idle = ?, held_ms = ? WHERE seq = ?

-- name: edge_insert
INSERT INTO [edge]
    (dependent, queue, child, child_seq, on_failure, status, value, codec, reason, error)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: edge_save
UPDATE [edge] SET status = ?, value = ?, codec = ?, reason = ?, error = ?
WHERE dependent = (SELECT seq FROM [job] WHERE queue = ? AND id = ?) AND queue = ? AND child = ?

-- name: edge_child
UPDATE [edge] SET child_seq = ?
WHERE dependent = (SELECT seq FROM [job] WHERE queue = ? AND id = ?) AND queue = ? AND child = ?

-- name: edge_missed
SELECT /*edge*/ FROM [edge] JOIN [job] ON seq = dependent
WHERE dependent = (SELECT seq FROM [job] WHERE queue = ? AND id = ?) AND status IN ('failed', 'ignored')
ORDER BY [edge].num

-- name: edge_exists
SELECT 1 FROM [edge]
WHERE dependent = (SELECT seq FROM [job] WHERE queue = ? AND id = ?) AND queue = ? AND child = ?

-- name: edge_count
SELECT count(*) FROM [edge] WHERE dependent = (SELECT seq FROM [job] WHERE queue = ? AND id = ?)

-- name: edge_open_children
SELECT queue, child FROM [edge]
WHERE dependent = (SELECT seq FROM [job] WHERE queue = ? AND id = ?) AND status = 'open' ORDER BY num

-- name: edge_has_open
SELECT 1 FROM [edge]
WHERE dependent = (SELECT seq FROM [job] WHERE queue = ? AND id = ?) AND status = 'open' LIMIT 1

-- name: edge_broken
SELECT /*edge*/ FROM [edge] JOIN [job] ON seq = dependent
WHERE dependent = (SELECT seq FROM [job] WHERE queue = ? AND id = ?)
    AND status = 'failed' AND on_failure = 'fail'
ORDER BY [edge].num LIMIT 1

-- name: edge_untold
SELECT /*edge*/ FROM [edge] JOIN [job] ON seq = dependent
WHERE [edge].queue = ? AND child = ? AND child_seq = ? AND status = 'open'
ORDER BY [edge].num LIMIT ?

-- name: edges_of
SELECT /*edge*/ FROM [edge] JOIN [job] ON seq = dependent
WHERE dependent = (SELECT seq FROM [job] WHERE queue = ? AND id = ?) ORDER BY [edge].num

-- name: edges_to
SELECT /*edge*/ FROM [edge] JOIN [job] ON seq = dependent
WHERE [edge].queue = ? AND child = ? ORDER BY [edge].num LIMIT ?

-- name: edge_delete
DELETE FROM [edge] WHERE dependent IN (SELECT value FROM json_each(?))

-- name: outbox_first
SELECT num, "end" FROM [outbox] ORDER BY num LIMIT 1

-- name: outbox_insert
INSERT INTO [outbox] ("end") VALUES (?)

-- name: outbox_delete
DELETE FROM [outbox] WHERE num = ?

-- name: stream
SELECT last, oldest, size, delivery, base FROM [stream] WHERE job = ?

-- name: stream_save
INSERT OR REPLACE INTO [stream] (job, last, oldest, size, delivery, base) VALUES (?, ?, ?, ?, ?, ?)

-- name: stream_delete
DELETE FROM [stream] WHERE job IN (SELECT value FROM json_each(?))

-- name: chunk_insert
INSERT INTO [chunk] (job, n, delivery, data) VALUES (?, ?, ?, ?)

-- name: chunk_sizes
SELECT length(data) FROM [chunk] WHERE job = ? AND n >= ? ORDER BY n

-- name: chunk_trim
DELETE FROM [chunk] WHERE job = ? AND n < ?

-- name: chunk_read
SELECT n, delivery, data FROM [chunk] WHERE job = ? AND n > ? ORDER BY n LIMIT ?

-- name: chunk_delete
DELETE FROM [chunk] WHERE job IN (SELECT value FROM json_each(?))

-- name: job_codec
SELECT seq, state, codec, options ->> '$.result_codec' FROM [job] WHERE queue = ? AND id = ?
