"""The lower bound: every statement that Windlass sent to SQLite during some work, repeated by a bare loop.

The statements, their parameters, transactions and checkpoints are recorded during a real run, and replayed on
a copy of the file as it was before. ``Replay`` repeats them without a pause, and every commit waits for the
disk (``synchronous=FULL``), as in Windlass, except that a worker of Windlass starts its next jobs meanwhile.
The time of a replay is the time of SQLite and the disk. ``_sqlite_floor`` repeats them request by request.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar
from unittest import mock

from windlass import Windlass, Worker
from windlass.backends.sqlite import connection, session

T = TypeVar("T")
Work = Callable[[Windlass], Awaitable[object]]


class Statement(NamedTuple):
    """One statement. ``many``: whether ``params`` has a row of parameters for each of many executions."""

    many: bool
    sql: str
    params: Any
    #: When it was sent, by the monotonic clock.
    at_ns: int


class Recording(NamedTuple, Generic[T]):
    """What some work sent to SQLite, and what it returned."""

    #: The file before the work.
    before: Path
    statements: list[Statement]
    answer: T

    def copy(self, path: Path) -> sqlite3.Connection:
        """Copy the file to ``path``, flush it, and connect to it."""
        shutil.copy(self.before, path)
        with path.open("rb+") as copied:
            os.fsync(copied.fileno())  # or the first flush of the replay would write it
        return sqlite3.connect(path, isolation_level=None, cached_statements=256)


async def record(
    directory: Path, prepare: Callable[[str], Awaitable[object]], work: Callable[[str], Awaitable[T]]
) -> Recording[T]:
    """Record ``work`` on a file that ``prepare`` filled. Both get the URL of the file."""
    path, before = _new_files(directory)
    statements: list[Statement] = []
    await prepare(f"sqlite:///{path}")
    shutil.copy(path, before)  # the last close has written the log into it
    with _recorded(statements):
        answer = await work(f"sqlite:///{path}")
    return Recording(before, statements, answer)


def _new_files(directory: Path) -> tuple[Path, Path]:
    directory.mkdir()
    return directory / "recorded.db", directory / "before.db"


def send(cursor: sqlite3.Cursor, statements: Iterable[Statement]) -> None:
    """Execute recorded statements, and fetch what they find."""
    for many, sql, params, _ in statements:
        if many:
            cursor.executemany(sql, params)
        else:
            cursor.execute(sql, params).fetchall()


class Replay:
    """The statements of ``work``, done on a file that ``prepare`` filled."""

    def __init__(self, directory: Path, prepare: Work, work: Work) -> None:
        self._recording = asyncio.run(record(directory, partial(_do, prepare), partial(_do, work)))
        self._statements = [
            one for one in self._recording.statements if not one.sql.startswith("PRAGMA synchronous")
        ]

    def seconds(self, path: Path) -> float:
        """How long the statements take on a new copy of the file, at ``path``."""
        conn = self._recording.copy(path)
        try:
            conn.execute("PRAGMA synchronous = FULL")
            started = time.perf_counter()
            send(conn.cursor(), self._statements)
            return time.perf_counter() - started
        finally:
            conn.close()


async def drain(app: Windlass, count: int, concurrency: int) -> None:
    """Work through ``count`` waiting jobs of the queue ``bench`` in this process."""
    left, done = count, asyncio.Event()

    async def noop(job: object) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            done.set()

    async with Worker("bench", noop, url_or_app=app, concurrency=concurrency):
        await done.wait()


async def _do(work: Work, url: str) -> None:
    async with Windlass(url) as app:
        await work(app)


@contextmanager
def _recorded(statements: list[Statement]) -> Iterator[None]:
    """Record the statements of the writing connection during the block."""

    class Cursor(sqlite3.Cursor):
        def execute(self, sql: str, params: Any = (), /) -> Cursor:
            statements.append(Statement(False, sql, params, time.monotonic_ns()))
            super().execute(sql, params)
            return self

        def executemany(self, sql: str, rows: Any, /) -> Cursor:
            rows = list(rows)
            statements.append(Statement(True, sql, rows, time.monotonic_ns()))
            super().executemany(sql, rows)
            return self

    class Connection(sqlite3.Connection):
        def cursor(self, *_: Any) -> Any:
            return super().cursor(Cursor)

        def execute(self, sql: str, params: Any = (), /) -> Any:
            return self.cursor().execute(sql, params)

        def executemany(self, sql: str, rows: Any, /) -> Any:
            return self.cursor().executemany(sql, rows)

    def connect(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        plain = sqlite3.connect

        def recording(*args: Any, **kwargs: Any) -> sqlite3.Connection:
            return plain(*args, factory=Connection, **kwargs)

        with mock.patch.object(sqlite3, "connect", recording):
            return connection.connect(*args, **kwargs)

    with mock.patch.object(session, "connect", connect):
        yield
