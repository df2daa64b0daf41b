-- Version 8: what stays for a minute of jobs whose record went with its settlement.

-- num: in the order of the ends. record: MessagePack, see stubs.py.
CREATE TABLE [stub] (
    num INTEGER PRIMARY KEY,
    queue INTEGER NOT NULL,
    id TEXT NOT NULL,
    finished_ms INTEGER NOT NULL,
    record BLOB NOT NULL,
    UNIQUE (queue, id)
) STRICT;
