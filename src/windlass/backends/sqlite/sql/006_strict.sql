-- Version 6: STRICT tables, which refuse values of a wrong type.
--
-- Tables of earlier releases are not STRICT yet; sweep.py converts them.

-- [store] replaces [meta]. A process of an earlier release reads [meta] at the beginning of each transaction, so
-- it gets the error below before it can write anything. The message is in the place of a JSON path.
CREATE TABLE [store] (
    one INTEGER PRIMARY KEY,
    last_place INTEGER NOT NULL,
    clock_ms INTEGER NOT NULL,
    serial INTEGER NOT NULL
) STRICT;
INSERT INTO [store]
SELECT 1,
    CASE typeof(last_place) WHEN 'integer' THEN last_place ELSE 0 END,
    CASE typeof(clock_ms) WHEN 'integer' THEN clock_ms ELSE 0 END,
    CASE typeof(serial) WHEN 'integer' THEN serial ELSE 0 END
FROM [meta] ORDER BY one LIMIT 1;
INSERT OR IGNORE INTO [store] VALUES (1, 0, 0, 0);
DROP TABLE [meta];
CREATE VIEW [meta] AS
SELECT 1 AS one, told AS last_place, told AS clock_ms, told AS serial
FROM (SELECT json_extract('{}', 'a newer release of windlass upgraded this file: restart this process with that release') AS told);

-- Rows with values of a wrong type. name: the table; raw: MessagePack, column -> value.
CREATE TABLE [aside] (
    num INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    why TEXT NOT NULL,
    raw BLOB NOT NULL
) STRICT;

-- Tables that remain to be checked. upto: MessagePack of the key of the last checked row; NULL: none yet.
CREATE TABLE [sweep] (num INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, upto BLOB) STRICT;
