"""When what was committed reaches the disk.

Our connections commit with ``synchronous=NORMAL``: the log is written whole and in order, and survives the
end of any process, but not yet a loss of power. What ``FULL`` adds is an ``fdatasync`` of the log behind each
commit. It is made here instead of inside ``COMMIT``: so other processes may write meanwhile, and a worker may
begin the jobs that it has claimed.
"""

from __future__ import annotations

import errno
import logging
import os
from typing import TYPE_CHECKING

from windlass.backend.local.flush import FlushHealth, data_sync, write_again
from windlass.backends.sqlite import wal

if TYPE_CHECKING:
    from windlass.speedups.flush_behind import SyncBehind

log = logging.getLogger("windlass.sqlite")

_sync = data_sync
_write_again = write_again


class LogLostError(OSError):
    """The system let go of what it could not write."""


class Disk:
    """The log of one database. Used by one thread at a time, while a connection of this process is open."""

    def __init__(self, path: str, *, full: bool, health: FlushHealth | None = None) -> None:
        self._path = path
        self._fd = os.open(path + "-wal", os.O_RDWR | getattr(os, "O_CLOEXEC", 0)) if full else -1
        self._health = health or FlushHealth()
        self._behind: SyncBehind | None = None
        self._looked = False

    @property
    def failed(self) -> bool:
        """Whether a flush failed, so that ``rewrite`` must come before the next."""
        return self._health.failed

    def sync(self) -> None:
        """Everything that was committed so far is on the disk; raises ``OSError``."""
        if self._fd < 0:
            return
        self._refuse_if_failed()
        try:
            self._wait()
            _sync(self._fd)
        except OSError:
            self._health.failed = True
            raise

    def sync_behind(self) -> None:
        """Begin the same, and wait only for the one before; raises ``OSError`` if that failed."""
        if self._fd < 0:
            return
        self._refuse_if_failed()
        if not self._looked:
            from windlass.speedups.flush_behind import sync_behind  # only workers need it

            self._behind, self._looked = sync_behind(self._fd), True
        try:
            self._wait()
            if self._behind is None or not self._behind.begin():
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
        """What was begun is waited for. May be called again."""
        if self._fd >= 0:
            try:
                self._wait()
            except OSError as exc:  # those that it was for have been answered: jobs that may run again
                log.error("the last flush before closing failed: %s", exc)
            finally:
                os.close(self._fd)
                self._fd = -1

    def _wait(self) -> None:
        if self._behind is not None:
            self._behind.wait()

    def _refuse_if_failed(self) -> None:
        if self._health.failed:
            raise OSError(errno.EIO, "an earlier flush failed and was not made good yet")
