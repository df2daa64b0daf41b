"""Upgrades the tables of a namespace to the version of this release.

Each version is one file of ``sql/``. A table of the namespace records the applied versions. It is written in
the transaction that applies them, so only one of several processes that open the file at once upgrades it.
"""

from __future__ import annotations

import sqlite3

from windlass._version import __version__
from windlass.backends.sqlite import sweep
from windlass.backends.sqlite.connection import Executor
from windlass.backends.sqlite.statements import in_namespace, read, table
from windlass.core.probe import reach
from windlass.errors import StorageError

#: Version to file; append only. Files before 6 now create STRICT tables; ``sweep`` converts older tables.
MIGRATIONS = {
    1: "001_schema.sql",
    2: "002_schedules.sql",
    3: "003_metrics.sql",
    4: "004_flows.sql",
    5: "005_limits.sql",
    6: "006_strict.sql",
    7: "007_expiry.sql",
    8: "008_stubs.sql",
    9: "009_replaced.sql",
    10: "010_search.sql",
    11: "011_tops.sql",
    12: "012_queue_time.sql",
    13: "013_refit.sql",
    14: "014_child_runs.sql",
}
NEWEST = max(MIGRATIONS)
#: From this version on, tables are created STRICT.
_STRICT = 6


def version(conn: Executor, namespace: str) -> int:
    """Return the version of the namespace's tables, or 0 if there are none."""
    name = table(namespace, "migration")
    found = conn.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (name.strip('"'),))
    if found.fetchone() is None:
        return 0
    (newest,) = conn.execute(f"SELECT coalesce(max(version), 0) FROM {name}").fetchone()
    return int(newest)


def check(found: int, namespace: str) -> None:
    """Raise ``StorageError`` if a newer release made the tables."""
    if found > NEWEST:
        raise StorageError(
            f"the tables of namespace {namespace!r} have version {found}, made by a newer release; this one "
            f"({__version__}) knows version {NEWEST}. Upgrade windlass here, or choose another ?namespace="
        )


def migrate(conn: sqlite3.Connection, namespace: str, now_ms: int) -> None:
    """Apply the missing versions in one transaction. Writes nothing if none is missing."""
    found = version(conn, namespace)
    check(found, namespace)
    if found == NEWEST:
        return
    conn.execute("BEGIN IMMEDIATE")
    try:
        _apply(conn, namespace, now_ms)
        conn.execute("COMMIT")
    except BaseException:
        if conn.in_transaction:
            conn.execute("ROLLBACK")
        raise


def _apply(conn: Executor, namespace: str, now_ms: int) -> None:
    found = version(conn, namespace)  # read again under the lock: another process may have upgraded it
    check(found, namespace)
    name = table(namespace, "migration")
    conn.execute(
        f"CREATE TABLE IF NOT EXISTS {name} "
        "(version INTEGER PRIMARY KEY, applied_ms INTEGER NOT NULL, release TEXT NOT NULL) STRICT"
    )
    for number, file in sorted(MIGRATIONS.items()):
        if number > found:
            for statement in _split(in_namespace(read(file), namespace)):
                conn.execute(statement)
            conn.execute(f"INSERT INTO {name} VALUES (?, ?, ?)", (number, now_ms, __version__))
    if found < _STRICT:
        sweep.begin(conn, namespace)
    reach("sqlite.migrated")


def _split(text: str) -> list[str]:
    """Split a script into statements. ``executescript`` cannot be used, because it commits."""
    statements, current = [], ""
    for line in text.splitlines(keepends=True):
        current += line
        if sqlite3.complete_statement(current):
            statements.append(current)
            current = ""
    return statements
