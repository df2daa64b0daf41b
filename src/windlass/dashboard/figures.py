"""Figures over time, from the store's roll-ups or, if there is one, from the lake.

Requests roll up in small, bounded steps, so that a page never waits for a long backlog (workers do this duty
continuously). Past days are cached for a while.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from windlass.api.metrics import roll_up, stats_of
from windlass.backend import metric_requests as mq
from windlass.backend.concurrent_requests import gather_limited
from windlass.core import histogram
from windlass.core.rollups import BACKLOG, STEP_MS, Measure, MetricsRow, Step, merged, total
from windlass.dashboard.shapes.figures import Bucket, Day, Point

if TYPE_CHECKING:
    from windlass.dashboard.store_view import StoreView

DAY_MS = 86_400_000
MINUTE_MS = 60_000
#: Attempts that one request rolls up, at most.
_ROLL = 2_000
_ROLL_EVERY_MS = 1_000
#: How long past days are cached, and how many rows one answer reads at most.
_DAYS_KEPT_MS = 300_000
_ROWS = 50_000
#: Cached answers over more than a day, and how long they are valid.
_LONG_KEPT = 32
_LONG_KEPT_MS = 15_000

Rows = dict[str, list[MetricsRow]]


class Figures:
    """The figures of the queues that a store view shows."""

    def __init__(self, store_view: StoreView) -> None:
        self._view = store_view
        self._lock = asyncio.Lock()
        self._rolled_ms = -_ROLL_EVERY_MS
        self._long: dict[tuple[object, ...], tuple[float, Rows]] = {}
        self._days: dict[str, tuple[int, int, dict[int, tuple[int, int]]]] = {}

    @property
    def kept(self) -> bool:
        """Whether the store keeps roll-ups."""
        return self._view.store.capabilities.metrics

    async def roll(self) -> None:
        """Roll up a bounded number of attempts, at most once a second."""
        now_ms = self._view.app.clock.monotonic_ms()
        if self._lock.locked() or now_ms - self._rolled_ms < _ROLL_EVERY_MS:
            return
        async with self._lock:
            self._rolled_ms = int(now_ms)
            await roll_up(self._view.store, most=_ROLL)

    async def rows(
        self, queues: Iterable[str], step: Step, since_ms: int, until_ms: int, task: str | None = None
    ) -> Rows:
        """Roll-ups by queue, oldest first. Do not modify them. For long periods they may be 15 s old."""
        await self.roll()
        names = tuple(queues)
        if until_ms - since_ms <= DAY_MS:
            return await self._read_all(names, step, since_ms, until_ms, task)
        width_ms = STEP_MS[step]
        key = (names, step, since_ms // width_ms, until_ms // width_ms, task)
        now_ms = self._view.app.clock.monotonic_ms()
        known = self._long.get(key)
        if known is None or now_ms - known[0] > _LONG_KEPT_MS:
            while len(self._long) >= _LONG_KEPT:
                self._long.pop(next(iter(self._long)))
            found = await self._read_all(names, step, since_ms, until_ms, task)
            known = self._long[key] = (now_ms, found)
        return known[1]

    async def _read_all(
        self, queues: Iterable[str], step: Step, since_ms: int, until_ms: int, task: str | None = None
    ) -> Rows:
        names = list(queues)
        found = await gather_limited(self._read(name, step, since_ms, until_ms, task) for name in names)
        return dict(zip(names, found, strict=True))

    async def _read(
        self, queue: str, step: Step, since_ms: int, until_ms: int, task: str | None
    ) -> list[MetricsRow]:
        found: list[MetricsRow] = []
        cursor: str | None = None
        while len(found) < _ROWS:
            request = mq.ReadMetrics(
                queue=queue,
                step=step,
                task=task,
                since_ms=since_ms - since_ms % STEP_MS[step],
                until_ms=until_ms,
                cursor=cursor,
            )
            page = await self._view.store.execute(request)
            found += page.rows
            cursor = page.cursor
            if cursor is None:
                break
        return found

    async def days(self, queues: Iterable[str], count: int = 30) -> list[Day]:
        """Totals of the last ``count`` days (UTC), today last."""
        now_ms = self._view.now_ms()
        today_ms = now_ms - now_ms % DAY_MS
        first_ms = today_ms - (count - 1) * DAY_MS
        await self.roll()
        names = list(queues)
        found = await gather_limited(self._past_days(name, first_ms, today_ms) for name in names)
        today = await self._read_all(names, "hour", today_ms, today_ms + DAY_MS)
        found += [_by_day(rows) for rows in today.values()]
        sums: dict[int, tuple[int, int]] = {}
        for start_ms, (processed, failed) in (entry for one in found for entry in one.items()):
            before = sums.get(start_ms, (0, 0))
            sums[start_ms] = (before[0] + processed, before[1] + failed)
        starts = range(first_ms, today_ms + 1, DAY_MS)
        return [_day(start_ms, *sums.get(start_ms, (0, 0))) for start_ms in starts]

    async def _past_days(self, queue: str, first_ms: int, today_ms: int) -> dict[int, tuple[int, int]]:
        now_ms = int(self._view.app.clock.monotonic_ms())
        known = self._days.get(queue)
        if known is not None and known[0] == first_ms and now_ms - known[1] < _DAYS_KEPT_MS:
            return known[2]
        found = _by_day(await self._read(queue, "hour", first_ms, today_ms, None))
        self._days[queue] = (first_ms, now_ms, found)
        return found


def _by_day(rows: Iterable[MetricsRow]) -> dict[int, tuple[int, int]]:
    sums: dict[int, tuple[int, int]] = {}
    for row in rows:
        start_ms = row.start_ms - row.start_ms % DAY_MS
        processed, failed = sums.get(start_ms, (0, 0))
        failures = row.outcomes.get("failed", 0) + row.outcomes.get("retrying", 0)
        sums[start_ms] = (processed + row.runs, failed + failures)
    return sums


def _day(start_ms: int, processed: int, failed: int) -> Day:
    date = datetime.fromtimestamp(start_ms / 1000, UTC).date()
    return Day(date=date.isoformat(), processed=processed, failed=failed)


def point(row: MetricsRow) -> Point:
    """One window."""
    stats = stats_of(row, "")
    return Point(
        start_ms=row.start_ms,
        total=stats.total,
        completed=stats.completed,
        failed=stats.failed,
        retried=stats.retried,
        wait_p50_ms=stats.wait_p50_ms,
        wait_p95_ms=stats.wait_p95_ms,
        wait_p99_ms=stats.wait_p99_ms,
        duration_avg_ms=stats.average_ms,
        duration_p50_ms=stats.p50_ms,
        duration_p95_ms=stats.p95_ms,
        duration_p99_ms=stats.p99_ms,
    )


#: The lower bounds of the bars of a histogram.
_BARS = (0, *(base * 10**power for power in range(8) for base in (1, 2, 5)))


def bars(measure: Measure) -> list[Bucket]:
    """A histogram with bars at 1, 2, 5, 10, ... milliseconds, from the first bar that is not empty to the
    last."""
    counts = [0] * len(_BARS)
    for bucket, count in measure.buckets.items():
        counts[bisect_right(_BARS, histogram.value_of(bucket)) - 1] += count
    held = [number for number, count in enumerate(counts) if count]
    ends: list[int | None] = [*_BARS[1:], None]
    return [
        Bucket(from_ms=_BARS[number], to_ms=ends[number], count=counts[number])
        for number in (range(held[0], held[-1] + 1) if held else ())
    ]


def left_open(found: list[Point], step_ms: int, now_ms: int) -> list[Point]:
    """The same points, with windows that have not ended marked as such."""
    for one in found:
        one.complete = one.start_ms + step_ms <= now_ms
    return found


def points(rows: Iterable[MetricsRow], step_ms: int, since_ms: int, until_ms: int) -> list[Point]:
    """All windows from ``since_ms`` to ``until_ms``, including empty ones."""
    windows: dict[int, MetricsRow] = {}
    for row in rows:
        start_ms = row.start_ms - row.start_ms % step_ms
        windows.setdefault(start_ms, MetricsRow(start_ms=start_ms, task="")).merge(row)
    starts = range(since_ms - since_ms % step_ms, until_ms, step_ms)
    found = []
    for at in starts:
        row = windows.get(at) or MetricsRow(start_ms=at, task="")
        found.append(point(row))
        found[-1].waiting_avg = row.wait.sum_ms / step_ms
        if row.depth.count:
            found[-1].waiting_max, found[-1].oldest_max_ms = row.depth.max_ms, row.age.max_ms
    return found


def per_minute(rows: Iterable[MetricsRow], since_ms: int, until_ms: int) -> list[int]:
    """Runs per minute."""
    counts: dict[int, int] = {}
    for row in rows:
        counts[row.start_ms] = counts.get(row.start_ms, 0) + row.runs
    return [counts.get(at, 0) for at in range(since_ms - since_ms % MINUTE_MS, until_ms, MINUTE_MS)]


def by_task(rows: Iterable[MetricsRow]) -> dict[str, list[MetricsRow]]:
    """Rows of each task."""
    found: dict[str, list[MetricsRow]] = {}
    for row in rows:
        if row.task == BACKLOG:
            continue
        found.setdefault(row.task, []).append(row)
    return found


def together(rows: Iterable[MetricsRow], start_ms: int = 0) -> MetricsRow:
    """The sum of all rows."""
    one = total(rows)
    one.start_ms = start_ms
    return one


__all__ = [
    "DAY_MS",
    "Figures",
    "Rows",
    "bars",
    "by_task",
    "left_open",
    "merged",
    "per_minute",
    "point",
    "points",
    "together",
]
