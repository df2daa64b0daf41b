-- Version 2: recurring schedules.

-- due_ms: the next slot; NULL when there is none, or when the schedule is paused. record: MessagePack.
CREATE TABLE [schedule] (
    queue INTEGER NOT NULL,
    name TEXT NOT NULL,
    source TEXT NOT NULL,
    due_ms INTEGER,
    record BLOB NOT NULL,
    PRIMARY KEY (queue, name)
) WITHOUT ROWID, STRICT;
CREATE INDEX [schedule_due] ON [schedule] (due_ms) WHERE due_ms IS NOT NULL;
