"""A look at the rows of a database from outside, and setting aside what cannot be read: ``windlass doctor``.

Jobs are not looked at here, but for those whose state is none: everything else about a job can be told, and
set right, through the store (see ``core.damage``).
"""

from __future__ import annotations

import base64
import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, NamedTuple

from windlass.backend.health import Finding, fact, warning
from windlass.backend.urls import BackendUrl
from windlass.backends.sqlite import flows, logs, rows, verbs_metrics, verbs_schedules
from windlass.backends.sqlite.connection import read_any_text
from windlass.backends.sqlite.settings import Settings, parse
from windlass.backends.sqlite.statements import in_namespace
from windlass.core import damage
from windlass.core.clock import SYSTEM_CLOCK
from windlass.core.states import JobState
from windlass.core.text import printable


class _Column(NamedTuple):
    """Bytes in a table, the columns that name a row of it, and what reads them."""

    table: str
    keys: tuple[str, ...]
    column: str
    read: Callable[[Any], Any]


_COLUMNS = (
    _Column("event", ("key",), "records", lambda data: logs.unpack_events(1, data)),
    _Column("event", ("key",), "deltas", rows.unpack_deltas),
    _Column("history", ("key",), "records", logs.unpack_history),
    _Column("worker", ("id",), "info", rows.unpack_worker),
    _Column("schedule", ("queue", "name"), "record", verbs_schedules.unpack),
    _Column("metrics", ("queue", "step_ms", "start_ms", "task"), "record", verbs_metrics.unpack),
    _Column("archiver", ("name",), "cursors", rows.decode_cursors),
    _Column("outbox", ("num",), '"end"', flows.unpack_end),
)
_STATES = ", ".join(f"'{state.value}'" for state in JobState)
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
    """What cannot be read of the rows that are no jobs; with ``deep`` only, for it reads all of them."""
    settings = parse(url)
    if not deep or not os.path.exists(settings.path):
        return
    with closing(_connect(settings)) as conn:
        for bad in _find(conn, settings.namespace):
            yield warning(f"{bad.name} cannot be read: {printable(bad.why)}", _ADVICE)
        for seq, job_id, state in _stateless(conn, settings.namespace):
            yield warning(f"job {job_id} (number {seq}) is in no state that there is: {state!r}", _ADVICE)


def repair(url: BackendUrl) -> Iterator[Finding]:
    """Move rows that cannot be read into a file beside the database, and fail jobs that are in no state."""
    settings = parse(url)
    if not os.path.exists(settings.path):
        return
    kept = f"{settings.path}.damaged"
    with closing(_connect(settings)) as conn:
        conn.execute("BEGIN IMMEDIATE")
        found = list(_find(conn, settings.namespace))
        if found:
            _keep(kept, found)
        for bad in found:
            _take_out(conn, settings.namespace, bad)
            yield fact(f"{bad.name} was moved to {kept}")
        for seq, job_id, state in _stateless(conn, settings.namespace):
            _fail(conn, settings.namespace, seq)
            yield fact(f"job {job_id}, which was in the state {state!r}, has failed: {damage.BAD_RECORD}")
        conn.execute("COMMIT")


def _connect(settings: Settings) -> sqlite3.Connection:
    conn = sqlite3.connect(settings.path, timeout=settings.timeout, isolation_level=None)
    read_any_text(conn)
    return conn


def _tables(conn: sqlite3.Connection) -> set[str]:
    return {name for (name,) in conn.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def _find(conn: sqlite3.Connection, namespace: str) -> Iterator[_Bad]:
    there = _tables(conn)
    for column in _COLUMNS:
        table = in_namespace(f"[{column.table}]", namespace)
        if table.strip('"') not in there:
            continue
        text = f"SELECT {', '.join(column.keys)}, {column.column} FROM {table}"
        for *key, data in conn.execute(text):
            if data is None and column.column == "deltas":
                continue
            try:
                column.read(data)
            except damage.UNREADABLE as exc:
                yield _Bad(column, tuple(key), data, f"{type(exc).__name__}: {exc}")


def _stateless(conn: sqlite3.Connection, namespace: str) -> list[tuple[int, Any, Any]]:
    table = in_namespace("[job]", namespace)
    if table.strip('"') not in _tables(conn):
        return []
    return conn.execute(f"SELECT seq, id, state FROM {table} WHERE state NOT IN ({_STATES})").fetchall()


def _keep(path: str, found: list[_Bad]) -> None:
    with open(path, "a", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        for bad in found:
            raw = bad.raw if isinstance(bad.raw, bytes) else str(bad.raw).encode("utf-8", "backslashreplace")
            line = {
                "table": bad.column.table,
                "column": bad.column.column.strip('"'),
                "key": [str(part) for part in bad.key],
                "why": bad.why,
                "base64": base64.b64encode(raw).decode(),
            }
            file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _take_out(conn: sqlite3.Connection, namespace: str, bad: _Bad) -> None:
    where = " AND ".join(f"{key} IS ?" for key in bad.column.keys)
    table = in_namespace(f"[{bad.column.table}]", namespace)
    if bad.column.column == "deltas":  # the events of the row may be whole
        conn.execute(f"UPDATE {table} SET deltas = NULL WHERE {where}", bad.key)
    else:
        conn.execute(f"DELETE FROM {table} WHERE {where}", bad.key)


def _fail(conn: sqlite3.Connection, namespace: str, seq: int) -> None:
    conn.execute(
        f"UPDATE {in_namespace('[job]', namespace)} SET state = 'failed', reason = ?, finished_ms = ?, "
        "due_ms = NULL, lease_until_ms = NULL, token = NULL, idle = NULL WHERE seq = ?",
        (damage.BAD_RECORD, SYSTEM_CLOCK.now_ms(), seq),
    )
