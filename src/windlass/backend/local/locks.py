"""A fair lock between the processes that write to one store.

SQLite's own lock is correct but not fair: a process that asks again at once gets it again, and those who wait
sleep up to a tenth of a second between their attempts. So writers first queue at a lock file, where the
kernel wakes the next one within microseconds.

Two files make it fair: a process that waits for ``-lock`` holds ``-turn`` meanwhile, so the one that has just
released cannot overtake. The turn is a courtesy, not a promise: when its holder is frozen, others pass it
by after a moment. It excludes no process: only ``-lock`` does (on SQLite, ``BEGIN IMMEDIATE``).
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from windlass.backend.local.modes import open_file

if TYPE_CHECKING:
    from types import ModuleType

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows: SQLite's own lock has to do
    fcntl = None

#: Longest wait for the turn, and how long it is left alone after a wait in vain.
_PATIENCE_S = 0.05
_PAUSE_S = 0.0002
_IGNORE_S = 1.0


class FairLock:
    """Not reentrant; used by one thread at a time."""

    def __init__(self, path: str, mode: int) -> None:
        """``mode``: that of its files, where they are not there yet."""
        self._path = path + "-lock"
        self._lock = _open(self._path, mode) if fcntl else -1
        self._turn = _open(path + "-turn", mode) if fcntl else -1
        self._ignore_turn_until = 0.0

    def acquire(self) -> None:
        """Wait for the lock, however long that takes."""
        if fcntl is None:
            return
        mine = self._take_turn(fcntl)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        finally:
            if mine:
                fcntl.flock(self._turn, fcntl.LOCK_UN)

    def try_acquire(self) -> bool:
        """Take the lock if that needs no waiting, and no other process waits."""
        if fcntl is None:
            return True
        flock, mine = fcntl.flock, fcntl.LOCK_EX | fcntl.LOCK_NB
        try:
            flock(self._turn, mine)
        except BlockingIOError:
            return False
        try:
            flock(self._lock, mine)
        except BlockingIOError:
            return False
        finally:
            flock(self._turn, fcntl.LOCK_UN)
        return True

    def release(self) -> None:
        if fcntl is not None:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    @property
    def stale(self) -> bool:
        """Whether the lock file is not the one that others see now: the directory was replaced."""
        return fcntl is not None and os.stat(self._path).st_ino != os.fstat(self._lock).st_ino

    def close(self) -> None:
        for fd in (self._lock, self._turn):
            if fd >= 0:
                os.close(fd)
        self._lock = self._turn = -1

    def _take_turn(self, fcntl: ModuleType) -> bool:
        give_up = 0.0
        while True:
            try:
                fcntl.flock(self._turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                now = time.monotonic()
                give_up = give_up or (0.0 if now < self._ignore_turn_until else now + _PATIENCE_S)
                if now >= give_up:
                    self._ignore_turn_until = now + _IGNORE_S
                    return False
                time.sleep(_PAUSE_S)


def _open(path: str, mode: int) -> int:
    """A descriptor to lock; reading is enough when the file belongs to another user."""
    try:
        return open_file(path, os.O_RDWR, mode)
    except PermissionError:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
