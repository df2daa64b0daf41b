-- Version 4: jobs that wait for other jobs or for signals, and live output.

ALTER TABLE [queue] ADD COLUMN suspended INTEGER NOT NULL DEFAULT 0;

ALTER TABLE [job] ADD COLUMN linked INTEGER;   -- 1: an edge names this job; NULL: none does
ALTER TABLE [job] ADD COLUMN held_ms INTEGER;  -- blocked: its due time, which counts once nothing else holds it
ALTER TABLE [job] ADD COLUMN awaits TEXT;
ALTER TABLE [job] ADD COLUMN signals BLOB;     -- MessagePack: name -> [data, codec, at_ms]; NULL: none

-- Jobs that wait for something other than their turn or a time. This is a separate column because an index on
-- the state would have to be checked by every statement that changes the state.
ALTER TABLE [job] ADD COLUMN idle INTEGER;     -- 1 blocked, 2 parked, 3 suspended; NULL: none of these
CREATE INDEX [job_idle] ON [job] (queue, idle) WHERE idle IS NOT NULL;

-- One row per edge. It is deleted with the dependent's record. The child is identified by queue and id, because
-- the edge outlives the child's record; child_seq says which record with that id is meant.
CREATE TABLE [edge] (
    num INTEGER PRIMARY KEY,
    dependent INTEGER NOT NULL,   -- seq of the job that waits
    queue INTEGER NOT NULL,       -- of the child
    child TEXT NOT NULL,
    child_seq INTEGER NOT NULL,
    on_failure TEXT NOT NULL,
    status TEXT NOT NULL,
    value BLOB,
    codec TEXT NOT NULL,
    reason TEXT NOT NULL,
    error TEXT NOT NULL,
    UNIQUE (dependent, queue, child)
) STRICT;
CREATE INDEX [edge_child] ON [edge] (queue, child);
CREATE INDEX [edge_open] ON [edge] (dependent) WHERE status = 'open';
CREATE INDEX [edge_untold] ON [edge] (queue, child, child_seq) WHERE status = 'open';

-- Ends of children of which some dependents have not been notified yet. end: MessagePack of a ChildEnd.
CREATE TABLE [outbox] (num INTEGER PRIMARY KEY, "end" BLOB NOT NULL) STRICT;

-- Live output: the head of each job's stream, and its chunks.
CREATE TABLE [stream] (
    job INTEGER PRIMARY KEY,      -- seq of the job
    last INTEGER NOT NULL,
    oldest INTEGER NOT NULL,
    size INTEGER NOT NULL,
    delivery INTEGER NOT NULL,
    base INTEGER NOT NULL
) STRICT;
CREATE TABLE [chunk] (
    job INTEGER NOT NULL,
    n INTEGER NOT NULL,
    delivery INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (job, n)
) WITHOUT ROWID, STRICT;
