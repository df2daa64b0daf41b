"""Named points that production code passes, for tests to wait on, count, or break.

``reach("worker.claimed")`` does nothing unless a test has installed a ``Probe``. Then the probe counts the
point and runs the action armed for it: raise an error (a lost reply), stop or kill the process, block.
Child processes get their actions from ``$WINDLASS_PROBES`` (see ``windlass.testing.faults``).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

Action = Callable[[str, dict[str, Any]], None]

_installed: Probe | None = None


class Probe:
    """Counts points and runs armed actions. Safe to use from several threads."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._actions: dict[str, list[Action]] = {}
        self._changed = threading.Condition()

    def arm(self, point: str, action: Action, *, times: int = 1) -> None:
        """Run ``action`` the next ``times`` times that ``point`` is reached."""
        with self._changed:
            self._actions.setdefault(point, []).extend([action] * times)

    def count(self, point: str) -> int:
        """How often ``point`` was reached."""
        with self._changed:
            return self._counts[point]

    def wait(self, point: str, *, count: int = 1, timeout: float = 10.0) -> None:
        """Block this thread until ``point`` was reached ``count`` times."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._counts[point] >= count, timeout):
                raise TimeoutError(f"{point} was reached {self._counts[point]} times, not {count}")

    def _reach(self, point: str, facts: dict[str, Any]) -> None:
        with self._changed:
            self._counts[point] += 1
            queue = self._actions.get(point)
            action = queue.pop(0) if queue else None
            self._changed.notify_all()
        if action is not None:
            action(point, facts)


def reach(point: str, **facts: Any) -> None:
    """Report that ``point`` is reached. Does nothing if no probe is installed."""
    if _installed is not None:
        _installed._reach(point, facts)


def install(probe: Probe | None) -> Probe | None:
    """Install ``probe`` for this process (``None`` removes it). Returns the previous one."""
    global _installed
    before, _installed = _installed, probe
    return before
