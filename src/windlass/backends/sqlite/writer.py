"""The one thread of a process that writes, with group commit.

Everything that waits when a transaction begins shares it and its fsync: each request in a savepoint of its
own, so that one that fails alone takes back only itself. Lease renewals go first.
"""

from __future__ import annotations

import logging
import sqlite3
from collections import deque
from typing import TYPE_CHECKING, Any

from windlass.backend import requests as rq
from windlass.backends.sqlite import migrations, statements
from windlass.backends.sqlite.calls import Answer, Call, deliver
from windlass.backends.sqlite.connection import connect, is_busy, prepare_file, to_error
from windlass.backends.sqlite.lane import Lane
from windlass.backends.sqlite.locks import FairLock
from windlass.backends.sqlite.tx import Meta, Queues, Step, Tx
from windlass.backends.sqlite.verbs import WRITES
from windlass.core.clock import SYSTEM_CLOCK, SteadyClock
from windlass.core.probe import reach
from windlass.errors import StorageError

if TYPE_CHECKING:
    from windlass.backends.sqlite.settings import Settings
    from windlass.backends.sqlite.wake import Wake

log = logging.getLogger("windlass.sqlite")

#: Bounds of one transaction: requests, and jobs or items in them.
GROUP_CALLS = 256
GROUP_ITEMS = 5_000


class Writer(Lane):
    """See the module. ``phase`` is what the thread does now, for messages about calls that had to wait."""

    def __init__(self, settings: Settings, wake: Wake) -> None:
        super().__init__("windlass-sqlite-writer")
        self._settings = settings
        self._wake = wake
        self._sql = statements.load(settings.namespace)
        self._clock = SteadyClock()
        self._lock: FairLock | None = None
        self._conn: sqlite3.Connection | None = None
        self._urgent: deque[Call[Any]] = deque()
        self._line: deque[Call[Any]] = deque()
        self.phase = "open"

    # --- life -------------------------------------------------------------------------------------

    def _open(self) -> None:
        try:
            self._lock = FairLock(self._settings.path)
            self._lock.acquire()
            try:
                self._conn = connect(self._settings, busy_ms=round(self._settings.timeout * 1000))
                prepare_file(self._conn)
                migrations.migrate(self._conn, self._settings.namespace, SYSTEM_CLOCK.now_ms())
                self._conn.execute("PRAGMA busy_timeout = 1000")
            finally:
                self._lock.release()
        except (sqlite3.Error, OSError) as exc:
            raise to_error(exc, self._settings.shown) from exc
        self._queues = Queues(self._conn, self._sql)
        self._wake.open(Meta(*self._conn.execute(self._sql["meta"]).fetchone()).serial)
        self.phase = "idle"

    def _serve_all(self) -> None:
        while True:
            idle = not self._urgent and not self._line
            self._queue_up(self._take(block=idle))
            if not self._urgent and not self._line:
                return  # the end was asked for, and nothing is left
            try:
                self._serve_group()
            except Exception as exc:  # whatever it is, this thread must live on
                log.exception("a group of calls failed in an unexpected way")
                deliver([self._failed(call, exc) for call in (*self._urgent, *self._line) if call.begin()])
                self._drop_dead()

    def _close(self) -> None:
        left = [*self._urgent, *self._line]
        deliver([(call, None, StorageError("the backend was closed")) for call in left if call.begin()])
        if self._conn is not None:
            self._conn.close()
        if self._lock is not None:
            self._lock.close()

    def _queue_up(self, calls: list[Call[Any]]) -> None:
        for call in calls:
            (self._urgent if type(call.request) is rq.Extend else self._line).append(call)

    # --- one transaction ----------------------------------------------------------------------------

    def _serve_group(self) -> None:
        assert self._conn is not None
        assert self._lock is not None
        self.phase = "lock"
        self._lock.acquire()
        try:
            self.phase = "begin"
            if not self._begin(self._conn):
                return
            self.phase = "run"
            answers, topics = self._run(self._conn)
        finally:
            self._lock.release()
            self.phase = "idle"
        deliver(answers)
        if topics:
            self._wake.announce(topics)

    def _begin(self, conn: sqlite3.Connection) -> bool:
        """Begin a transaction; False when nobody waits for it any more.

        A foreign writer may hold the database for long: calls drop out of the line by their own timers.
        """
        while self._urgent or self._line:
            try:
                conn.execute("BEGIN IMMEDIATE")
                return True
            except sqlite3.Error as exc:
                if not is_busy(exc):
                    deliver([self._failed(call, exc) for call in self._next_group() if call.begin()])
            self._queue_up(self._take(block=False))
            self._drop_dead()
        return False

    def _drop_dead(self) -> None:
        self._urgent = deque(call for call in self._urgent if call.waiting)
        self._line = deque(call for call in self._line if call.waiting)

    def _next_group(self) -> list[Call[Any]]:
        """The calls that share the next transaction, renewals first."""
        group: list[Call[Any]] = []
        items = 0
        for line in (self._urgent, self._line):
            while line and len(group) < GROUP_CALLS and (not group or items + _size(line[0]) <= GROUP_ITEMS):
                items += _size(line[0])
                group.append(line.popleft())
        return group

    def _run(self, conn: sqlite3.Connection) -> tuple[list[Answer], set[str]]:
        """Carry out a group inside the open transaction and end that; returns answers and topics."""
        self._queue_up(self._take(block=False))
        calls = [call for call in self._next_group() if call.begin()]
        tx: Tx | None = None
        raised = 0
        try:
            reach("sqlite.begun")
            meta = Meta(*conn.execute(self._sql["meta"]).fetchone())
            tx = Tx(conn, self._sql, self._queues, meta, self._clock.now_ms(meta.clock_ms))
            answers = self._run_calls(tx, calls)
            after = tx.flush()
            raised = after.serial - meta.serial
            self._wake.own_serials += raised  # before the commit, so that nobody takes it for a stranger's
            reach("sqlite.committing")
            conn.execute("COMMIT")
            self._queues.committed(after)
        except Exception as exc:
            self._wake.own_serials -= raised
            self._roll_back(conn, tx)
            return [self._failed(call, exc) for call in calls], set()
        try:
            reach("sqlite.committed")
        except Exception as exc:
            return [self._failed(call, exc) for call in calls], tx.topics
        return answers, tx.topics

    def _run_calls(self, tx: Tx, calls: list[Call[Any]]) -> list[Answer]:
        if len(calls) == 1:
            return [(calls[0], self._run_call(tx, calls[0]), None)]
        answers: list[Answer] = []
        for call in calls:
            tx.conn.execute("SAVEPOINT one")
            try:
                answers.append((call, self._run_call(tx, call), None))
            except Exception as exc:
                if not tx.conn.in_transaction:
                    raise  # SQLite gave up the whole transaction: disk full, I/O error
                tx.conn.execute("ROLLBACK TO one")
                answers.append(self._failed(call, exc))
            tx.conn.execute("RELEASE one")
        return answers

    def _run_call(self, tx: Tx, call: Call[Any]) -> Any:
        step: Step = tx.step(call.request.now_ms)
        try:
            value = WRITES[type(call.request)](step, call.request)
        except BaseException:
            self._queues.rolled_back(step.made)
            raise
        tx.absorb(step)
        return value

    def _failed(self, call: Call[Any], exc: Exception) -> Answer:
        return call, None, to_error(exc, self._settings.shown)

    def _roll_back(self, conn: sqlite3.Connection, tx: Tx | None) -> None:
        if tx is not None:
            self._queues.rolled_back(tx.made)
        try:
            if conn.in_transaction:
                conn.execute("ROLLBACK")
        except sqlite3.Error:
            pass  # the next BEGIN tells


def _size(call: Call[Any]) -> int:
    """How many jobs a request is about."""
    request = call.request
    if type(request) is rq.Add:
        return len(request.jobs)
    if type(request) is rq.Settle:
        return len(request.items) + (request.claim.limit if request.claim else 0)
    return int(getattr(request, "limit", 1))
