"""A fair lock between the processes that write to one store.

SQLite's own lock is correct but not fair: a process that asks again at once gets it again, and the others
sleep up to a tenth of a second between attempts. So writers first wait for a lock file, where the kernel
wakes the next one within microseconds.

Two files make it fair. A process that waits for ``-lock`` holds ``-turn`` meanwhile, so the process that has
just released ``-lock`` cannot overtake it. The turn is only an optimisation: if its holder is frozen, others
skip the turn after a short wait. Mutual exclusion comes from ``-lock`` alone (on SQLite from
``BEGIN IMMEDIATE``).
"""

from __future__ import annotations

import os
import time
from types import ModuleType

from windlass.backend.local.modes import open_file

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows: only SQLite's own lock is used
    fcntl = None

#: Longest wait for the turn, the pause between attempts, and how long the turn is skipped after a timeout.
_TURN_TIMEOUT_S = 0.05
_PAUSE_S = 0.0002
_IGNORE_S = 1.0


class FairLock:
    """A lock between processes. Not reentrant; used by one thread at a time."""

    def __init__(self, path: str, mode: int) -> None:
        """``mode`` is the mode of the lock files if they must be created."""
        self._path = path + "-lock"
        self._lock = _open(self._path, mode) if fcntl else -1
        self._turn = _open(path + "-turn", mode) if fcntl else -1
        self._ignore_turn_until = 0.0

    def acquire(self) -> None:
        """Take the lock. Waits without a timeout."""
        if fcntl is None:
            return
        mine = self._take_turn(fcntl)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        finally:
            if mine:
                fcntl.flock(self._turn, fcntl.LOCK_UN)

    def try_acquire(self) -> bool:
        """Take the lock if it is free and no other process waits for it; returns whether it was taken."""
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
        """Whether another file is at the path of the lock now, because the directory was replaced."""
        return fcntl is not None and os.stat(self._path).st_ino != os.fstat(self._lock).st_ino

    def close(self) -> None:
        for fd in (self._lock, self._turn):
            if fd >= 0:
                os.close(fd)
        self._lock = self._turn = -1

    def _take_turn(self, fcntl: ModuleType) -> bool:
        """Wait a short time for the turn; returns whether it was taken."""
        give_up = 0.0
        while True:
            try:
                fcntl.flock(self._turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                now = time.monotonic()
                give_up = give_up or (0.0 if now < self._ignore_turn_until else now + _TURN_TIMEOUT_S)
                if now >= give_up:
                    self._ignore_turn_until = now + _IGNORE_S
                    return False
                time.sleep(_PAUSE_S)


def _open(path: str, mode: int) -> int:
    """Open a lock file. ``flock`` also works on a file of another user that is only readable."""
    try:
        return open_file(path, os.O_RDWR, mode)
    except PermissionError:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
