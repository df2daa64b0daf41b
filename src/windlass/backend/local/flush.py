"""Recover from a flush that failed.

When ``fdatasync`` fails, the kernel may drop the pages that it could not write: the next ``fdatasync``
succeeds although they never reached the disk. So a later success proves nothing about earlier writes. The
data must be written over itself, which makes the pages dirty again, and flushed. Until that succeeds, calls
are refused.
"""

from __future__ import annotations

import errno
import os

from windlass.errors import StorageError

_CHUNK = 1 << 20

#: ``os.fdatasync``, or ``os.fsync`` on systems without it.
data_sync = getattr(os, "fdatasync", os.fsync)


class FlushHealth:
    """Flushes a file, and knows whether a flush failed and was not repeated. Shared by all that flush it."""

    failed = False

    def flush(self, fd: int) -> None:
        """Flush everything that was written so far. Raises ``OSError``."""
        if self.failed:
            raise OSError(errno.EIO, "an earlier flush failed and has not succeeded since")
        try:
            data_sync(fd)
        except OSError:
            self.failed = True
            raise

    def flush_again(self, fd: int, start: int = 0) -> None:
        """After a failed flush: write the file again from ``start`` on, and flush it. Raises ``OSError``."""
        write_again(fd, start)
        data_sync(fd)
        self.failed = False


def write_again(fd: int, start: int = 0) -> None:
    """Write a file over itself from ``start`` to its end. The caller must exclude all other writers."""
    end = os.fstat(fd).st_size
    while start < end:
        data = memoryview(os.pread(fd, min(_CHUNK, end - start), start))
        if not data:
            return
        while data:
            done = os.pwrite(fd, data, start)
            data, start = data[done:], start + done


def not_flushed(exc: OSError, what: str) -> StorageError:
    """The error for a caller whose flush failed."""
    error = StorageError(
        f"{what} could not be flushed to the disk: {exc}. The outcome is unknown: repeat the call with the "
        "same id, it is answered when a new flush has worked. If that continues, check the disk"
    )
    error.__cause__ = exc
    return error
