"""Flushes commits to the disk.

Connections commit with ``synchronous=NORMAL``. A commit then survives the end of any process, but not a loss
of power. ``FULL`` would add an ``fdatasync`` of the log to each ``COMMIT``. ``Disk.sync`` does this after the
commit instead, so that other processes can write during the flush.
"""

from __future__ import annotations

import errno
import os

from windlass.backend.local.flush import FlushHealth
from windlass.backends.sqlite import wal


class LogLostError(OSError):
    """The operating system dropped data that it could not write."""


class Disk:
    """The log of one database. One thread uses it, while a connection of this process is open."""

    def __init__(self, path: str, *, full: bool, health: FlushHealth | None = None) -> None:
        self._path = path
        self._fd = os.open(path + "-wal", os.O_RDWR | getattr(os, "O_CLOEXEC", 0)) if full else -1
        self._health = health or FlushHealth()

    @property
    def failed(self) -> bool:
        """Whether a flush failed. ``rewrite`` must succeed before the next ``sync``."""
        return self._health.failed

    def sync(self) -> None:
        """Flush everything that was committed so far; raises ``OSError``."""
        if self._fd >= 0:
            self._health.flush(self._fd)

    def rewrite(self) -> None:
        """Write the log again after a failed flush, and flush it; raises ``OSError``.

        Raises ``LogLostError`` if commits are missing from the log; then call ``take_back``. No other
        process may write to the database meanwhile.
        """
        if not wal.is_whole(self._fd, self._path):
            raise LogLostError(
                errno.EIO, "what was written since the last flush is lost and was taken back: repeat the call"
            )
        self._health.flush_again(self._fd)

    def take_back(self) -> None:
        """Make SQLite, in every process, drop the commits that are missing from the log."""
        wal.make_index_again(self._path)

    def close(self) -> None:
        """Close the file. May be called more than once."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
