"""The two threads of a process: a writer, which serves calls in groups, and a reader."""

from __future__ import annotations

import logging
from typing import Any

from windlass.backend.calls import Answer, StoreCall
from windlass.backend.local.serving_thread import ReaderThread, WriterThread
from windlass.backends.file.compaction import Upkeep
from windlass.backends.file.notify import FileNotifier
from windlass.backends.file.session import FileSession
from windlass.errors import WindlassError

log = logging.getLogger("windlass.file")


class FileWriter(WriterThread[FileSession]):
    """Executes a group of calls in one step, with one sync for all of them."""

    group_calls = 512

    def __init__(self, session: FileSession, wake: FileNotifier) -> None:
        super().__init__("windlass-file-writer", session, wake)
        self.upkeep = Upkeep(session, wake)

    def _open(self) -> None:
        self._session.open()
        self.phase = "idle"

    def _serve_all(self) -> None:
        while not self._stopping or self._urgent or self._line:
            busy = bool(self._urgent or self._line) or self.upkeep.due
            self._line_up(block=not busy)
            try:
                if self._urgent or self._line:
                    self._serve_group()
                if self.upkeep.due and not self._stopping:
                    self.phase = "compact"
                    self.upkeep.advance()
            except Exception as exc:  # this thread must not end
                log.exception("a group of calls failed in an unexpected way")
                self._fail_all(exc)
            self.phase = "idle"

    def _serve_group(self) -> None:
        session = self._session
        self.phase = "lock"
        session.acquire()
        try:
            self.phase = "run"
            self._line_up(block=False)
            answers, topics, written = session.run(self._next_group())
        finally:
            session.release()
        if topics:
            # Other processes may act on this before it is on disk. Their own sync then covers it too.
            self._wake.announce(topics)
        self._answer(session.finish(answers, written))

    def _close(self) -> None:
        self.upkeep.abort()
        super()._close()


class FileReader(ReaderThread):
    """Answers from memory, which the writer has opened. It may wait for the writer of this process, but never
    for other processes."""

    def __init__(self, session: FileSession) -> None:
        super().__init__("windlass-file-reader")
        self._session = session

    def _serve(self, call: StoreCall[Any]) -> Answer:
        try:
            return call, self._session.read(call.request), None
        except WindlassError as exc:
            return call, None, exc
