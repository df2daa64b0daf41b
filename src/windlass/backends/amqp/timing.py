"""The coordinator's time.

The coordinator uses its own clock until it reads a request that carries a time. From then on
only such requests move the time, and no timer runs.
"""

from __future__ import annotations

import logging
from typing import Any, Protocol

from windlass.backend import requests as rq
from windlass.core.clock import SteadyClock

log = logging.getLogger("windlass.amqp")

#: How far the clock of a writer may be ahead of ours, or an entry behind it (which includes its delivery).
_AHEAD_MS, _LAG_MS = 1_000, 30_000
#: If the time of the last entry is this far ahead of our clock, the clock of another coordinator was wrong.
_WRONG_MS = 60_000
#: Longest wait for the next due job, because clocks may be adjusted.
_LONGEST_MS = 60_000
#: How many entries are remembered whose time was not that of their writers.
_REMEMBERED = 5_000


class MarkedTimes(Protocol):
    """The times of a mark (see ``counts.Counts``)."""

    @property
    def time_ms(self) -> int | None:
        """The time of the last entry up to the mark; None in marks of earlier releases."""

    @property
    def corrected(self) -> dict[int, int]:
        """Entries that did not count at the time of their writers, by offset."""


class OwnTime:
    """The time of our own clock."""

    def __init__(self) -> None:
        self._clock = SteadyClock()
        #: The time at which the last entry counted.
        self.last_ms = 0
        #: The times of the newest entries that did not count at the time of their writers, by offset.
        self.corrected: dict[int, int] = {}
        self._warned = False

    def now_ms(self) -> int:
        """The time now."""
        return self._clock.now_ms()

    def of(self, offset: int, at_ms: int, *, live: bool) -> int:
        """The time at which an entry counts: the time of its writer, but never earlier than the last one,
        unless that was clearly wrong.

        Every coordinator that reads the log must make the same decisions, or generations would differ. So our
        own clock counts only where that of the writer is clearly wrong, and the mark says for which entries.
        """
        clock_ms = self._clock.now_ms()
        right_ms = min(at_ms, clock_ms + _AHEAD_MS)
        if live and right_ms < clock_ms - _LAG_MS:
            right_ms = clock_ms
        goes_back = live and self.last_ms > clock_ms + _WRONG_MS  # not while we repeat what another one did
        wrong_ms = self.last_ms if goes_back else at_ms
        self.last_ms = right_ms if goes_back else max(self.last_ms, right_ms)
        if goes_back or right_ms != at_ms:
            self._warn(abs(wrong_ms - clock_ms) / 1_000)
            self._correct(offset, self.last_ms)
        return self.last_ms

    def replayed(self, offset: int, at_ms: int, mark: MarkedTimes) -> int:
        """The time at which an entry counted for the coordinator that wrote the mark.

        Our clock may differ from that one's, so it has no say, unless the mark is of an earlier release.
        """
        if mark.time_ms is None:
            return self.of(offset, at_ms, live=False)
        right_ms = mark.corrected.get(offset)
        if right_ms is None:
            at_ms = min(at_ms, mark.time_ms) if _may_be_forgotten(offset, mark) else at_ms
            self.last_ms = max(self.last_ms, at_ms)
        else:
            self._correct(offset, right_ms)
            self.last_ms = right_ms
        return self.last_ms

    def resume(self, mark: MarkedTimes) -> None:
        """Continue from the time of a mark, if it has one."""
        if mark.time_ms is not None:
            self.last_ms = mark.time_ms

    def _warn(self, apart_s: float) -> None:
        if not self._warned:
            self._warned = True
            log.warning("the time of an entry differs from our clock by %.1f s: check all clocks", apart_s)

    def _correct(self, offset: int, right_ms: int) -> None:
        self.corrected[offset] = right_ms
        if len(self.corrected) > _REMEMBERED:
            del self.corrected[next(iter(self.corrected))]

    def alarm_s(self, due_in_ms: int | None) -> float | None:
        """How many seconds to wait for the next due job; None when there is none."""
        return None if due_in_ms is None else min(due_in_ms, _LONGEST_MS) / 1000


def _may_be_forgotten(offset: int, mark: MarkedTimes) -> bool:
    """Whether an entry may have counted at another time than that of its writer, although the mark does not
    say so. Its time must not be later than the mark then, or the time would stand still after it."""
    return len(mark.corrected) >= _REMEMBERED and offset < next(iter(mark.corrected))


def is_later(offset: int, at_ms: int, mark: MarkedTimes) -> bool:
    """Whether an entry was written after a mark, by the clock of its writer."""
    return mark.time_ms is not None and at_ms > mark.time_ms and offset not in mark.corrected


def says_time(request: rq.Request[Any]) -> bool:
    """Whether a request carries its time. This backend checks that only here."""
    return request.now_ms is not None


class EntryTime:
    """The time of the last request that carried one."""

    #: A mark has no use for them: requests carry the time.
    last_ms = None

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self.corrected: dict[int, int] = {}

    def now_ms(self) -> int:
        """The time now."""
        return self._now_ms

    def of(self, offset: int, at_ms: int, *, live: bool) -> int:
        """The time at which an entry counts, regardless of the clock of its writer."""
        return self._now_ms

    def replayed(self, offset: int, at_ms: int, mark: MarkedTimes) -> int:
        """The same, for an entry that was carried out before."""
        return self._now_ms

    def resume(self, mark: MarkedTimes) -> None:
        """Do nothing: the last request has set the time."""

    def alarm_s(self, due_in_ms: int | None) -> float | None:
        """None: time does not pass by itself, so there is nothing to wait for."""
        return None
