"""The lower bound: every statement that Windlass sent to SQLite during some work, repeated by a bare loop.

The statements, their parameters, transactions and checkpoints are recorded during a real run, and replayed on
a copy of the file as it was before. Every commit waits for the disk (``synchronous=FULL``), as in Windlass,
except that a worker of Windlass starts its next jobs meanwhile. The time of a replay is the time of SQLite
and the disk.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from windlass import Windlass, Worker
from windlass.backends.sqlite import connection, session

#: Whether it is for many rows, its text, its parameters.
Statement = tuple[bool, str, Any]
Work = Callable[[Windlass], Awaitable[object]]


class Replay:
    """The statements of ``work``, done on a file that ``prepare`` filled."""

    def __init__(self, directory: Path, prepare: Work, work: Work) -> None:
        directory.mkdir()
        self._before = directory / "before.db"
        path = directory / "recorded.db"
        self._statements: list[Statement] = []
        asyncio.run(_do(path, prepare))
        shutil.copy(path, self._before)  # the last close has written the log into it
        with _recorded(self._statements):
            asyncio.run(_do(path, work))
        self._statements = [one for one in self._statements if not one[1].startswith("PRAGMA synchronous")]

    def seconds(self, path: Path) -> float:
        """How long the statements take on a new copy of the file, at ``path``."""
        shutil.copy(self._before, path)
        conn = sqlite3.connect(path, isolation_level=None, cached_statements=256)
        try:
            conn.execute("PRAGMA synchronous = FULL")
            started = time.perf_counter()
            for many, sql, params in self._statements:
                if many:
                    conn.executemany(sql, params)
                else:
                    conn.execute(sql, params).fetchall()
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


async def _do(path: Path, work: Work) -> None:
    async with Windlass(f"sqlite:///{path}") as app:
        await work(app)


@contextmanager
def _recorded(statements: list[Statement]) -> Iterator[None]:
    """Record the statements of the writing connection during the block."""

    class Cursor(sqlite3.Cursor):
        def execute(self, sql: str, params: Any = (), /) -> Cursor:
            statements.append((False, sql, params))
            super().execute(sql, params)
            return self

        def executemany(self, sql: str, rows: Any, /) -> Cursor:
            rows = list(rows)
            statements.append((True, sql, rows))
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
