"""The one thread of a process that writes, with group commit.

Calls that wait when a transaction begins share it, up to the limits of a group. Lease renewals come first.
``WriterThread`` (``backend/local/serving_thread.py``) has the lines of waiting calls and forms the groups.
"""

from __future__ import annotations

import logging
import time
from collections import deque

from windlass.backend.local.serving_thread import WriterThread
from windlass.backends.sqlite.session import SqliteSession

log = logging.getLogger("windlass.sqlite")

#: Seconds between attempts to begin while a program that does not use our lock file is writing.
BUSY_PAUSES_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02)


class SqliteWriter(WriterThread[SqliteSession]):
    """Serves the calls of all clients in this process, one transaction at a time."""

    group_calls = 256

    # --- open and close ---------------------------------------------------------------------------

    def _open(self) -> None:
        self._session.open()
        if self._session.sweep_due:
            self._sweep()  # starts with the table of queues, which every call needs
        self.phase = "idle"

    def _serve_all(self) -> None:
        while not self._stopping or self._urgent or self._line:
            busy = self._urgent or self._line or self._session.sweep_due
            self._line_up(block=not busy)
            try:
                if self._urgent or self._line:
                    self._serve_group()
                elif self._session.upkeep_due:
                    self._checkpoint()
                if self._session.sweep_due:
                    self._sweep()
            except Exception as exc:  # the thread must survive any error
                log.exception("unexpected error while serving a group of calls")
                self._fail_all(exc)
            self.phase = "idle"

    def _drop_withdrawn(self) -> None:
        self._urgent = deque(call for call in self._urgent if call.waiting)
        self._line = deque(call for call in self._line if call.waiting)

    # --- one group ----------------------------------------------------------------------------------

    def _serve_group(self) -> None:
        session = self._session
        self.phase = "lock"
        session.lock.acquire()
        try:
            self.phase = "begin"
            if not self._begin():
                return
            self.phase = "run"
            self._line_up(block=False)
            answers, topics = session.run(self._next_group())
        finally:
            session.lock.release()
        answers = session.secure(answers)
        self.phase = "idle"  # before the answers: a caller may send its next call at once
        if topics:
            self._wake.announce(topics)
        self._answer(answers)
        if session.upkeep_due:
            self._checkpoint()

    def _checkpoint(self) -> None:
        self.phase = "run"
        self._session.lock.acquire()
        try:
            self._session.checkpoint()
        finally:
            self._session.lock.release()

    def _sweep(self) -> None:
        """Check one batch of rows for STRICT (see ``sweep``). New calls wait for this batch only."""
        self.phase = "run"
        self._session.lock.acquire()
        try:
            begun = self._session.sweep()
        finally:
            self._session.lock.release()
        if not begun:
            time.sleep(BUSY_PAUSES_S[-1])

    def _begin(self) -> bool:
        """Begin a transaction. Returns False if no caller waits for it any more.

        Another program may hold the database for a long time. Calls that time out meanwhile are dropped.
        """
        attempts = 0
        while self._urgent or self._line:
            try:
                if self._session.begin():
                    return True
            except Exception as exc:
                self._answer([self._session.failed(call, exc) for call in self._next_group()])
            time.sleep(BUSY_PAUSES_S[min(attempts, len(BUSY_PAUSES_S) - 1)])
            attempts += 1
            self._line_up(block=False)
            self._drop_withdrawn()
        return False
