"""When what was committed reaches the disk.

Our connections commit with ``synchronous=NORMAL``: the log is written whole and in order, and survives the
end of any process, but not yet a loss of power. What ``FULL`` adds is an ``fdatasync`` of the log behind each
commit. It is made here instead of inside ``COMMIT``: so other processes may write meanwhile, and a worker may
begin the jobs that it has claimed.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from windlass.backends.sqlite.aio import SyncBehind

_sync = getattr(os, "fdatasync", os.fsync)


class Disk:
    """The log of one database. Used by one thread at a time, while a connection of this process is open."""

    def __init__(self, path: str, *, full: bool) -> None:
        self._fd = os.open(path + "-wal", os.O_RDWR | getattr(os, "O_CLOEXEC", 0)) if full else -1
        self._behind: SyncBehind | None = None
        self._looked = False

    def sync(self) -> None:
        """Everything that was committed so far is on the disk; raises ``OSError``."""
        if self._fd >= 0:
            self._wait()
            _sync(self._fd)

    def sync_behind(self) -> None:
        """Begin the same, and wait only for the one before; raises ``OSError`` if that failed."""
        if self._fd < 0:
            return
        if not self._looked:
            from windlass.backends.sqlite.aio import sync_behind  # only workers need it

            self._behind, self._looked = sync_behind(self._fd), True
        self._wait()
        if self._behind is None or not self._behind.begin():
            _sync(self._fd)

    def close(self) -> None:
        """What was begun is waited for. May be called again."""
        if self._fd >= 0:
            try:
                self._wait()
            finally:
                os.close(self._fd)
                self._fd = -1

    def _wait(self) -> None:
        if self._behind is not None:
            self._behind.wait()
