"""Adding and completing jobs inside the application's own transaction on the same file.

A job is there, or is completed, when the application's transaction commits, and never was when it rolls
back. What holds and what does not:

* one file: ``connection`` is a plain ``sqlite3`` connection whose main database is the store's file;
* durability is the connection's own (``PRAGMA synchronous``), its waiting for other writers too
  (``sqlite3.connect(timeout=...)``): the store's settings do not reach it;
* no other connection can write to the file until the application commits: keep such transactions short. A
  transaction that has only read so far may be refused when others wrote meanwhile; begin with
  ``BEGIN IMMEDIATE`` to be sure;
* others notice the change within a quarter of a second of the commit, or at once when the application then
  calls ``notify()`` on its backend.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from windlass.backend import requests as rq
from windlass.backend.urls import DEFAULT_NAMESPACE
from windlass.backends.sqlite import migrations, statements
from windlass.backends.sqlite.connection import to_error
from windlass.backends.sqlite.port import RequestPort
from windlass.backends.sqlite.tx import Queues, Tx, read_meta
from windlass.core.clock import SYSTEM_CLOCK
from windlass.errors import ConfigError, StorageError

if TYPE_CHECKING:
    from windlass.core.job import NewJob
    from windlass.core.outcome import Settled, Settlement

T = TypeVar("T")


def add_in_transaction(
    connection: sqlite3.Connection,
    jobs: list[NewJob],
    *,
    namespace: str = DEFAULT_NAMESPACE,
    now_ms: int | None = None,
) -> list[rq.Added]:
    """Add ``jobs`` inside the transaction of ``connection``; the caller commits or rolls back.

    Without an open transaction one is begun, as the ``sqlite3`` module does before a write; a connection in
    autocommit mode (``isolation_level=None``) has to begin its own. When this raises, nothing was added and
    the transaction is as it was.
    """
    return inside(connection, namespace, now_ms, lambda step: step.answer(rq.Add(jobs=jobs)))


def settle_in_transaction(
    connection: sqlite3.Connection,
    items: list[Settlement],
    *,
    namespace: str = DEFAULT_NAMESPACE,
    now_ms: int | None = None,
) -> list[Settled]:
    """End attempts inside the transaction of ``connection``, as ``add_in_transaction`` adds jobs."""
    return inside(connection, namespace, now_ms, lambda step: step.answer(rq.Settle(items=items)).items)


def inside(
    connection: sqlite3.Connection, namespace: str, now_ms: int | None, verb: Callable[[RequestPort], T]
) -> T:
    """What ``verb`` does, inside the transaction of ``connection``."""
    if not isinstance(connection, sqlite3.Connection):
        raise ConfigError("connection", "a sqlite3.Connection", connection)
    if not connection.in_transaction and connection.isolation_level is None:
        raise ConfigError("connection", "inside a transaction: execute BEGIN IMMEDIATE first")
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
        tx.absorb(step)
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
    """The caller's connection, answering in plain tuples and texts whatever its factories are."""

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
