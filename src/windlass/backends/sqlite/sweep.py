"""Makes tables of earlier releases STRICT while the store is in use.

STRICT does not change how rows are stored; it is only a word in the table's definition. So tables are not
copied. Rows are checked in batches. Each batch is a short transaction, which sets misfits aside (rows with a
value of a wrong type) and records its progress. The last batch changes the definition. A process may end at
any time: the next batch, in any process, continues from the recorded position.

* A job whose row is a misfit ends as ``failed: bad_record``, with its bytes (see ``core.bad_records``).
* Any other misfit is copied to the table ``aside``. If its bad columns have a harmless default, the row stays
  with the defaults; otherwise it is deleted.

A STRICT table can still get a misfit from a faulty disk, or from a program that bypasses SQL. No statement
can update such a row. ``again`` makes the table due for another check.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from windlass.backends.sqlite.connection import Executor, is_misfit
from windlass.backends.sqlite.port import RequestPort
from windlass.backends.sqlite.rows import Row, pack, record, stand_in_for
from windlass.backends.sqlite.statements import in_namespace, table
from windlass.core import bad_records
from windlass.core.probe import reach
from windlass.core.states import FINISHED

log = logging.getLogger("windlass.sqlite")

#: The most rows that one batch checks, and the most that it sets aside.
BATCH = 1_000
MISFITS = 50
#: The most rows in the table ``aside``. The oldest are deleted.
ASIDE_KEPT = 10_000

#: Every table of a namespace that was not always STRICT. Queues come first, because every request needs them
#: (see ``SqliteWriter._open``), then the tables that are written when a job ends.
TABLES = (
    *("queue", "limits", "grp", "unique_key", "kept_id", "edge", "outbox", "event", "history", "counter"),
    *("log", "worker", "archiver", "leader", "schedule", "metrics_cursor", "metrics", "mark", "stream"),
    *("chunk", "migration", "payload", "job"),
)
#: By table: columns with a harmless default, and the default (SQL).
_HARMLESS: dict[str, dict[str, str]] = {
    "queue": {
        "name": "'unreadable-' || num",
        "known": "1",
        **dict.fromkeys(
            (
                *("paused", "folded", "last_event", "event_floor", "last_history", "history_floor"),
                *("waiting", "scheduled", "retrying", "blocked", "parked", "active", "completed", "failed"),
                *("cancelled", "suspended", "special"),
            ),
            "0",
        ),
    },
    "job": {
        "pad": "NULL",
        "keep_until_ms": "NULL",
        "spare_until_ms": "NULL",
        "idle": "CASE state WHEN 'blocked' THEN 1 WHEN 'parked' THEN 2 WHEN 'suspended' THEN 3 END",
        "grp": "CASE WHEN json_valid(options) THEN coalesce(options ->> '$.group', '') ELSE '' END",
    },
    "event": {"at_ms": "0", "deltas": "NULL", "records": "x'90'"},  # MessagePack: an empty array
}
_STORED = {"INTEGER": "integer", "TEXT": "text", "BLOB": "blob"}

_unpack = msgspec.msgpack.Decoder(list[Any]).decode


class _Shape(NamedTuple):
    """A table: its names, an SQL condition for each column (whether its value fits), and its key columns."""

    name: str
    full: str
    columns: dict[str, str]
    keys: tuple[str, ...]

    @property
    def fits(self) -> str:
        """The SQL condition for a row that a STRICT table accepts."""
        return " AND ".join(self.columns.values()) or "1"

    def misfits(self, conn: Executor, key: Row) -> list[str]:
        """Return the columns of a row whose values do not fit."""
        answers = ", ".join(f"NOT ({fits})" for fits in self.columns.values())
        (row,) = conn.execute(f"SELECT {answers} FROM {self.full} WHERE {self.where}", key).fetchall()
        return [name for name, odd in zip(self.columns, row, strict=True) if odd]

    @property
    def where(self) -> str:
        return " AND ".join(f"{key} IS ?" for key in self.keys)


def begin(conn: Executor, namespace: str) -> None:
    """Make every table that is not STRICT due for a check."""
    for name in TABLES:
        if not is_strict(conn, namespace, name):
            again(conn, namespace, name)


def again(conn: Executor, namespace: str, name: str) -> None:
    """Make a table due for a check from its beginning, unless one is already in progress."""
    conn.execute(in_namespace("INSERT OR IGNORE INTO [sweep] (name) VALUES (?)", namespace), (name,))


def is_due(conn: Executor, namespace: str) -> bool:
    """Whether a table remains to be checked."""
    return conn.execute(in_namespace("SELECT 1 FROM [sweep]", namespace)).fetchone() is not None


def progress(conn: Executor, namespace: str) -> tuple[str, float]:
    """Return the table that is being checked, and the fraction done (0 if its rows have no numbers)."""
    found = conn.execute(in_namespace("SELECT name, upto FROM [sweep] ORDER BY num LIMIT 1", namespace))
    ((name, upto),) = found.fetchall()
    return name, 0.0 if upto is None else _share(conn, namespace, name, upto)


def _share(conn: Executor, namespace: str, name: str, upto: bytes) -> float:
    last, keys = _unpack(upto), _shape(conn, namespace, name).keys
    if len(keys) > 1 or not isinstance(last[0], int):
        return 0.0
    text = f"SELECT min({keys[0]}), max({keys[0]}) FROM {table(namespace, name)}"
    ((first, newest),) = conn.execute(text).fetchall()
    return (last[0] - first + 1) / (newest - first + 1) if newest is not None else 1.0


def is_strict(conn: Executor, namespace: str, name: str) -> bool:
    found = conn.execute("SELECT strict FROM pragma_table_list(?)", (_bare(namespace, name),)).fetchone()
    return found is not None and bool(found[0])


def misfit_in(exc: Exception, namespace: str) -> str | None:
    """Return the table that refused a value of a wrong type, or None if ``exc`` has another cause."""
    if not isinstance(exc, sqlite3.Error) or not is_misfit(exc):
        return None
    return next((name for name in TABLES if f" {_bare(namespace, name)}." in str(exc)), None)


def batch(step: RequestPort, namespace: str) -> bool:
    """Check the next rows. Returns whether there may be more to do."""
    found = step.conn.execute(in_namespace("SELECT name, upto FROM [sweep] ORDER BY num LIMIT 1", namespace))
    row = found.fetchone()
    if row is None:
        return False
    shape = _shape(step.conn, namespace, row[0])
    last = _look(step, namespace, shape, None if row[1] is None else tuple(_unpack(row[1])))
    if last is None:
        make_strict(step.conn, namespace, shape.name)
        step.conn.execute(in_namespace("DELETE FROM [sweep] WHERE name = ?", namespace), (shape.name,))
    else:
        parameters = (pack(list(last)), shape.name)
        step.conn.execute(in_namespace("UPDATE [sweep] SET upto = ? WHERE name = ?", namespace), parameters)
    reach("sqlite.swept", table=shape.name, done=last is None)
    return True


def _look(step: RequestPort, namespace: str, shape: _Shape, after: Row | None) -> Row | None:
    """Set aside the misfits among the next rows. Returns the key of the last checked row, None at the end."""
    keys, marks = ", ".join(shape.keys), ", ".join("?" * len(shape.keys))
    start = "1" if after is None else f"({keys}) > ({marks})"
    some = f"SELECT {keys} FROM {shape.full} WHERE {start}"
    order = f"ORDER BY {keys}"
    rows = step.conn.execute(f"{some} {order} LIMIT 1 OFFSET {BATCH - 1}", after or ()).fetchall()
    last: Row | None = rows[0] if rows else None
    end = "1" if last is None else f"({keys}) <= ({marks})"
    text = f"{some} AND {end} AND NOT ({shape.fits}) {order} LIMIT {MISFITS}"
    odd = step.conn.execute(text, (*(after or ()), *(last or ()))).fetchall()
    for key in odd:
        _set_aside(step, namespace, shape, key)
    return odd[-1] if len(odd) == MISFITS else last


# --- rows that do not fit -----------------------------------------------------------------------------


def _set_aside(step: RequestPort, namespace: str, shape: _Shape, key: Row) -> None:
    odd = shape.misfits(step.conn, key)
    if not odd:
        return  # ending another job has already rewritten this row
    why = f"its column {' and '.join(odd)} holds a value of a wrong type"
    bad_records.log_once(f"row {key} of table {shape.name}", why)
    harmless = _HARMLESS.get(shape.name, {})
    special = _SPECIAL.get(shape.name)
    if all(name in harmless for name in odd):
        _keep(step, namespace, shape, key, why)
        changes = ", ".join(f'"{name}" = {harmless[name]}' for name in odd)
        step.conn.execute(f"UPDATE {shape.full} SET {changes} WHERE {shape.where}", key)
    elif special is None or not special(step, shape, key, why):
        _keep(step, namespace, shape, key, why)
        step.conn.execute(f"DELETE FROM {shape.full} WHERE {shape.where}", key)


def _keep(step: RequestPort, namespace: str, shape: _Shape, key: Row, why: str) -> None:
    """Copy a row to the table ``aside``. Deletes the oldest rows there if it is full."""
    cursor = step.conn.execute(f"SELECT * FROM {shape.full} WHERE {shape.where}", key)
    names = [column[0] for column in cursor.description]
    raw = pack(dict(zip(names, cursor.fetchone(), strict=True)))
    insert = in_namespace("INSERT INTO [aside] (name, at_ms, why, raw) VALUES (?, ?, ?, ?)", namespace)
    step.conn.execute(insert, (shape.name, step.now_ms, why, raw))
    trim = in_namespace("DELETE FROM [aside] WHERE num <= (SELECT max(num) FROM [aside]) - ?", namespace)
    step.conn.execute(trim, (ASIDE_KEPT,))


def _job(step: RequestPort, shape: _Shape, key: Row, why: str) -> bool:
    """Fail a job whose row is a misfit. Returns False if it belongs to no queue."""
    for row in step.all("job_by_seqs_span", key[0], key[0]):
        if not isinstance(row[1], int) or not step.all("queue_name", row[1]):
            return False
        step.lose([stand_in_for(row, step.queues.name(row[1]), bad_records.BadRecordError(why))])
    return True


def _payload(step: RequestPort, shape: _Shape, key: Row, why: str) -> bool:
    """Fail the job of a payload that is a misfit. Returns False if there is no such job."""
    return bool(step.all("job_by_seqs_span", key[0], key[0])) and _job(step, shape, key, why)


def _edge(step: RequestPort, shape: _Shape, key: Row, why: str) -> bool:
    """Fail the dependent, because the edge cannot be read. Returns False: the edge is set aside as usual."""
    text = f"SELECT dependent FROM {shape.full} WHERE {shape.where} AND typeof(dependent) = 'integer'"
    for (seq,) in step.conn.execute(text, key).fetchall():
        for row in step.all("job_by_seqs_span", seq, seq):
            job = record(row, step.queues.name(row[1]))
            if job.state not in FINISHED:
                job.errors = [bad_records.error_of(f"an edge of it: {why}")]
                step.lose([job])
    return False


#: By table: a function that fails the job of a misfit. If it returns False, the row itself is set aside, too.
_SPECIAL: dict[str, Callable[[RequestPort, _Shape, Row, str], bool]] = {
    "job": _job,
    "payload": _payload,
    "edge": _edge,
}


# --- the definition of a table ------------------------------------------------------------------------


def _bare(namespace: str, name: str) -> str:
    return table(namespace, name).strip('"')


def _shape(conn: Executor, namespace: str, name: str) -> _Shape:
    bare, full = _bare(namespace, name), table(namespace, name)
    rows = conn.execute('SELECT name, type, "notnull", pk FROM pragma_table_info(?)', (bare,)).fetchall()
    keys = tuple(f'"{row[0]}"' for row in sorted(rows, key=lambda row: int(row[3])) if row[3])
    columns = {
        column: _fits(f'"{column}"', kind, bool(needed or key))
        for column, kind, needed, key in rows
        if not (key and kind == "INTEGER" and len(keys) == 1)  # an alias of the rowid
    }
    return _Shape(name, full, columns, keys)


def _fits(column: str, kind: str, needed: bool) -> str:
    stored = _STORED[kind]
    return f"typeof({column}) = '{stored}'" if needed else f"typeof({column}) IN ('{stored}', 'null')"


def make_strict(conn: Executor, namespace: str, name: str) -> None:
    """Change the definition of a table to STRICT, inside the open transaction.

    This is the documented way to change a definition without rewriting rows. If SQLite was built to refuse it
    (``SQLITE_DBCONFIG_DEFENSIVE``), the table stays as it is. Rows are checked when they are read anyway.
    """
    if is_strict(conn, namespace, name):
        return
    bare = _bare(namespace, name)
    named = "type = 'table' AND name = ?"
    (text,) = conn.execute(f"SELECT sql FROM sqlite_master WHERE {named}", (bare,)).fetchone()
    text += ", STRICT" if text.upper().endswith("WITHOUT ROWID") else " STRICT"
    ((version,),) = conn.execute("PRAGMA schema_version").fetchall()
    conn.execute("PRAGMA writable_schema = ON")
    try:
        conn.execute(f"UPDATE sqlite_master SET sql = ? WHERE {named}", (text, bare))
    except sqlite3.DatabaseError as exc:
        log.warning("table %s cannot be made STRICT here: %s", bare, exc)
        return
    finally:
        conn.execute("PRAGMA writable_schema = RESET")  # also makes this connection read the schema again
    conn.execute(f"PRAGMA schema_version = {version + 1}")  # makes all other connections read it again
    if not is_strict(conn, namespace, name):
        raise sqlite3.DatabaseError(f"table {bare} has not become STRICT")  # the caller rolls back
