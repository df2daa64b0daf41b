"""A flush that failed, and what may be believed afterwards.

When ``fdatasync`` fails, the system may forget which pages it did not write: the next call succeeds although
they never reached the disk. So no later success counts for what an earlier flush should have covered. It is
written once more over itself, which makes the pages dirty again, and flushed; until that has worked, calls
are refused.
"""

from __future__ import annotations

import os

from windlass.errors import StorageError

_PIECE = 1 << 20

#: As ``os.fdatasync``, where the system has it.
data_sync = getattr(os, "fdatasync", os.fsync)


class FlushHealth:
    """Whether a flush of a file failed and was not made good. All who flush the file share it."""

    failed = False


def write_again(fd: int, start: int = 0) -> None:
    """Write a file over itself, from ``start`` to its end. No other process may write to it meanwhile."""
    end = os.fstat(fd).st_size
    while start < end:
        data = memoryview(os.pread(fd, min(_PIECE, end - start), start))
        if not data:
            return
        while data:
            done = os.pwrite(fd, data, start)
            data, start = data[done:], start + done


def not_flushed(exc: OSError, what: str) -> StorageError:
    """The error for a caller whose flush failed."""
    error = StorageError(
        f"{what} could not be flushed to the disk: {exc}. The outcome is unknown: repeat the call with the "
        "same id, it is answered when a new flush has worked. If that goes on, check the disk"
    )
    error.__cause__ = exc
    return error
