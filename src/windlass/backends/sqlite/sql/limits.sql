-- Statements about groups, limits and unique keys.

-- name: queue_special
UPDATE [queue] SET special = ? WHERE num = ?

-- name: queue_specials
SELECT num, name, special FROM [queue] WHERE special <> 0 ORDER BY name

-- name: limits
SELECT own, every, hold_until_ms, starts FROM [limits] WHERE queue = ?

-- name: limits_queues
SELECT queue FROM [limits]

-- name: grp_all
SELECT queue, name FROM [grp]

-- name: limits_save
INSERT OR REPLACE INTO [limits] (queue, own, every, hold_until_ms, starts) VALUES (?, ?, ?, ?, ?)

-- name: limits_forget
DELETE FROM [limits] WHERE queue = ?

-- name: grp
SELECT own, paused, hold_until_ms, starts, level, level_ms, next_ms FROM [grp] WHERE queue = ? AND name = ?

-- name: grp_save
INSERT OR REPLACE INTO [grp] (queue, name, own, paused, hold_until_ms, starts, level, level_ms, next_ms)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: grp_forget
DELETE FROM [grp] WHERE queue = ?

-- name: grp_delete
DELETE FROM [grp] WHERE queue = ? AND name = ?

-- name: grp_next
SELECT name, next_ms FROM [grp] WHERE queue = ? AND next_ms IS NOT NULL ORDER BY next_ms, name LIMIT 1

-- name: grp_queues
SELECT DISTINCT queue FROM [grp]

-- name: grp_idle
SELECT name FROM [grp] WHERE queue = ? AND own IS NULL AND NOT paused AND next_ms IS NULL LIMIT ?

-- name: grp_refit
SELECT name FROM [grp] WHERE queue = ? AND own IS NULL ORDER BY name

-- name: grp_after
SELECT min(name) FROM [grp] WHERE queue = ? AND name > ? AND (own IS NOT NULL OR paused OR hold_until_ms > ?)

-- name: job_grp_after
SELECT min(grp) FROM [job] WHERE queue = ? AND grp > ? AND finished_ms IS NULL

-- name: job_first
SELECT /*job*/ FROM [job] WHERE queue = ? AND state = 'waiting' ORDER BY priority DESC, turn, place LIMIT 1

-- name: job_line
UPDATE [job] SET grp = ?, turn = ?, idle = ? WHERE seq = ?

-- name: job_replace
UPDATE [job] SET task = ?, codec = ? WHERE seq = ?

-- What stands in for a record that cannot be read is written over it: every column at once, since a STRICT table
-- takes no row with a value of a wrong type, whichever column a statement is about.
-- name: job_rewrite
UPDATE [job]
SET id = ?, task = ?, payload = ?, codec = ?, enqueued_ms = ?,
    turn = 0, request_id = NULL, pad = NULL, grp = CASE typeof(grp) WHEN 'text' THEN grp END,
    /*changes*/
WHERE seq = ?

-- name: job_grp
SELECT grp FROM [job] WHERE seq = ? AND grp <> ''

-- name: turn_last
SELECT turn FROM [job] WHERE queue = ? AND grp = ? AND state = 'waiting' AND priority = ? AND seq <> ?
ORDER BY turn DESC LIMIT 1

-- name: turn_plain
SELECT 1 FROM [job]
WHERE queue = ? AND state = 'waiting' AND priority = ? AND turn = 0 AND grp IS NULL AND seq <> ? LIMIT 1

-- name: turn_now
SELECT turn FROM [job] WHERE queue = ? AND state = 'waiting' AND priority = ? AND seq <> ? ORDER BY turn LIMIT 1

-- name: group_head
SELECT /*job*/ FROM [job]
WHERE queue = ? AND grp = ? AND state = 'parked' AND finished_ms IS NULL AND seq <> ?
ORDER BY priority DESC, place LIMIT 1

-- name: group_count
SELECT count(*) FROM (
    SELECT 1 FROM [job] WHERE queue = ? AND grp = ? AND state = ? AND finished_ms IS NULL AND seq <> ? LIMIT ?
)

-- name: group_cost
SELECT coalesce(sum(coalesce(json_extract(options, '$.cost'), 1)), 0) FROM [job]
WHERE queue = ? AND grp = ? AND state = 'waiting' AND finished_ms IS NULL AND seq <> ?

-- In an ordered group no job has a priority.
-- name: group_first
SELECT place FROM [job]
WHERE queue = ? AND grp = ? AND state = ? AND priority = 0 AND finished_ms IS NULL AND seq <> ?
ORDER BY place LIMIT 1

-- name: group_first_again
SELECT place FROM [job]
WHERE queue = ? AND grp = ? AND due_ms IS NOT NULL AND deliveries > 0 AND state = 'scheduled' AND seq <> ?
ORDER BY place LIMIT 1

-- name: group_ranked
SELECT 1 WHERE EXISTS (
    SELECT 1 FROM [job] WHERE queue = ?1 AND grp = ?2 AND state = ?3 AND finished_ms IS NULL AND priority > 0
) OR EXISTS (
    SELECT 1 FROM [job] WHERE queue = ?1 AND grp = ?2 AND state = ?3 AND finished_ms IS NULL AND priority < 0
) OR EXISTS (
    SELECT 1 FROM [job]
    WHERE queue = ?1 AND grp = ?2 AND state = ?3 AND finished_ms IS NULL AND priority = 0 AND place < 0
)

-- name: group_size
SELECT count(*) FROM (
    SELECT 1 FROM [job] WHERE queue = ? AND grp = ? AND finished_ms IS NULL LIMIT ?
)

-- name: unique_key
SELECT job_id, until_ms, request_id, not_taken FROM [unique_key] WHERE queue = ? AND key = ?

-- name: unique_key_save
INSERT OR REPLACE INTO [unique_key] (queue, key, job_id, until_ms, request_id, not_taken)
VALUES (?, ?, ?, ?, ?, ?)

-- name: unique_key_free
DELETE FROM [unique_key] WHERE queue = ? AND key = ?

-- name: unique_key_free_of
DELETE FROM [unique_key] WHERE queue = ? AND key = ? AND job_id = ?

-- name: unique_key_free_job
DELETE FROM [unique_key] WHERE queue = ? AND job_id = ?

-- name: unique_key_list
SELECT key, job_id, until_ms FROM [unique_key]
WHERE queue = ? AND key > ? AND (until_ms IS NULL OR until_ms > ?) ORDER BY key LIMIT ?

-- name: unique_key_prune
DELETE FROM [unique_key] WHERE (queue, key) IN (
    SELECT queue, key FROM [unique_key] WHERE until_ms IS NOT NULL AND until_ms <= ? LIMIT ?
)

-- name: unique_key_forget
DELETE FROM [unique_key] WHERE queue = ?
