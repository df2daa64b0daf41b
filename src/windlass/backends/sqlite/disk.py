"""When what was committed reaches the disk.

Our connections commit with ``synchronous=NORMAL``: the log is written whole and in order, and survives the
end of any process, but not yet a loss of power. What ``FULL`` adds is an ``fdatasync`` of the log behind each
commit. It is made here instead of inside ``COMMIT``: so other processes may write meanwhile.
"""

from __future__ import annotations

import errno
import os

from windlass.backend.local.flush import FlushHealth, data_sync, write_again
from windlass.backends.sqlite import wal

_sync = data_sync
_write_again = write_again


class LogLostError(OSError):
    """The system dropped data that it could not write."""


class Disk:
    """The log of one database. Used by one thread at a time, while a connection of this process is open."""

    def __init__(self, path: str, *, full: bool, health: FlushHealth | None = None) -> None:
        self._path = path
        self._fd = os.open(path + "-wal", os.O_RDWR | getattr(os, "O_CLOEXEC", 0)) if full else -1
        self._health = health or FlushHealth()

    @property
    def failed(self) -> bool:
        """Whether a flush failed, so that ``rewrite`` must come before the next."""
        return self._health.failed

    def sync(self) -> None:
        """Everything that was committed so far is on the disk; raises ``OSError``."""
        if self._fd < 0:
            return
        if self._health.failed:
            raise OSError(errno.EIO, "an earlier flush failed and was not made good yet")
        try:
            _sync(self._fd)
        except OSError:
            self._health.failed = True
            raise

    def rewrite(self) -> None:
        """After a flush that failed: write the log once more and flush it; raises ``OSError``.

        ``LogLostError`` when it does not hold any more what was committed: see ``take_back``. No other
        process may write to the database meanwhile.
        """
        if not wal.is_whole(self._fd, self._path):
            raise LogLostError(
                errno.EIO, "what was written since the last flush is lost and was taken back: repeat the call"
            )
        _write_again(self._fd)
        _sync(self._fd)
        self._health.failed = False

    def take_back(self) -> None:
        """Let SQLite forget, in every process, what the log does not hold any more."""
        wal.make_index_again(self._path)

    def close(self) -> None:
        """May be called again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
