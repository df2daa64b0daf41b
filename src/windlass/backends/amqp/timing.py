"""The coordinator's time.

It goes by its own clock until an entry of the log says when it counts. From then on time passes by what
entries say, and not by itself: nothing is due before one of them says that it is.
"""

from __future__ import annotations

from typing import Any

from windlass.backend import requests as rq
from windlass.core.clock import SteadyClock

#: How far the clock of an entry's writer may be ahead of ours, or behind it (which includes its way to us).
_AHEAD_MS, _LAG_MS = 1_000, 30_000
#: Longest wait for what is due: clocks are set.
_LONGEST_MS = 60_000


class OwnTime:
    """What our clock says."""

    def __init__(self) -> None:
        self._clock = SteadyClock()
        self._last_ms = 0

    def now_ms(self) -> int:
        """The time now."""
        return self._clock.now_ms()

    def of(self, at_ms: int, *, live: bool) -> int:
        """When an entry counts: the time that its writer noted, never going back. A later coordinator that
        reads the log must decide alike, or generations would differ; so our own clock counts only where
        theirs is wrong."""
        clock_ms = self._clock.now_ms()
        at_ms = min(at_ms, clock_ms + _AHEAD_MS)
        if live and at_ms < clock_ms - _LAG_MS:
            at_ms = clock_ms
        self._last_ms = max(self._last_ms, at_ms)
        return self._last_ms

    def alarm_s(self, due_in_ms: int | None) -> float | None:
        """How many seconds to wait for what is due; None when nothing is."""
        return None if due_in_ms is None else min(due_in_ms, _LONGEST_MS) / 1000


def says_time(request: rq.Request[Any]) -> bool:
    """Whether a request carries its time. This store asks here and nowhere else."""
    return request.now_ms is not None


class EntryTime:
    """What an entry said."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        """The time now."""
        return self._now_ms

    def of(self, at_ms: int, *, live: bool) -> int:
        """When an entry counts, whatever its writer's clock showed."""
        return self._now_ms

    def alarm_s(self, due_in_ms: int | None) -> float | None:
        """Time does not pass by itself."""
        return None
