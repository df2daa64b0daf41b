-- Version 8: stubs, which are kept for a minute for jobs whose record was removed when they were settled.

-- num: the order in which the jobs ended. record: MessagePack, see stubs.py.
CREATE TABLE [stub] (
    num INTEGER PRIMARY KEY,
    queue INTEGER NOT NULL,
    id TEXT NOT NULL,
    finished_ms INTEGER NOT NULL,
    record BLOB NOT NULL,
    UNIQUE (queue, id)
) STRICT;
