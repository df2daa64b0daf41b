"""Making the log shorter: a snapshot beside it, while all processes keep working.

The snapshot is written in small pieces between calls. It is a little ahead of where it began, which does not
matter: the steps since then are copied behind it, and replaying them puts everything right (``effects``).
Only the last few steps are copied under the lock; then ``current`` names the new generation.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Protocol

from windlass.backend.local.modes import mode_of, open_file
from windlass.backends.file import directory as dr
from windlass.backends.file import effects, frames
from windlass.backends.file.frames import FrameKind
from windlass.backends.file.log import Log
from windlass.backends.file.snapshot import FileSnapshot
from windlass.backends.file.store import FileStore
from windlass.core.probe import reach

try:
    import fcntl
except ImportError:  # not a POSIX system: the backend refuses to open there
    fcntl = None  # type: ignore[assignment]

#: The steps behind a snapshot may take this many bytes, or this many times those of the snapshot.
SHORT_LOG = 16 << 20
FACTOR = 2
#: When it got this many times longer than that, the process that compacts is taken for frozen.
FROZEN_FACTOR = 8
#: So few bytes may be copied under the lock.
_LAST_BYTES = 256 << 10
_COPY = 1 << 20


def is_due(log: Log) -> bool:
    """Whether the log is longer than it should be."""
    return log.step_bytes > limit(log)


def limit(log: Log) -> int:
    return max(SHORT_LOG, FACTOR * log.current.base)


class LogOwner(Protocol):
    """The session whose log is made shorter."""

    mutex: threading.Lock
    log: Log
    store: FileStore

    @property
    def directory(self) -> str:
        """Where the store is."""

    def acquire(self) -> None:
        """Take the lock of all processes."""

    def release(self) -> None:
        """Give it back."""

    def catch_up(self) -> None:
        """Read to the end of the log."""


class Compaction:
    """One new generation in the making. Used by the thread that writes."""

    def __init__(self, session: LogOwner) -> None:
        self._session = session
        lock = os.path.join(session.directory, "store-compact")
        self._lock_fd = open_file(lock, os.O_RDWR, mode_of(session.directory))
        self._fd = -1
        self._path = ""
        self._begun = False
        self._written = 0
        self._number = 0

    def go_on(self) -> bool:
        """Do one piece; True when nothing is left to do."""
        session = self._session
        if not self._begun:
            return self._begin()
        if session.log is not self._log:
            self.give_up()  # another process was first
            return True
        with session.mutex:
            piece = next(self._pieces, None)
            if piece:
                body = effects.encode(effects.Written(session.store.now_ms, 0, piece))
        if piece is None:
            return self._finish()
        if piece:
            self._number += 1
            self._write(frames.make(FrameKind.PIECE, self._number, body))
        return False

    def _begin(self) -> bool:
        session = self._session
        if not self._is_mine():
            self.give_up()
            return True
        with session.mutex:
            self._log = log = session.log
            self._from, self._first = log.offset, log.number
            self._pieces = FileSnapshot(session.store).pieces()
            place = session.store.last_place
        self._path = os.path.join(session.directory, f"{log.current.generation + 1}-{os.getpid()}.tmp")
        self._fd = open_file(self._path, os.O_RDWR | os.O_TRUNC, mode_of(session.directory))
        self._write(frames.make(FrameKind.HEAD, log.current.generation + 1, dr.head_body()))
        self._write(frames.make(FrameKind.PIECE, 0, effects.encode(effects.Written(0, place, []))))
        self._begun = True
        return False

    def _is_mine(self) -> bool:
        """Whether no other process compacts; one that does, and does not come to an end, is passed by."""
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return self._session.log.step_bytes > FROZEN_FACTOR * limit(self._session.log)
        with self._session.mutex:
            dr.sweep(self._session.directory, self._session.log.current)
        return True

    def _write(self, data: bytes) -> None:
        dr.write_all(self._fd, data, self._written)
        self._written += len(data)

    def _copy(self, upto: int) -> None:
        """Copy steps from the old log, up to a byte in it."""
        while self._from < upto:
            data = os.pread(self._log.fd, min(_COPY, upto - self._from), self._from)
            self._write(data)
            self._from += len(data)

    def _finish(self) -> bool:
        session = self._session
        self._write(frames.make(FrameKind.BASE, self._first, b""))
        base = self._written
        while session.log is self._log and session.log.offset - self._from > _LAST_BYTES:
            self._copy(session.log.offset)
        os.fsync(self._fd)
        reach("file.compacting")
        session.acquire()
        try:
            with session.mutex:
                session.catch_up()
                if session.log is not self._log:
                    self.give_up()
                    return True
                session.log.mend()
                self._copy(session.log.offset)
                os.fsync(self._fd)
                self._swap(base)
        finally:
            session.release()
        self.give_up()
        return True

    def _swap(self, base: int) -> None:
        session, old = self._session, self._log.current
        current = dr.Current(store=old.store, generation=old.generation + 1, base=base, number=self._first)
        os.replace(self._path, os.path.join(session.directory, dr.log_name(current.generation)))
        self._path = ""
        dr.sync_directory(session.directory)
        reach("file.swapping")
        dr.write_current(session.directory, current)
        session.catch_up()
        dr.sweep(session.directory, session.log.current)

    def give_up(self) -> None:
        """Release everything; what was begun is removed."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._path:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
            self._path = ""
        os.close(self._lock_fd)
