-- Version 3: roll-ups of the history, and marks.

-- The attempt record up to which a queue's history is rolled up, and when this was last written.
CREATE TABLE [metrics_cursor] (queue INTEGER PRIMARY KEY, at INTEGER NOT NULL, seen_ms INTEGER NOT NULL) STRICT;

-- step_ms: length of the window. record: MessagePack.
CREATE TABLE [metrics] (
    queue INTEGER NOT NULL,
    step_ms INTEGER NOT NULL,
    start_ms INTEGER NOT NULL,
    task TEXT NOT NULL,
    record BLOB NOT NULL,
    PRIMARY KEY (queue, step_ms, start_ms, task)
) WITHOUT ROWID, STRICT;
CREATE INDEX [metrics_age] ON [metrics] (step_ms, start_ms);

CREATE TABLE [mark] (id TEXT PRIMARY KEY, at_ms INTEGER NOT NULL, label TEXT NOT NULL) WITHOUT ROWID, STRICT;
CREATE INDEX [mark_at] ON [mark] (at_ms);
