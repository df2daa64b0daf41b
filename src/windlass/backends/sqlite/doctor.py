"""Checks the rows of a database for ``windlass doctor``, and sets aside rows that cannot be read.

Jobs are checked only for an invalid state. The store itself finds and repairs any other damage of a job (see
``core.bad_records``). Tables of earlier releases become STRICT while the store is in use (see ``sweep``); the
findings report the progress and the rows that were set aside.
"""

from __future__ import annotations

import base64
import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

from windlass.backend.health import Finding, fact, warning
from windlass.backend.urls import BackendUrl
from windlass.backends.sqlite import edges, logs, migrations, rows, sweep, tables
from windlass.backends.sqlite.connection import read_any_text, to_error
from windlass.backends.sqlite.port import RequestPort
from windlass.backends.sqlite.settings import SqliteSettings, parse
from windlass.backends.sqlite.statements import in_namespace
from windlass.backends.sqlite.transactional import inside
from windlass.core import bad_records
from windlass.core.text import printable

#: One line (JSON) of the file that damaged rows are moved to.
_Line = dict[str, Any]


class _Column(NamedTuple):
    """A column with encoded data: its table, the table's key columns, and the function that decodes it."""

    table: str
    keys: tuple[str, ...]
    column: str
    read: Callable[[Any], Any]


_COLUMNS = (
    _Column("event", ("key",), "records", lambda data: logs.unpack_events(1, data)),
    _Column("event", ("key",), "deltas", rows.unpack_deltas),
    _Column("history", ("key",), "records", logs.unpack_history),
    _Column("worker", ("id",), "info", rows.unpack_worker),
    _Column("schedule", ("queue", "name"), "record", tables.unpack_schedule),
    _Column("metrics", ("queue", "step_ms", "start_ms", "task"), "record", tables.unpack_metrics),
    _Column("archiver", ("name",), "cursors", rows.decode_cursors),
    _Column("outbox", ("num",), '"end"', edges.unpack_end),
)
_ADVICE = "windlass doctor --repair sets it aside"


class _Bad(NamedTuple):
    column: _Column
    key: tuple[Any, ...]
    raw: Any
    why: str

    @property
    def name(self) -> str:
        key = ", ".join(map(str, self.key))
        return printable(f"{self.column.column} of row ({key}) in table {self.column.table}")


def examine(url: BackendUrl, deep: bool) -> Iterator[Finding]:
    """Report on tables and rows that were set aside. ``deep`` reads every row and reports damaged ones."""
    settings = parse(url)
    if not os.path.exists(settings.path):
        return
    with _connected(settings) as conn:
        yield from _tables_found(conn, settings.namespace)
        if not deep:
            return
        for bad in _find(conn, settings.namespace):
            yield warning(f"{bad.name} cannot be read: {printable(bad.why)}", _ADVICE)
        for job_id, state in _stateless(conn, settings.namespace):
            text = f"job {printable(str(job_id))} has an unknown state: {printable(repr(state))}"
            yield warning(text, f"a worker sets it aside at one of its next scans; {_ADVICE} now")


def repair(url: BackendUrl) -> Iterator[Finding]:
    """Move damaged rows to a file next to the database, and fail jobs with an unknown state."""
    settings = parse(url)
    if not os.path.exists(settings.path):
        return
    kept = f"{settings.path}.damaged"
    with _connected(settings) as conn:
        conn.execute("BEGIN IMMEDIATE")
        found = list(_find(conn, settings.namespace))
        aside = _aside(conn, settings.namespace)
        _keep(kept, [_line(bad) for bad in found] + [line for _, line in aside])
        for bad in found:
            _take_out(conn, settings.namespace, bad)
            yield fact(f"{bad.name} was moved to {kept}")
        for num, line in aside:
            conn.execute(in_namespace("DELETE FROM [aside] WHERE num = ?", settings.namespace), (num,))
            yield fact(f"a row of table {line['table']} that was set aside was moved to {kept}")
        yield from _fail_stateless(conn, settings.namespace)
        conn.execute("COMMIT")


def _tables_found(conn: sqlite3.Connection, namespace: str) -> Iterator[Finding]:
    version = migrations.version(conn, namespace)
    if version == 0 or version > migrations.NEWEST:
        return
    if version < migrations.NEWEST:
        advice = "the next process of this release that opens the store upgrades them"
        yield fact(
            f"the tables have version {version}, this release uses version {migrations.NEWEST}: {advice}"
        )
        return
    loose = [name for name in sweep.TABLES if not sweep.is_strict(conn, namespace, name)]
    if not loose:
        yield fact("all tables are STRICT")
    elif sweep.is_due(conn, namespace):
        name, done = sweep.progress(conn, namespace)
        text = f"{len(loose)} tables are being looked through before they become STRICT"
        yield fact(f"{text} (now {name}: {done:.0%}); every process that has the store open continues it")
    else:
        advice = "jobs are just as safe, because rows are also checked when they are read"
        yield warning(f"this SQLite refuses to make {len(loose)} tables STRICT", advice)
    yield from _aside_found(conn, namespace)


def _aside_found(conn: sqlite3.Connection, namespace: str) -> Iterator[Finding]:
    text = "SELECT name, count(*) FROM [aside] GROUP BY name ORDER BY name"
    rows = conn.execute(in_namespace(text, namespace)).fetchall()
    if rows:
        shown = ", ".join(f"{name} {count:,}" for name, count in rows)
        advice = (
            "windlass doctor --repair moves them to a file beside the database; until then the newest "
            f"{sweep.ASIDE_KEPT:,} are kept"
        )
        yield warning(f"rows with values of a wrong type were set aside, by table: {shown}", advice)


@contextmanager
def _connected(settings: SqliteSettings) -> Iterator[sqlite3.Connection]:
    try:
        with closing(sqlite3.connect(settings.path, timeout=settings.timeout, isolation_level=None)) as conn:
            read_any_text(conn)
            yield conn
    except sqlite3.Error as exc:
        raise to_error(exc, settings.shown) from exc


def _has(conn: sqlite3.Connection, namespace: str, table: str) -> bool:
    text = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
    return conn.execute(text, (in_namespace(f"[{table}]", namespace).strip('"'),)).fetchone() is not None


def _find(conn: sqlite3.Connection, namespace: str) -> Iterator[_Bad]:
    for column in _COLUMNS:
        if not _has(conn, namespace, column.table):
            continue
        text = f"SELECT {', '.join(column.keys)}, {column.column} FROM [{column.table}]"
        for *key, data in conn.execute(in_namespace(text, namespace)):
            if data is None and column.column == "deltas":
                continue
            try:
                column.read(data)
            except bad_records.UNREADABLE as exc:
                yield _Bad(column, tuple(key), data, f"{type(exc).__name__}: {exc}")


def _stateless(conn: sqlite3.Connection, namespace: str) -> list[tuple[Any, Any]]:
    if not _has(conn, namespace, "job"):
        return []
    text = "SELECT id, state FROM [job] WHERE state NOT IN (/*states*/)"
    return conn.execute(in_namespace(text, namespace)).fetchall()


def _fail_stateless(conn: sqlite3.Connection, namespace: str) -> Iterator[Finding]:
    """Fail jobs with an unknown state. If the tables are not upgraded yet, a worker does it later."""
    if migrations.version(conn, namespace) != migrations.NEWEST:
        return
    for job_id, state in _stateless(conn, namespace):
        shown = f"job {printable(str(job_id))}, which was in the state {printable(repr(state))}"
        yield fact(f"{shown}, has failed: {bad_records.BAD_RECORD}")
    inside(conn, namespace, None, _lose_stateless)


def _lose_stateless(step: RequestPort) -> None:
    step.jobs(step.all("job_stateless", 0, rows.LAST_SEQ))
    step.lose(step.lost)


def _aside(conn: sqlite3.Connection, namespace: str) -> list[tuple[int, _Line]]:
    """Return the rows of the table ``aside`` with their numbers."""
    if not _has(conn, namespace, "aside"):
        return []
    found = conn.execute(in_namespace("SELECT num, name, why, raw FROM [aside] ORDER BY num", namespace))
    return [
        (num, {"table": name, "why": why, "base64": base64.b64encode(raw).decode()})
        for num, name, why, raw in found
    ]


def _line(bad: _Bad) -> _Line:
    raw = bad.raw if isinstance(bad.raw, bytes) else str(bad.raw).encode("utf-8", "backslashreplace")
    return {
        "table": bad.column.table,
        "column": bad.column.column.strip('"'),
        "key": [str(part) for part in bad.key],
        "why": bad.why,
        "base64": base64.b64encode(raw).decode(),
    }


def _keep(path: str, lines: list[_Line]) -> None:
    if not lines:
        return
    with open(path, "a", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        for line in lines:
            file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _take_out(conn: sqlite3.Connection, namespace: str, bad: _Bad) -> None:
    where = " AND ".join(f"{key} IS ?" for key in bad.column.keys)
    table = in_namespace(f"[{bad.column.table}]", namespace)
    if bad.column.column == "deltas":  # the events of the row may be readable
        conn.execute(f"UPDATE {table} SET deltas = NULL WHERE {where}", bad.key)
    else:
        conn.execute(f"DELETE FROM {table} WHERE {where}", bad.key)
