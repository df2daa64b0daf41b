"""Finds and kills the processes below this one.

This file may only use the standard library; see ``_bootstrap``.
"""

import contextlib
import ctypes
import os
import signal
import sys
import time

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
#: Seconds to wait for killed processes to end.
_SWEEP_TIMEOUT = 1.0


def adopt_orphans() -> None:
    """Become the parent of orphaned processes below this one, where the system supports it (Linux)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with(parent: int, number: int) -> None:
    """Ask Linux for a signal when the parent ends. Exit now if it has ended already."""
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def below(pid: int | None = None) -> set[int]:
    """Return all descendants of ``pid`` (by default this process), where ``/proc`` shows them."""
    found: set[int] = set()
    line = [pid or os.getpid()]
    while line:
        new = set(_children(line.pop())) - found
        found |= new
        line += new
    return found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):  # it has ended, or the system has no /proc
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
    return found


def sweep(spare: frozenset[int] = frozenset()) -> None:
    """Kill and reap every process below this one, except those in ``spare``."""
    give_up = time.monotonic() + _SWEEP_TIMEOUT
    while left := below() - spare:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        for pid in left:
            with contextlib.suppress(
                ChildProcessError
            ):  # not our child yet; it will be when its parent has ended
                os.waitpid(pid, os.WNOHANG)
        if time.monotonic() > give_up:
            return
        time.sleep(0.001)
