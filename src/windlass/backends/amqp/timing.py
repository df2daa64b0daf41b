"""The coordinator's time.

The coordinator uses its own clock until it reads a request that carries a time. From then on
only such requests move the time, and no timer runs.
"""

from __future__ import annotations

from typing import Any

from windlass.backend import requests as rq
from windlass.core.clock import SteadyClock

#: How far the clock of a writer may be ahead of ours, or an entry behind it (which includes its delivery).
_AHEAD_MS, _LAG_MS = 1_000, 30_000
#: Longest wait for the next due job, because clocks may be adjusted.
_LONGEST_MS = 60_000


class OwnTime:
    """The time of our own clock."""

    def __init__(self) -> None:
        self._clock = SteadyClock()
        self._last_ms = 0

    def now_ms(self) -> int:
        """The time now."""
        return self._clock.now_ms()

    def of(self, at_ms: int, *, live: bool) -> int:
        """The time at which an entry counts: the time of its writer, but never earlier than the last one.

        Every coordinator that reads the log must make the same decisions, or generations would differ. So our
        own clock counts only where that of the writer is clearly wrong.
        """
        clock_ms = self._clock.now_ms()
        at_ms = min(at_ms, clock_ms + _AHEAD_MS)
        if live and at_ms < clock_ms - _LAG_MS:
            at_ms = clock_ms
        self._last_ms = max(self._last_ms, at_ms)
        return self._last_ms

    def alarm_s(self, due_in_ms: int | None) -> float | None:
        """How many seconds to wait for the next due job; None when there is none."""
        return None if due_in_ms is None else min(due_in_ms, _LONGEST_MS) / 1000


def says_time(request: rq.Request[Any]) -> bool:
    """Whether a request carries its time. This backend checks that only here."""
    return request.now_ms is not None


class EntryTime:
    """The time of the last request that carried one."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        """The time now."""
        return self._now_ms

    def of(self, at_ms: int, *, live: bool) -> int:
        """The time at which an entry counts, regardless of the clock of its writer."""
        return self._now_ms

    def alarm_s(self, due_in_ms: int | None) -> float | None:
        """None: time does not pass by itself, so there is nothing to wait for."""
        return None
