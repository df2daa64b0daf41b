"""The log of one generation: read it, append to it, cut off an incomplete frame at its end.

Reading needs no lock, because incomplete frames are ignored. Appending and cutting need the store's lock.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Iterator

from windlass.backend.local.flush import FlushHealth
from windlass.backend.local.modes import mode_of, open_file
from windlass.backends.file import directory as dr
from windlass.backends.file import effects, errors, frames
from windlass.backends.file.frames import FrameKind
from windlass.backends.file.store import FileStore
from windlass.core.garbage import no_garbage
from windlass.core.probe import reach

log = logging.getLogger("windlass.file")

_WINDOW = 4 << 20


class Log:
    """An open generation, and how far it was read. Its files are closed by ``close`` or with the object."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._closers: list[weakref.finalize[[int], Log]] = []
        # Keep ``current`` open: then no other file can get its inode number, which ``is_current`` compares.
        current_fd = self._open(os.path.join(directory, dr.CURRENT), os.O_RDONLY)
        self._current_ino = os.fstat(current_fd).st_ino
        current = dr.read_current(directory, current_fd)
        assert current is not None
        self.current = current
        self.path = os.path.join(directory, dr.log_name(current.generation))
        self.fd = self._open(self.path, os.O_RDWR)
        self.health = FlushHealth()
        #: The end of what was read, and the number of the last step before it.
        self.offset = 0
        self.number = 0

    def _open(self, path: str, flags: int) -> int:
        fd = os.open(path, flags | os.O_CLOEXEC)
        self._closers.append(weakref.finalize(self, os.close, fd))
        return fd

    def close(self) -> None:
        """Close the files now. The log cannot be used any more."""
        for close in self._closers:
            close()

    @property
    def is_current(self) -> bool:
        """Whether this is still the current generation. Raises ``FileNotFoundError`` without a directory."""
        return os.stat(os.path.join(self._directory, dr.CURRENT)).st_ino == self._current_ino

    @property
    def grew(self) -> bool:
        """Whether the file has bytes that were not read."""
        return os.fstat(self.fd).st_size != self.offset

    @property
    def step_bytes(self) -> int:
        """The size of the steps after the snapshot."""
        return self.offset - self.current.base

    @property
    def counts(self) -> bool:
        """Whether the store includes this log: it is current, or a newer generation has copied its steps."""
        try:
            if os.fstat(self.fd).st_nlink and self.is_current:
                return True
            newer = dr.read_current(self._directory)
        except FileNotFoundError:
            return False
        if newer is None or newer.store != self.current.store:
            return False
        return newer.generation > self.current.generation

    # --- reading ------------------------------------------------------------------------------------

    @no_garbage()
    def load(self, store: FileStore) -> None:
        """Read the snapshot and all steps into an empty store."""
        seen_base = False
        for frame in self._frames():
            if frame.kind == FrameKind.PIECE:
                store.follow(effects.decode(frame.body))
            elif frame.kind == FrameKind.BASE:
                self.number = frame.number
                seen_base = True
            elif frame.kind == FrameKind.STEP:
                self._follow(frame, store)
            self.offset = frame.end
        if not seen_base:
            raise errors.DamagedLogError(self.path, self.offset, "its snapshot is not whole")

    def read(self, store: FileStore) -> None:
        """Apply the steps that were appended since the last read."""
        if not self.grew:
            return
        for frame in self._frames():
            self._follow(frame, store)
            self.offset = frame.end

    def skip_to(self, number: int) -> None:
        """Move behind step ``number``, which the store has applied from an earlier generation."""
        self.offset, self.number = self.current.base, self.current.number
        for frame in self._frames():
            if self.number == number:
                return
            self.offset, self.number = frame.end, frame.number
        if self.number != number:
            raise errors.DamagedLogError(self.path, self.offset, f"step {number} is missing")

    def _follow(self, frame: frames.Frame, store: FileStore) -> None:
        if frame.kind != FrameKind.STEP or frame.number != self.number + 1:
            found = f"a frame of kind {frame.kind} with number {frame.number}"
            what = f"step {self.number + 1} was expected, {found} is there"
            raise errors.DamagedLogError(self.path, frame.start, what)
        store.follow(effects.decode(frame.body))
        self.number = frame.number

    def _frames(self, start: int | None = None) -> Iterator[frames.Frame]:
        """Yield complete frames from ``offset`` (or ``start``) on, up to the first incomplete one."""
        offset, size = self.offset if start is None else start, _WINDOW
        while True:
            data = memoryview(os.pread(self.fd, size, offset))
            at = 0
            try:
                while (frame := frames.read(data, at, offset)) is not None:
                    yield frame
                    at = frame.end - offset
            except frames.Newer as exc:
                raise errors.NewerLogError(self.path, exc.format) from None
            if at == 0:
                need = frames.wanted(data, 0)
                if len(data) < size or not need or need <= size:
                    return
                size = need
            else:
                offset, size = offset + at, _WINDOW

    # --- flushing (needs no lock) ---------------------------------------------------------------------

    def flush(self) -> None:
        """Flush everything that was appended so far to the disk. Raises ``OSError``."""
        self.health.flush(self.fd)

    # --- writing (the lock must be held) --------------------------------------------------------------

    def append(self, body: bytes) -> None:
        """Append one step. If that fails, the file is as it was before."""
        data = frames.make(FrameKind.STEP, self.number + 1, body)
        reach("file.appending", fd=self.fd, data=data, offset=self.offset)
        try:
            dr.write_all(self.fd, data, self.offset)
        except BaseException:
            os.ftruncate(self.fd, self.offset)
            raise
        self.offset += len(data)
        self.number += 1

    def flush_again(self) -> None:
        """After a failed flush: write all steps again, and flush them. Raises ``OSError`` or
        ``DamagedLogError``."""
        whole = self.current.base
        for frame in self._frames(whole):
            whole = frame.end
        if whole < self.offset:
            what = "a flush failed, and what was written there did not reach the disk"
            raise errors.DamagedLogError(self.path, whole, what)
        self.health.flush_again(self.fd, self.current.base)

    def cut_torn_tail(self) -> None:
        """Cut off an incomplete step that a process left when it died. All complete steps must be read.

        If a complete frame follows, the file is damaged: raises ``DamagedLogError``, so no process writes.
        """
        size = os.fstat(self.fd).st_size
        if size < self.offset:
            raise errors.DamagedLogError(self.path, size, f"it was {self.offset} bytes long before")
        if size == self.offset:
            return
        tail = memoryview(os.pread(self.fd, size - self.offset, self.offset))
        for at in frames.search(tail, 1):
            follow = f"whole steps follow at byte {self.offset + at}"
            what = f"step {self.number + 1} does not match its checksum, and {follow}"
            raise errors.DamagedLogError(self.path, self.offset, what)
        self._keep_torn(tail)
        os.ftruncate(self.fd, self.offset)
        log.warning(
            "%s: cut off %d bytes at byte %d that a process left unfinished; they were never acknowledged "
            "(kept in %s)",
            self.path,
            len(tail),
            self.offset,
            self.torn_path,
        )

    @property
    def torn_path(self) -> str:
        return os.path.join(self._directory, "torn")

    def _keep_torn(self, tail: memoryview) -> None:
        """Keep a copy of the bytes that are cut off, for an operator."""
        try:
            flags = os.O_WRONLY | os.O_TRUNC
            with os.fdopen(open_file(self.torn_path, flags, mode_of(self._directory)), "wb") as file:
                file.write(tail)
        except OSError:
            pass  # the disk may be full: the warning in the log is enough
