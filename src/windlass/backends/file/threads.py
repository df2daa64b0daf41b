"""The two threads of a process: one that writes, in groups of calls, and one that answers inspections."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from windlass.backend import requests as rq
from windlass.backend.calls import Answer, StoreCall, deliver
from windlass.backend.local.serving_thread import ServingThread, WriterThread
from windlass.backends.file.session import FileSession, size_of
from windlass.errors import StorageError, WindlassError

if TYPE_CHECKING:
    from windlass.backends.file.notify import FileNotifier

log = logging.getLogger("windlass.file")

#: Bounds of one step: requests, and jobs or items in them.
GROUP_CALLS = 512
GROUP_ITEMS = 5_000


class FileWriter(WriterThread):
    """Takes all calls that wait at one moment into one step, renewals first; one sync serves them all."""

    def __init__(self, session: FileSession, wake: FileNotifier) -> None:
        super().__init__("windlass-file-writer")
        self._session = session
        self._wake = wake

    def _open(self) -> None:
        self._session.open()
        self.phase = "idle"

    def _serve_all(self) -> None:
        while not self._stopping or self._urgent or self._line:
            busy = bool(self._urgent or self._line) or self._session.upkeep_due
            self._queue_up(self._take(block=not busy))
            try:
                if self._urgent or self._line:
                    self._serve_group()
                if self._session.upkeep_due and not self._stopping:
                    self.phase = "compact"
                    self._session.upkeep()
            except Exception as exc:  # whatever it is, this thread must live on
                log.exception("a group of calls failed in an unexpected way")
                self._fail_all(exc)
            self.phase = "idle"

    def _close(self) -> None:
        self._fail_all(StorageError("the backend was closed"))
        self._session.close()

    def _fail_all(self, exc: Exception) -> None:
        left = [*self._urgent, *self._line]
        deliver([self._session.failed(call, exc) for call in left if call.begin()])
        self._urgent.clear()
        self._line.clear()

    def _queue_up(self, calls: list[StoreCall[Any]]) -> None:
        for call in calls:
            (self._urgent if type(call.request) is rq.Extend else self._line).append(call)

    def _next_group(self) -> list[StoreCall[Any]]:
        """The calls that share the next step, renewals first."""
        group: list[StoreCall[Any]] = []
        items = 0
        for line in (self._urgent, self._line):
            while line and len(group) < GROUP_CALLS:
                size = size_of(line[0].request)
                if group and items + size > GROUP_ITEMS:
                    break
                items += size
                group.append(line.popleft())
        return [call for call in group if call.begin()]

    def _serve_group(self) -> None:
        session = self._session
        self.phase = "lock"
        session.acquire()
        try:
            self.phase = "run"
            self._queue_up(self._take(block=False))
            answers, topics, written = session.run(self._next_group())
        finally:
            session.release()
        if topics:
            self._wake.announce(topics)  # others may begin before this is on disk: their own sync covers it
        deliver(session.finish(answers, written))


class FileReader(ServingThread):
    """Answers from memory; waits for writers of this process only, never for the lock."""

    def __init__(self, session: FileSession) -> None:
        super().__init__("windlass-file-reader")
        self._session = session

    def _open(self) -> None:
        """The writer has opened the store."""

    def _serve_all(self) -> None:
        while not self._stopping:
            deliver([self._serve(call) for call in self._take(block=True) if call.begin()])

    def _serve(self, call: StoreCall[Any]) -> Answer:
        try:
            return call, self._session.look(call.request), None
        except WindlassError as exc:
            return call, None, exc

    def _close(self) -> None:
        """Nothing to close."""
