"""Compaction: replace the log by a shorter one, while all processes keep working.

A snapshot is written to a new file in small pieces, between calls. Later pieces include changes that were
made after the first piece. That does no harm: all steps since the first piece are copied behind the snapshot,
and replaying them corrects the result (see ``effects``). Only the last few steps are copied under the lock.
Then ``current`` is replaced and names the new generation.
"""

from __future__ import annotations

import contextlib
import os
import time

from windlass.backend.local.modes import mode_of, open_file
from windlass.backends.file import directory as dr
from windlass.backends.file import effects, frames, snapshot
from windlass.backends.file.frames import FrameKind
from windlass.backends.file.log import Log
from windlass.backends.file.notify import FileNotifier
from windlass.backends.file.session import FileSession
from windlass.core.probe import reach

try:
    import fcntl
except ImportError:  # not a POSIX system: the backend refuses to open there
    fcntl = None  # type: ignore[assignment]

#: Compact if the steps take more than this many bytes, and more than this many times the snapshot.
SHORT_LOG = 16 << 20
FACTOR = 2
#: If the steps are this many times longer than that, assume that the process that compacts is frozen.
FROZEN_FACTOR = 8
#: The pause between two compactions; ten times as long after a failed one.
PAUSE_S = 1.0
#: The most bytes that should be copied under the lock.
_LAST_BYTES = 256 << 10
_COPY = 1 << 20


def is_due(log: Log) -> bool:
    """Whether the log should be compacted."""
    return log.step_bytes > limit(log)


def limit(log: Log) -> int:
    """The most bytes of steps that the log should have."""
    return max(SHORT_LOG, FACTOR * log.current.base)


class Compaction:
    """Writes one new generation, in short parts. Used by the writer thread."""

    def __init__(self, session: FileSession) -> None:
        self._session = session
        lock = os.path.join(session.directory, "store-compact")
        self._lock_fd = open_file(lock, os.O_RDWR, mode_of(session.directory))
        self._fd = -1
        self._path = ""
        self._begun = False
        self._written = 0
        self._number = 0

    def advance(self) -> bool:
        """Write the next piece; True if the compaction is finished or was abandoned."""
        session = self._session
        if not self._begun:
            return self._begin()
        if session.log is not self._log:
            self.abort()  # another process was first
            return True
        with session.mutex:
            piece = next(self._pieces, None)
            if piece:
                body = effects.encode(effects.LogStep(session.store.now_ms, 0, piece))
        if piece is None:
            return self._finish()
        if piece:
            self._number += 1
            self._write(frames.make(FrameKind.PIECE, self._number, body))
        return False

    def _begin(self) -> bool:
        session = self._session
        if not self._is_mine():
            self.abort()
            return True
        with session.mutex:
            self._log = log = session.log
            self._from, self._first = log.offset, log.number
            self._pieces = snapshot.pieces(session.store)
            place = session.store.last_place
        self._path = os.path.join(session.directory, f"{log.current.generation + 1}-{os.getpid()}.tmp")
        self._fd = open_file(self._path, os.O_RDWR | os.O_TRUNC, mode_of(session.directory))
        self._write(frames.make(FrameKind.HEAD, log.current.generation + 1, dr.head_body()))
        self._write(frames.make(FrameKind.PIECE, 0, effects.encode(effects.LogStep(0, place, []))))
        self._begun = True
        return False

    def _is_mine(self) -> bool:
        """Whether this process may compact: no other process does, or the other one seems to be frozen."""
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
        """Copy steps from the old log, up to offset ``upto``."""
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
                    self.abort()
                    return True
                session.log.cut_torn_tail()
                self._copy(session.log.offset)
                os.fsync(self._fd)
                self._swap(base)
        finally:
            session.release()
        self.abort()
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

    def abort(self) -> None:
        """Release the files and the lock, and remove a file that was not published. Also ends a success."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._path:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
            self._path = ""
        os.close(self._lock_fd)


class Upkeep:
    """Compacts the log of a session when it is due. Used by the writer thread."""

    def __init__(self, session: FileSession, wake: FileNotifier) -> None:
        self._session = session
        self._wake = wake
        self._compaction: Compaction | None = None
        self._after = 0.0

    @property
    def due(self) -> bool:
        """Whether a compaction should start or is in progress."""
        if self._compaction is not None:
            return True
        return is_due(self._session.log) and time.monotonic() >= self._after

    def advance(self) -> None:
        """Do one short part of a compaction, between calls. Logs errors and tries again later."""
        try:
            if self._compaction is None:
                self._compaction = Compaction(self._session)
            if self._compaction.advance():
                self._compaction = None
                self._after = time.monotonic() + PAUSE_S
        except Exception as exc:
            self.abort()
            self._after = time.monotonic() + 10 * PAUSE_S
            self._wake.warn("its log cannot be made shorter for now", exc)

    def abort(self) -> None:
        """Abandon a compaction that is in progress."""
        if self._compaction is not None:
            self._compaction.abort()
        self._compaction = None
