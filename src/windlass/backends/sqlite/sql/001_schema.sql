-- Version 1. A name in [brackets] is a table or index of one namespace: see statements.py.
-- Times are integer milliseconds UTC. States are plain text, so that a new state does not need a new table.

-- One row. last_place: the newest place that was assigned. clock_ms: the time when this row was written.
-- serial: grows with every transaction that other processes are notified of.
CREATE TABLE [meta] (
    one INTEGER PRIMARY KEY,
    last_place INTEGER NOT NULL,
    clock_ms INTEGER NOT NULL,
    serial INTEGER NOT NULL
) STRICT;
INSERT INTO [meta] VALUES (1, 0, 0, 0);

-- Queues are never deleted; other tables refer to them by num. Events up to event_floor and history up to
-- history_floor were removed. The columns named after states count this queue's jobs up to the event with the
-- id "folded"; newer chunks of events hold the changes since. The logs may also have newer records than
-- last_event and last_history.
CREATE TABLE [queue] (
    num INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    paused INTEGER NOT NULL DEFAULT 0,
    known INTEGER NOT NULL DEFAULT 1,
    folded INTEGER NOT NULL DEFAULT 0,
    last_event INTEGER NOT NULL DEFAULT 0,
    event_floor INTEGER NOT NULL DEFAULT 0,
    last_history INTEGER NOT NULL DEFAULT 0,
    history_floor INTEGER NOT NULL DEFAULT 0,
    waiting INTEGER NOT NULL DEFAULT 0,
    scheduled INTEGER NOT NULL DEFAULT 0,
    retrying INTEGER NOT NULL DEFAULT 0,
    blocked INTEGER NOT NULL DEFAULT 0,
    parked INTEGER NOT NULL DEFAULT 0,
    active INTEGER NOT NULL DEFAULT 0,
    completed INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    cancelled INTEGER NOT NULL DEFAULT 0
) STRICT;

-- Large payloads are in [payload], so that claiming and settling do not rewrite them.
CREATE TABLE [job] (
    seq INTEGER PRIMARY KEY,
    queue INTEGER NOT NULL,
    id TEXT NOT NULL,
    task TEXT NOT NULL,
    state TEXT NOT NULL,
    priority INTEGER NOT NULL,
    place INTEGER NOT NULL,
    payload BLOB,
    codec TEXT NOT NULL,
    options TEXT NOT NULL,
    request_id TEXT,              -- NULL: the same as id
    enqueued_ms INTEGER NOT NULL,
    ready_ms INTEGER NOT NULL,
    due_ms INTEGER,
    expires_ms INTEGER,
    started_ms INTEGER,
    finished_ms INTEGER,
    attempts INTEGER NOT NULL DEFAULT 0,
    deliveries INTEGER NOT NULL DEFAULT 0,
    stalls INTEGER NOT NULL DEFAULT 0,
    manual_retries INTEGER NOT NULL DEFAULT 0,
    misses INTEGER NOT NULL DEFAULT 0,
    token TEXT,
    settled_token TEXT,
    lease_until_ms INTEGER,
    worker TEXT,
    cancel_reason TEXT,
    progress BLOB,
    result BLOB,
    result_until_ms INTEGER,
    reason TEXT NOT NULL DEFAULT '',
    errors TEXT,                  -- NULL: none
    keep_until_ms INTEGER,        -- finished: too old from then on (NULL: never)
    spare_until_ms INTEGER,       -- finished: before then not even a count bound removes it
    pad BLOB DEFAULT (zeroblob(96)), -- room that the claim fills: a row that grows would split its page
    UNIQUE (queue, id)
) STRICT;
CREATE INDEX [job_ready] ON [job] (queue, priority DESC, place) WHERE state = 'waiting';
CREATE INDEX [job_due] ON [job] (queue, due_ms) WHERE due_ms IS NOT NULL;
CREATE INDEX [job_lease] ON [job] (lease_until_ms) WHERE lease_until_ms IS NOT NULL;
CREATE INDEX [job_finished] ON [job] (queue, state, finished_ms) WHERE finished_ms IS NOT NULL;
CREATE INDEX [job_age] ON [job] (keep_until_ms) WHERE keep_until_ms IS NOT NULL;

CREATE TABLE [payload] (seq INTEGER PRIMARY KEY, data BLOB NOT NULL) STRICT;

-- Logs in chunks: one row per queue and transaction. key = queue * 2^40 + id of the last record;
-- at_ms: the time of the newest record; records: a MessagePack array, see logs.py; deltas: how the transaction
-- changed job counts and lifetime counters.
CREATE TABLE [event] (
    key INTEGER PRIMARY KEY,
    first_id INTEGER NOT NULL,
    at_ms INTEGER NOT NULL,
    deltas BLOB,
    records BLOB NOT NULL
) STRICT;
CREATE TABLE [history] (
    key INTEGER PRIMARY KEY,
    first_id INTEGER NOT NULL,
    at_ms INTEGER NOT NULL,
    records BLOB NOT NULL
) STRICT;

CREATE TABLE [counter] (
    queue INTEGER NOT NULL,
    task TEXT NOT NULL,
    outcome TEXT NOT NULL,
    total INTEGER NOT NULL,
    PRIMARY KEY (queue, task, outcome)
) WITHOUT ROWID, STRICT;

-- Tombstones: ids that still answer "duplicate" after their record was removed.
CREATE TABLE [kept_id] (
    queue INTEGER NOT NULL,
    id TEXT NOT NULL,
    until_ms INTEGER NOT NULL,
    PRIMARY KEY (queue, id)
) WITHOUT ROWID, STRICT;
CREATE INDEX [kept_id_until] ON [kept_id] (until_ms);

CREATE TABLE [log] (
    job INTEGER NOT NULL,         -- seq of the job
    n INTEGER NOT NULL,
    line TEXT NOT NULL,
    PRIMARY KEY (job, n)
) WITHOUT ROWID, STRICT;

CREATE TABLE [worker] (id TEXT PRIMARY KEY, started_ms INTEGER NOT NULL, beat_ms INTEGER NOT NULL, info BLOB NOT NULL)
    WITHOUT ROWID, STRICT;

-- Archivers, which copy the history log elsewhere. cursors: JSON, queue name -> position.
CREATE TABLE [archiver] (name TEXT PRIMARY KEY, seen_ms INTEGER NOT NULL, cursors TEXT NOT NULL) WITHOUT ROWID, STRICT;

CREATE TABLE [leader] (role TEXT PRIMARY KEY, holder TEXT NOT NULL, until_ms INTEGER NOT NULL) WITHOUT ROWID, STRICT;
