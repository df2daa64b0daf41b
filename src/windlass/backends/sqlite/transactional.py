"""Adds and settles jobs inside the application's own transaction on the same file.

The jobs are added or settled when the application's transaction commits. If it rolls back, nothing has
happened. Note:

* ``connection`` must be a plain ``sqlite3`` connection whose main database is the store's file.
* The connection's own settings apply, not the store's: ``PRAGMA synchronous`` for durability, and
  ``sqlite3.connect(timeout=...)`` for how long it waits for other writers.
* No other connection can write to the file until the application commits, so keep such transactions short.
* SQLite may refuse the write if the transaction has only read so far and another connection has written
  since. Begin with ``BEGIN IMMEDIATE`` to avoid this.
* Other processes notice the change within a quarter of a second after the commit. If the application calls
  ``notify()`` on its backend after the commit, they notice it at once.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from windlass.backend import requests as rq
from windlass.backend.urls import DEFAULT_NAMESPACE
from windlass.backends.sqlite import migrations, statements
from windlass.backends.sqlite.connection import to_error
from windlass.backends.sqlite.port import RequestPort
from windlass.backends.sqlite.tx import Queues, Tx, read_meta
from windlass.core.clock import SYSTEM_CLOCK
from windlass.core.job import NewJob
from windlass.core.outcome import Settled, Settlement
from windlass.errors import ConfigError, StorageError

T = TypeVar("T")


def add_in_transaction(
    connection: sqlite3.Connection,
    jobs: list[NewJob],
    *,
    namespace: str = DEFAULT_NAMESPACE,
    now_ms: int | None = None,
) -> list[rq.Added]:
    """Add ``jobs`` inside the transaction of ``connection``. The caller commits or rolls back.

    If no transaction is open, this begins one, as the ``sqlite3`` module does before a write. In autocommit
    mode (``isolation_level=None`` or ``autocommit=True``) the caller must begin it. If this raises, nothing
    was added and earlier changes of the transaction are kept.
    """
    return inside(connection, namespace, now_ms, lambda step: step.answer(rq.Add(jobs=jobs)))


def settle_in_transaction(
    connection: sqlite3.Connection,
    items: list[Settlement],
    *,
    namespace: str = DEFAULT_NAMESPACE,
    now_ms: int | None = None,
) -> list[Settled]:
    """Settle attempts inside the transaction of ``connection``. See ``add_in_transaction``."""
    return inside(connection, namespace, now_ms, lambda step: step.answer(rq.Settle(items=items)).items)


def inside(
    connection: sqlite3.Connection, namespace: str, now_ms: int | None, verb: Callable[[RequestPort], T]
) -> T:
    """Run ``verb`` inside the transaction of ``connection``, in a savepoint. Returns its answer."""
    if not isinstance(connection, sqlite3.Connection):
        raise ConfigError("connection", "a sqlite3.Connection", connection)
    # Python 3.12 has a second autocommit mode, in which ``commit`` would not end our transaction.
    autocommits = connection.isolation_level is None or getattr(connection, "autocommit", None) is True
    if not connection.in_transaction and autocommits:
        raise ConfigError(
            "connection", message="the connection has no open transaction: execute BEGIN IMMEDIATE first"
        )
    plain = _Plain(connection)
    try:
        if not connection.in_transaction:
            connection.execute("BEGIN IMMEDIATE")
        return _run(plain, namespace, now_ms, verb)
    except Exception as exc:
        raise to_error(exc, "cannot take part in the application's transaction") from exc
    finally:
        plain.done()


def _run(plain: _Plain, namespace: str, now_ms: int | None, verb: Callable[[RequestPort], T]) -> T:
    _check_schema(plain, namespace)
    sql = statements.load(namespace)
    plain.execute("SAVEPOINT windlass_step")
    try:
        meta = read_meta(plain, sql)
        tx = Tx(plain, sql, Queues(plain, sql), meta, max(SYSTEM_CLOCK.now_ms(), meta.clock_ms))
        step = RequestPort(tx, now_ms)
        answer = verb(step)
        step.hand_over()
        tx.flush()
    except BaseException:
        if plain.in_transaction:
            plain.execute("ROLLBACK TO windlass_step")
            plain.execute("RELEASE windlass_step")
        raise
    plain.execute("RELEASE windlass_step")
    return answer


def _check_schema(plain: _Plain, namespace: str) -> None:
    found = migrations.version(plain, namespace)
    migrations.check(found, namespace)
    if found != migrations.NEWEST:
        state = f"version {found} of" if found else "no"
        raise StorageError(
            f"this database has {state} tables of namespace {namespace!r}: open a windlass backend on it "
            "once (which makes or upgrades them), and check that the connection is to the same file"
        )


class _Plain:
    """The caller's connection, returning tuples and ``str`` even if it has a row or text factory."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._text_factory = connection.text_factory
        connection.text_factory = str

    @property
    def in_transaction(self) -> bool:
        return self._connection.in_transaction

    @property
    def total_changes(self) -> int:
        return self._connection.total_changes

    def execute(self, sql: str, parameters: tuple[Any, ...] = (), /) -> sqlite3.Cursor:
        return self._cursor().execute(sql, parameters)

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> sqlite3.Cursor:
        return self._cursor().executemany(sql, parameters)

    def _cursor(self) -> sqlite3.Cursor:
        cursor = sqlite3.Cursor(self._connection)
        cursor.row_factory = None
        return cursor

    def done(self) -> None:
        self._connection.text_factory = self._text_factory
