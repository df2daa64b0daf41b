-- Statements about groups, limits and unique keys.

-- name: limits
SELECT own, every, hold_until_ms, refit, starts FROM [limits] WHERE queue = ?

-- name: limits_save
INSERT INTO [limits] (queue, own, every, hold_until_ms, refit) VALUES (?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET own = excluded.own, every = excluded.every, hold_until_ms = excluded.hold_until_ms,
    refit = excluded.refit

-- name: limits_starts
UPDATE [limits] SET starts = ? WHERE queue = ?

-- name: limits_forget
DELETE FROM [limits] WHERE queue = ?

-- entries: grp (queue, name) own, paused, hold_until_ms, starts, level, level_ms, next_ms

-- name: grp_names
SELECT name FROM [grp] WHERE queue = ? ORDER BY name

-- The next groups after a name, by name, that have unfinished jobs or a row.
-- name: group_names
WITH RECURSIVE busy (name) AS (
    SELECT min(grp) FROM [job] WHERE queue = ?1 AND grp > ?2 AND finished_ms IS NULL
    UNION ALL
    SELECT (SELECT min(grp) FROM [job] WHERE queue = ?1 AND grp > name AND finished_ms IS NULL)
    FROM busy WHERE name IS NOT NULL
    LIMIT ?3
)
SELECT name FROM busy WHERE name IS NOT NULL
UNION
SELECT name FROM (SELECT name FROM [grp] WHERE queue = ?1 AND name > ?2 ORDER BY name LIMIT ?3)
ORDER BY name LIMIT ?3

-- Keeps the start times, which grp_starts writes.
-- name: grp_save
INSERT INTO [grp] (queue, name, own, paused, hold_until_ms, level, level_ms, next_ms)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET own = excluded.own, paused = excluded.paused, hold_until_ms = excluded.hold_until_ms,
    level = excluded.level, level_ms = excluded.level_ms, next_ms = excluded.next_ms

-- name: grp_starts
INSERT INTO [grp] (queue, name, paused, hold_until_ms, level_ms, starts) VALUES (?, ?, 0, 0, 0, ?)
ON CONFLICT DO UPDATE SET starts = excluded.starts

-- name: grp_no_starts
UPDATE [grp] SET starts = NULL WHERE queue = ? AND name = ? AND starts IS NOT NULL

-- name: grp_next
SELECT next_ms, name FROM [grp] WHERE queue = ? AND next_ms IS NOT NULL ORDER BY next_ms, name LIMIT ?

-- name: grp_idle
SELECT queue, name FROM [grp]
WHERE (queue, name) > (?, ?) AND own IS NULL AND NOT paused AND next_ms IS NULL
    AND NOT EXISTS (
        SELECT 1 FROM [job] WHERE [job].queue = [grp].queue AND grp = [grp].name AND finished_ms IS NULL)
ORDER BY queue, name LIMIT ?

-- name: grp_after
SELECT min(name) FROM [grp] WHERE queue = ? AND name > ? AND (own IS NOT NULL OR paused OR hold_until_ms > ?)

-- name: job_grp_after
SELECT min(grp) FROM [job] WHERE queue = ? AND grp > ? AND finished_ms IS NULL

-- Overwrites a record that cannot be read. It sets every column at once, because a STRICT table refuses an update
-- of a row in which any column has a value of a wrong type.
-- name: job_rewrite
UPDATE [job] SET pad = NULL, /*fixed*/, /*changes*/ WHERE seq = ?

-- name: job_grp
SELECT grp FROM [job] WHERE seq = ? AND grp <> ''

-- name: turns_first
SELECT turn, id FROM [job] WHERE queue = ? AND state = 'waiting' AND priority = ? ORDER BY turn LIMIT ? OFFSET ?

-- name: turns_last
SELECT turn, id FROM [job] WHERE queue = ? AND grp = ? AND state = 'waiting' AND priority = ?
ORDER BY turn DESC LIMIT ? OFFSET ?

-- name: turns_plain
SELECT turn, id FROM [job]
WHERE queue = ? AND state = 'waiting' AND priority = ? AND turn = 0 AND grp IS NULL LIMIT ? OFFSET ?

-- name: group_parked
SELECT /*job*/ FROM [job]
WHERE queue = ? AND grp = ? AND state = 'parked' AND finished_ms IS NULL
ORDER BY priority DESC, place LIMIT ? OFFSET ?

-- In an ordered group no job has a priority.
-- name: group_places
SELECT place, id FROM [job]
WHERE queue = ? AND grp = ? AND state = ? AND priority = 0 AND finished_ms IS NULL
ORDER BY place LIMIT ? OFFSET ?

-- name: group_again
SELECT place, id FROM [job]
WHERE queue = ? AND grp = ? AND due_ms IS NOT NULL AND deliveries > 0 AND state = 'scheduled'
ORDER BY place LIMIT ? OFFSET ?

-- name: group_delayed
SELECT place, id FROM [job]
WHERE queue = ? AND grp = ? AND state = 'scheduled' AND priority = 0 AND finished_ms IS NULL AND deliveries = 0
ORDER BY place LIMIT ? OFFSET ?

-- By group: the number of waiting and of active jobs (each up to ?2), and of jobs in other states (each up to ?3).
-- name: group_counts
SELECT asked.value,
    (SELECT count(*) FROM (SELECT 1 FROM [job]
        WHERE queue = ?1 AND grp = asked.value AND state = 'waiting' AND finished_ms IS NULL LIMIT ?2)),
    (SELECT count(*) FROM (SELECT 1 FROM [job]
        WHERE queue = ?1 AND grp = asked.value AND state = 'active' AND finished_ms IS NULL LIMIT ?2)),
    (SELECT count(*) FROM (SELECT 1 FROM [job]
        WHERE queue = ?1 AND grp = asked.value AND state = 'parked' AND finished_ms IS NULL LIMIT ?3)),
    (SELECT count(*) FROM (SELECT 1 FROM [job]
        WHERE queue = ?1 AND grp = asked.value AND state = 'scheduled' AND finished_ms IS NULL LIMIT ?3)),
    (SELECT count(*) FROM (SELECT 1 FROM [job]
        WHERE queue = ?1 AND grp = asked.value AND state = 'retrying' AND finished_ms IS NULL LIMIT ?3)),
    (SELECT count(*) FROM (SELECT 1 FROM [job]
        WHERE queue = ?1 AND grp = asked.value AND state = 'blocked' AND finished_ms IS NULL LIMIT ?3)),
    (SELECT count(*) FROM (SELECT 1 FROM [job]
        WHERE queue = ?1 AND grp = asked.value AND state = 'suspended' AND finished_ms IS NULL LIMIT ?3))
FROM json_each(?4) AS asked

-- name: group_cost
SELECT coalesce(sum(CASE WHEN json_valid(options) THEN coalesce(options ->> '$.cost', 1) ELSE 1 END), 0)
FROM [job] WHERE queue = ? AND grp = ? AND state = 'waiting' AND finished_ms IS NULL

-- Whether a job of the group has a priority or is lifo.
-- name: group_ranked
SELECT grp FROM [job]
WHERE queue = ? AND grp = ? AND finished_ms IS NULL AND (priority <> 0 OR place < 0) LIMIT 1

-- The first group without limits of its own that has such a job.
-- name: group_any_ranked
SELECT grp FROM [job]
WHERE queue = ?1 AND grp > '' AND finished_ms IS NULL AND (priority <> 0 OR place < 0)
    AND grp NOT IN (SELECT name FROM [grp] WHERE queue = ?1 AND own IS NOT NULL)
ORDER BY grp LIMIT 1

-- entries: unique_key (queue, key) job_id, until_ms, request_id, not_taken

-- name: unique_keys_after
SELECT key, job_id, until_ms, request_id, not_taken FROM [unique_key]
WHERE queue = ? AND until_ms IS NOT NULL AND until_ms > ?

-- name: unique_key_names
SELECT key FROM [unique_key] WHERE queue = ?

-- name: unique_key_free_job
DELETE FROM [unique_key] WHERE queue = ? AND job_id = ?

-- name: unique_key_list
SELECT key, job_id, until_ms FROM [unique_key]
WHERE queue = ? AND key > ? AND (until_ms IS NULL OR until_ms > ?) ORDER BY key LIMIT ?

-- name: unique_key_past
SELECT queue, key FROM [unique_key] WHERE until_ms IS NOT NULL AND until_ms <= ? ORDER BY until_ms LIMIT ?
