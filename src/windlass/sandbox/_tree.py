"""The processes below this one, and how to end them all.

Nothing but the standard library may be used here: see ``_bootstrap``.
"""

import contextlib
import ctypes
import os
import signal
import sys
import time

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
#: Seconds in which processes that were killed are gone.
_PATIENCE = 1.0


def adopt_orphans() -> None:
    """Become the parent of what is left behind below this process, where the system knows such a thing."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with(parent: int, number: int) -> None:
    """Ask Linux for a signal when the parent ends; end now if it has ended already."""
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def below(pid: int | None = None) -> set[int]:
    """Every process that descends from ``pid`` (by default this one), where ``/proc`` has it."""
    found: set[int] = set()
    line = [pid or os.getpid()]
    while line:
        new = set(_children(line.pop())) - found
        found |= new
        line += new
    return found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):  # it has ended, or the system has no such folder
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
    return found


def sweep(spare: frozenset[int] = frozenset()) -> None:
    """Kill every process below this one but those of ``spare``, and reap them."""
    give_up = time.monotonic() + _PATIENCE
    while left := below() - spare:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        for pid in left:
            with contextlib.suppress(ChildProcessError):  # not our own child yet: it is when its parent ended
                os.waitpid(pid, os.WNOHANG)
        if time.monotonic() > give_up:
            return
        time.sleep(0.001)
