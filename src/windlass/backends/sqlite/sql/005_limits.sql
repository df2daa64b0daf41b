-- Version 5: groups and their turns, limits, unique keys.

-- grp: the job's group; '' for a job without a group in a queue that has had groups; NULL: unknown.
ALTER TABLE [job] ADD COLUMN grp TEXT;
ALTER TABLE [job] ADD COLUMN turn INTEGER NOT NULL DEFAULT 0;
DROP INDEX [job_ready];
CREATE INDEX [job_ready] ON [job] (queue, priority DESC, turn, place) WHERE state = 'waiting';
CREATE INDEX [job_group] ON [job] (queue, grp, state, priority DESC, place)
    WHERE grp IS NOT NULL AND finished_ms IS NULL;
CREATE INDEX [job_turn] ON [job] (queue, grp, priority, turn) WHERE grp IS NOT NULL AND state = 'waiting';
CREATE INDEX [job_again] ON [job] (queue, grp) WHERE grp IS NOT NULL AND due_ms IS NOT NULL AND deliveries > 0;

-- special: 1 if the queue has ever had a group, plus 2 if it has a row in [limits].
ALTER TABLE [queue] ADD COLUMN special INTEGER NOT NULL DEFAULT 0;

-- JSON of QueueLimits and (for every group) GroupLimits; starts: MessagePack, oldest first.
CREATE TABLE [limits] (
    queue INTEGER PRIMARY KEY,
    own TEXT NOT NULL,
    every TEXT NOT NULL,
    hold_until_ms INTEGER NOT NULL DEFAULT 0,
    starts BLOB
) STRICT;

-- Groups that have settings, have used part of a limit, or wait for a time (next_ms).
CREATE TABLE [grp] (
    queue INTEGER NOT NULL,
    name TEXT NOT NULL,
    own TEXT,
    paused INTEGER NOT NULL,
    hold_until_ms INTEGER NOT NULL,
    starts BLOB,
    level INTEGER,
    level_ms INTEGER NOT NULL,
    next_ms INTEGER,
    PRIMARY KEY (queue, name)
) WITHOUT ROWID, STRICT;
CREATE INDEX [grp_next] ON [grp] (queue, next_ms, name) WHERE next_ms IS NOT NULL;

CREATE TABLE [unique_key] (
    queue INTEGER NOT NULL,
    key TEXT NOT NULL,
    job_id TEXT NOT NULL,
    until_ms INTEGER,
    request_id TEXT NOT NULL,
    PRIMARY KEY (queue, key)
) WITHOUT ROWID, STRICT;
CREATE INDEX [unique_key_until] ON [unique_key] (until_ms) WHERE until_ms IS NOT NULL;
