"""Figures as users see them: per minute and hour, per task, per day; always up to date when asked.

The store keeps roll-ups of its history. The first caller that asks rolls up what is new, so the figures hold
every attempt that has ended, whether or not a worker does that duty now.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, overload

from windlass.backend import metric_requests as mq
from windlass.backend import requests as rq
from windlass.core.histogram import PERCENTILES
from windlass.core.job import AttemptOutcome, CounterRow, WorkerInfo
from windlass.core.option_values import Duration, instant_to_ms, seconds_to_ms
from windlass.core.probe import reach
from windlass.core.rollups import (
    BACKLOG,
    RECORDS_PER_STEP,
    STEP_MS,
    Measure,
    MetricsCursor,
    MetricsRow,
    Step,
    backlog_of,
    merged,
    rows_of,
    total,
)
from windlass.core.schedule_rules import zone
from windlass.errors import ConfigError, HistoryTrimmedError

if TYPE_CHECKING:
    from windlass.backend.store import Store

_DAY_MS = 86_400_000
#: Points that one answer holds at most.
_MAX_POINTS = 100_000
#: Queues of which one step samples the backlog.
_SAMPLED = 1_000


# --- rolling up -----------------------------------------------------------------------------------


async def roll_up(store: Store, queue: str | None = None, *, most: int = 1_000_000) -> int:
    """Bring the roll-ups of one queue or of all up to date; returns how many records were new.

    Safe on any number of nodes at once. At most about ``most`` records are read.
    """
    done = 0
    for cursor in await store.execute(mq.MetricsProgress(queue=queue)):
        done += await _roll_up_queue(store, cursor, most - done)
    reach("metrics.rolled_up", records=done)
    return done


async def _roll_up_queue(store: Store, cursor: MetricsCursor, most: int) -> int:
    at, done = cursor.at, 0
    while at < cursor.newest and done < most:
        after = max(at, cursor.oldest - 1)  # the rest was trimmed before the first roll-up
        request = rq.ReadHistory(queue=cursor.queue, after=after, limit=RECORDS_PER_STEP)
        try:
            page = await store.execute(request)
        except HistoryTrimmedError:
            break  # trimmed this very moment: the next round sees where the log begins now
        if not page.records:
            break
        rows = rows_of(page.records)
        if not await store.execute(mq.AddMetrics(queue=cursor.queue, after=at, upto=page.last, rows=rows)):
            break  # another process rolls up
        at = page.last
        done += len(page.records)
    return done


async def sample_backlog(store: Store) -> int:
    """Note how many jobs wait now, and for how long, in the roll-ups of each queue where some do; returns of
    how many queues.

    A sample that meets another process's roll-up is left out: the next one follows soon.
    """
    infos = [info for info in await store.execute(rq.ListQueues()) if info.counts.get("waiting")]
    if not infos:
        return 0
    rolled = {one.queue: one.at for one in await store.execute(mq.MetricsProgress())}
    now_ms, done = store.clock.now_ms(), 0
    for info in infos[:_SAMPLED]:
        at = rolled.get(info.name, 0)
        rows = [backlog_of(info, now_ms)]
        done += await store.execute(mq.AddMetrics(queue=info.name, after=at, upto=at, rows=rows))
    return done


# --- figures --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Point:
    """One window of time: its beginning, and how much happened in it."""

    start: datetime
    count: int


@dataclass(frozen=True, slots=True)
class Metrics:
    """How many attempts of a queue ended in ``outcome``: ever, and per window of ``step``, gaps included."""

    outcome: str
    step: Step
    #: Over the whole life of the queue, kept windows or not.
    count: int
    data: list[Point]


@dataclass(frozen=True, slots=True)
class TaskStats:
    """A task (or a whole queue) over some time. Times are milliseconds; None when there was no run."""

    name: str
    #: Attempts that ran to their end: completed + failed + retried.
    total: int
    completed: int
    failed: int
    retried: int
    #: Completed runs among all runs, 0 to 1.
    success_rate: float | None
    average_ms: float | None
    max_ms: float | None
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    #: The same of the time that jobs waited before they were started.
    wait_average_ms: float | None
    wait_p50_ms: float | None
    wait_p95_ms: float | None
    wait_p99_ms: float | None
    wait_max_ms: float | None
    #: Attempts by outcome, those that did not run to their end among them.
    outcomes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DayTotals:
    """One day: ``processed`` counts runs, ``failed`` those that failed (for good or to be retried)."""

    day: date
    processed: int
    failed: int


class QueueMetrics:
    """The figures of one queue."""

    def __init__(self, store: Store, queue: str) -> None:
        self._store = store
        self._queue = queue

    async def rows(
        self,
        step: Step = "minute",
        *,
        task: str | None = None,
        start: datetime | float | None = None,
        end: datetime | float | None = None,
    ) -> list[MetricsRow]:
        """Roll-ups per window and task, oldest first; by default of the last 24 hours."""
        since_ms, until_ms = self._range(step, start, end)
        await roll_up(self._store, self._queue)
        return [row async for row in self._read(step, task, since_ms, until_ms)]

    async def of_outcome(
        self,
        outcome: str,
        step: Step,
        *,
        task: str | None = None,
        start: datetime | float | None = None,
        end: datetime | float | None = None,
    ) -> Metrics:
        """One outcome over time."""
        if outcome not in tuple(AttemptOutcome):
            raise ConfigError("outcome", f"one of {', '.join(AttemptOutcome)}", outcome)
        since_ms, until_ms = self._range(step, start, end)
        counts: dict[int, int] = {}
        for row in await self.rows(step, task=task, start=since_ms / 1000, end=until_ms / 1000):
            counts[row.start_ms] = counts.get(row.start_ms, 0) + row.outcomes.get(outcome, 0)
        starts = range(since_ms - since_ms % STEP_MS[step], until_ms, STEP_MS[step])
        counters = await self._store.execute(rq.ReadCounters(queue=self._queue))
        ever = sum(c.total for c in counters if c.outcome == outcome and task in (None, c.task))
        return Metrics(outcome, step, ever, [Point(_instant(at), counts.get(at, 0)) for at in starts])

    async def stats(self, task: str | None, period: Duration) -> TaskStats:
        """Figures of the last ``period``, by whole minutes (by whole hours beyond a day)."""
        period_ms = seconds_to_ms(period, "period", minimum=60)
        step: Step = "minute" if period_ms <= _DAY_MS else "hour"
        now_ms = self._store.clock.now_ms()
        await roll_up(self._store, self._queue)
        since_ms = now_ms - period_ms
        since_ms -= since_ms % STEP_MS[step]
        rows = [row async for row in self._read(step, task, since_ms, now_ms + 1)]
        return stats_of(total(rows), task or self._queue)

    async def days(self, days: int, timezone: str) -> list[DayTotals]:
        """Totals per day, oldest first, today (so far) last."""
        if isinstance(days, bool) or not isinstance(days, int) or not 1 <= days <= 1_830:
            raise ConfigError("days", "a whole number from 1 to 1830", days)
        local = zone(timezone)
        today = _instant(self._store.clock.now_ms()).astimezone(local).date()
        first = today - timedelta(days=days - 1)
        since = datetime(first.year, first.month, first.day, tzinfo=local)
        until = datetime(today.year, today.month, today.day, tzinfo=local) + timedelta(days=1)
        await roll_up(self._store, self._queue)
        # Hours are enough where days begin with one; elsewhere the minutes that are kept are needed.
        step: Step = "hour" if since.astimezone(UTC).minute == 0 else "minute"
        by_day: dict[date, MetricsRow] = {}
        async for row in self._read(step, None, _ms(since), _ms(until)):
            day = _instant(row.start_ms).astimezone(local).date()
            by_day.setdefault(day, MetricsRow(start_ms=0, task="")).merge(row)
        return [_day_totals(first + timedelta(days=n), by_day) for n in range(days)]

    def _range(
        self, step: Step, start: datetime | float | None, end: datetime | float | None
    ) -> tuple[int, int]:
        if step not in STEP_MS:
            raise ConfigError("step", f"one of {', '.join(STEP_MS)}", step)
        until_ms = self._store.clock.now_ms() + 1 if end is None else instant_to_ms(end, "end")
        since_ms = until_ms - _DAY_MS if start is None else instant_to_ms(start, "start")
        if not 0 <= until_ms - since_ms <= _MAX_POINTS * STEP_MS[step]:
            raise ConfigError("start", f"before end, and at most {_MAX_POINTS:,} {step}s before it", start)
        return since_ms, until_ms

    async def _read(
        self, step: Step, task: str | None, since_ms: int, until_ms: int
    ) -> AsyncIterator[MetricsRow]:
        cursor: str | None = None
        # A window that began before ``since_ms`` holds some of what is asked for.
        since_ms -= since_ms % STEP_MS[step]
        while True:
            page = await self._store.execute(
                mq.ReadMetrics(
                    queue=self._queue,
                    step=step,
                    task=task,
                    since_ms=since_ms,
                    until_ms=until_ms,
                    cursor=cursor,
                )
            )
            for row in page.rows:
                if row.task != BACKLOG:
                    yield row
            cursor = page.cursor
            if cursor is None:
                return


def stats_of(row: MetricsRow, name: str) -> TaskStats:
    """The figures of one merged row."""
    completed = row.outcomes.get("completed", 0)
    run, wait = _figures(row.duration), _figures(row.wait)
    return TaskStats(
        name=name,
        total=row.runs,
        completed=completed,
        failed=row.outcomes.get("failed", 0),
        retried=row.outcomes.get("retrying", 0),
        success_rate=completed / row.runs if row.runs else None,
        average_ms=run["average"],
        max_ms=run["max"],
        p50_ms=run["p50"],
        p95_ms=run["p95"],
        p99_ms=run["p99"],
        wait_average_ms=wait["average"],
        wait_p50_ms=wait["p50"],
        wait_p95_ms=wait["p95"],
        wait_p99_ms=wait["p99"],
        wait_max_ms=wait["max"],
        outcomes=dict(row.outcomes),
    )


def _figures(measure: Measure) -> dict[str, float | None]:
    return {
        "average": measure.average_ms,
        "max": float(measure.max_ms) if measure.count else None,
        **{name: measure.percentile_ms(per_mille) for name, per_mille in PERCENTILES.items()},
    }


def _day_totals(day: date, by_day: dict[date, MetricsRow]) -> DayTotals:
    row = by_day.get(day)
    if row is None:
        return DayTotals(day, 0, 0)
    return DayTotals(day, row.runs, row.outcomes.get("failed", 0) + row.outcomes.get("retrying", 0))


def _instant(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def _ms(instant: datetime) -> int:
    return round(instant.timestamp() * 1000)


__all__ = [
    "DayTotals",
    "Metrics",
    "Point",
    "QueueMetrics",
    "TaskStats",
    "merged",
    "roll_up",
    "stats_of",
]


# --- the queue's own verbs --------------------------------------------------------------------------


class MetricsVerbs:
    """The part of ``Queue`` that shows figures."""

    if TYPE_CHECKING:
        name: str

        @property
        def store(self) -> Store: ...

        async def get_workers(self) -> list[WorkerInfo]: ...

    @overload
    async def get_metrics(self) -> list[CounterRow]: ...
    @overload
    async def get_metrics(
        self,
        outcome: AttemptOutcome | str,
        *,
        step: Step = "minute",
        task: str | None = None,
        start: datetime | float | None = None,
        end: datetime | float | None = None,
    ) -> Metrics: ...
    async def get_metrics(
        self,
        outcome: AttemptOutcome | str | None = None,
        *,
        step: Step = "minute",
        task: str | None = None,
        start: datetime | float | None = None,
        end: datetime | float | None = None,
    ) -> list[CounterRow] | Metrics:
        """How often attempts ended in ``outcome`` ("completed", "failed", ...), per minute or hour.

        By default of the last 24 hours. Without an outcome: lifetime counters per task and outcome
        (``enqueued`` among them), which only grow.
        """
        if outcome is None:
            return await self.store.execute(rq.ReadCounters(queue=self.name))
        return await QueueMetrics(self.store, self.name).of_outcome(
            outcome, step, task=task, start=start, end=end
        )

    async def get_rollups(
        self,
        step: Step = "minute",
        *,
        task: str | None = None,
        start: datetime | float | None = None,
        end: datetime | float | None = None,
    ) -> list[MetricsRow]:
        """What happened per window and task: counts by outcome, waits and run times with histograms."""
        return await QueueMetrics(self.store, self.name).rows(step, task=task, start=start, end=end)

    async def stats_for_task(self, name: str | None, period: Duration = 3_600) -> TaskStats:
        """A task (None: all of the queue) over the last ``period``: totals, average, percentiles, rate."""
        return await QueueMetrics(self.store, self.name).stats(name, period)

    async def get_daily_totals(self, days: int = 30, *, timezone: str = "UTC") -> list[DayTotals]:
        """Runs and failures per day, oldest first; the last entry is today so far."""
        return await QueueMetrics(self.store, self.name).days(days, timezone)

    async def get_latency(self) -> float:
        """How many seconds the longest waiting job of the queue waits for a worker; 0 when none waits."""
        for info in await self.store.execute(rq.ListQueues()):
            if info.name == self.name and info.oldest_ready_ms is not None:
                return max(self.store.clock.now_ms() - info.oldest_ready_ms, 0) / 1000
        return 0.0

    async def get_utilisation(self) -> float | None:
        """Busy slots among all slots of the workers that serve this queue, 0 to 1; None without a worker."""
        workers = await self.get_workers()
        slots = sum(worker.concurrency for worker in workers)
        return sum(worker.busy for worker in workers) / slots if slots else None
