"""The floor of a workload on SQLite: its SQL on another thread, on disk before each answer, and nothing else.

Windlass writes on a thread of its own, so that no call blocks the event loop of the caller, and it answers a
call only when its commit is on disk. This loop keeps both rules. An event loop awaits a request; a thread
executes its statements, commits, flushes the log and answers; then comes the next request. There are no rules
of jobs, no encoding, no worker and no handlers. The requests are those of a recorded run.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from benchmarks._sqlite_replay import Recording, Statement, record, send
from windlass.backend.local.flush import data_sync

#: When what is measured began and ended in the recorded run, by the monotonic clock, in ns.
Span = tuple[int, int]


class Request(NamedTuple):
    """One transaction, to its commit, and what was sent after its answer: a checkpoint."""

    statements: list[Statement]
    after: list[Statement]

    @property
    def committed_ns(self) -> int:
        return self.statements[-1].at_ns


class Floor:
    """The requests of one recorded run. Those before its span are sent before the clock starts."""

    def __init__(self, recording: Recording[Span]) -> None:
        self._recording = recording
        began, ended = recording.answer
        requests = requests_of(recording.statements)
        self._before = [one for one in requests if one.committed_ns < began]
        self.requests = [one for one in requests if began <= one.committed_ns <= ended]

    @classmethod
    async def of(
        cls,
        directory: Path,
        prepare: Callable[[str], Awaitable[object]],
        work: Callable[[str], Awaitable[Span]],
    ) -> Floor:
        """Record ``work``, which returns the span to measure, on a file that ``prepare`` filled."""
        return cls(await record(directory, prepare, work))

    async def seconds(self, path: Path, *, flush: bool) -> float:
        """How long the requests of the span take on a new copy of the file, at ``path``."""
        writer = _Writer(self._recording, path, flush=flush)
        writer.start()
        try:
            for request in self._before:
                await writer.answer(request)
            started = time.perf_counter()
            for request in self.requests:
                await writer.answer(request)
            return time.perf_counter() - started
        finally:
            writer.stop()


def requests_of(statements: list[Statement]) -> list[Request]:
    """Divide a recording after each commit. The first request also opens the file."""
    requests: list[Request] = []
    pending: list[Statement] = []
    for one in statements:
        if one.sql.startswith("PRAGMA wal_checkpoint") and requests:
            requests[-1].after.append(one)
            continue
        pending.append(one)
        if one.sql == "COMMIT":
            requests.append(Request(pending, []))
            pending = []
    return requests


class _Writer(threading.Thread):
    """The thread that writes. Used on one event loop."""

    def __init__(self, recording: Recording[Span], path: Path, *, flush: bool) -> None:
        super().__init__(daemon=True)
        self._recording = recording
        self._path = path
        self._flush = flush
        self._loop = asyncio.get_running_loop()
        self._inbox: SimpleQueue[tuple[Request, asyncio.Future[None]] | None] = SimpleQueue()

    def answer(self, request: Request) -> asyncio.Future[None]:
        """Hand over a request. The future is set when it is carried out."""
        future = self._loop.create_future()
        self._inbox.put((request, future))
        return future

    def stop(self) -> None:
        self._inbox.put(None)
        self.join()

    def run(self) -> None:
        with closing(self._recording.copy(self._path)) as conn:
            conn.execute("PRAGMA schema_version").fetchall()  # creates the log
            log = os.open(f"{self._path}-wal", os.O_RDWR)
            try:
                self._serve_all(conn.cursor(), log)
            finally:
                os.close(log)

    def _serve_all(self, cursor: sqlite3.Cursor, log: int) -> None:
        while (came := self._inbox.get()) is not None:
            request, future = came
            try:
                send(cursor, request.statements)
                if self._flush:
                    data_sync(log)
            except Exception as exc:
                self._loop.call_soon_threadsafe(future.set_exception, exc)
                continue
            self._loop.call_soon_threadsafe(future.set_result, None)
            send(cursor, request.after)
