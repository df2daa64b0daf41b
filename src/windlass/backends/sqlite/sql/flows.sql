-- Statements about edges, the outbox and live output. See statements.py for the notation.

-- name: edge_save
INSERT INTO [edge]
    (dependent, queue, child, child_seq, child_run, on_failure, status, value, codec, reason, error)
VALUES ((SELECT seq FROM [job] WHERE queue = ? AND id = ?), ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (dependent, queue, child) DO UPDATE
SET child_seq = excluded.child_seq, child_run = excluded.child_run, status = excluded.status,
    value = excluded.value, codec = excluded.codec, reason = excluded.reason, error = excluded.error

-- Takes a list of keys: queue and id of the dependent, then of the child.
-- name: edge_pairs
SELECT /*edge*/ FROM json_each(?) AS asked
CROSS JOIN [job] ON [job].queue = asked.value ->> 0 AND [job].id = asked.value ->> 1
CROSS JOIN [edge] ON dependent = [job].seq AND [edge].queue = asked.value ->> 2 AND child = asked.value ->> 3

-- Takes a list of keys: queue and id.
-- name: edge_waits
SELECT [job].queue, [job].id, count(*), sum(status = 'open') FROM json_each(?) AS asked
CROSS JOIN [job] ON [job].queue = asked.value ->> 0 AND [job].id = asked.value ->> 1
CROSS JOIN [edge] ON dependent = [job].seq
GROUP BY [job].seq

-- name: edge_unmet
SELECT /*edge*/ FROM json_each(?) AS asked
CROSS JOIN [job] ON [job].queue = asked.value ->> 0 AND [job].id = asked.value ->> 1
CROSS JOIN [edge] ON dependent = [job].seq
WHERE status <> 'done' ORDER BY [edge].num

-- name: edge_reachable
WITH RECURSIVE reached (seq) AS (
    SELECT [job].seq FROM json_each(?) AS asked
    CROSS JOIN [job] ON [job].queue = asked.value ->> 0 AND [job].id = asked.value ->> 1
    UNION
    SELECT [job].seq FROM reached
    CROSS JOIN [edge] ON dependent = reached.seq AND status = 'open'
    CROSS JOIN [job] ON [job].queue = [edge].queue AND [job].id = child
)
SELECT [job].queue, [job].id, [edge].queue, child FROM reached
CROSS JOIN [edge] ON dependent = reached.seq AND status = 'open'
CROSS JOIN [job] ON [job].seq = reached.seq
ORDER BY [edge].num

-- Takes a limit, then a list of ends: queue, id, seq and run of the child.
-- name: edge_untold
SELECT /*edge*/ FROM json_each(?2) AS asked
CROSS JOIN [edge] ON [edge].queue = asked.value ->> 0 AND child = asked.value ->> 1
    AND child_seq = asked.value ->> 2 AND child_run <= asked.value ->> 3 AND status = 'open'
CROSS JOIN [job] ON seq = dependent
ORDER BY asked.key, [edge].num LIMIT ?1

-- name: edges_of
SELECT /*edge*/ FROM [edge] JOIN [job] ON seq = dependent
WHERE dependent = (SELECT seq FROM [job] WHERE queue = ? AND id = ?) ORDER BY [edge].num

-- name: edges_to
SELECT /*edge*/ FROM [edge] JOIN [job] ON seq = dependent
WHERE [edge].queue = ? AND child = ? ORDER BY [edge].num LIMIT ?

-- name: edge_delete
DELETE FROM [edge] WHERE dependent IN (SELECT value FROM json_each(?))

-- name: outbox
SELECT num, "end" FROM [outbox] ORDER BY num LIMIT ?

-- name: outbox_insert
INSERT INTO [outbox] ("end") VALUES (?)

-- name: outbox_delete
DELETE FROM [outbox] WHERE num IN (SELECT value FROM json_each(?))

-- name: stream_of
SELECT last, oldest, size, delivery, base FROM [stream]
WHERE job = (SELECT seq FROM [job] WHERE queue = ? AND id = ?)

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
