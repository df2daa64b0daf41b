"""Metrics of a queue: per minute and hour, per task, per day.

The store keeps roll-ups of its history. Reading metrics first rolls up new records, so that they include
every attempt that has ended, whether or not a worker runs that duty.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, overload

from windlass.backend import metric_requests as mq
from windlass.backend import requests as rq
from windlass.core.histogram import PERCENTILES
from windlass.core.ids import is_text
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
#: The maximum number of points in one answer.
_MAX_POINTS = 100_000
#: The maximum number of queues that one step samples.
_SAMPLED = 1_000


# --- rolling up -----------------------------------------------------------------------------------


async def roll_up(store: Store, queue: str | None = None, *, most: int = 1_000_000) -> int:
    """Update the roll-ups of one queue or of all. Returns the number of new records.

    Safe on any number of nodes at once. Reads about ``most`` records at most.
    """
    done = 0
    for cursor in await store.execute(mq.MetricsProgress(queue=queue)):
        done += await _roll_up_queue(store, cursor, most - done)
    reach("metrics.rolled_up", records=done)
    return done


async def _roll_up_queue(store: Store, cursor: MetricsCursor, most: int) -> int:
    at, done = cursor.at, 0
    while at < cursor.newest and done < most:
        after = max(at, cursor.oldest - 1)  # older records were trimmed before the first roll-up
        request = rq.ReadHistory(queue=cursor.queue, after=after, limit=RECORDS_PER_STEP)
        try:
            page = await store.execute(request)
        except HistoryTrimmedError:
            break  # trimmed just now: the next call sees the new start of the log
        if not page.records:
            break
        rows = rows_of(page.records)
        if not await store.execute(mq.AddMetrics(queue=cursor.queue, after=at, upto=page.last, rows=rows)):
            break  # another process rolls up
        at = page.last
        done += len(page.records)
    return done


async def sample_backlog(store: Store, after: str = "") -> str:
    """Record how many jobs wait and for how long, for the next queues with waiting jobs.

    Returns the queue ``after`` which the next step continues. A sample that conflicts with a roll-up of
    another process is dropped; the next one follows soon.
    """
    infos = [info for info in await store.execute(rq.ListQueues()) if info.counts.get("waiting")]
    if not infos:
        return ""
    rolled = {one.queue: one.at for one in await store.execute(mq.MetricsProgress())}
    now_ms = store.clock.now_ms()
    ahead = [info for info in infos if info.name > after] or infos
    for info in ahead[:_SAMPLED]:
        at = rolled.get(info.name, 0)
        rows = [backlog_of(info, now_ms)]
        await store.execute(mq.AddMetrics(queue=info.name, after=at, upto=at, rows=rows))
    return ahead[_SAMPLED - 1].name if len(ahead) > _SAMPLED else ""


# --- figures --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Point:
    """One window of time: its start, and the count in it."""

    start: datetime
    count: int


@dataclass(frozen=True, slots=True)
class Metrics:
    """How many attempts of a queue ended in ``outcome``: in total, and per window of ``step``, including
    empty ones.
    """

    outcome: str
    step: Step
    #: Over the whole life of the queue, also of windows that are no longer kept.
    count: int
    data: list[Point]


@dataclass(frozen=True, slots=True)
class TaskStats:
    """Figures of a task, or of a whole queue, over some time. Times are milliseconds; None without runs."""

    name: str
    #: Attempts that ran to their end: completed + failed + retried.
    total: int
    completed: int
    failed: int
    retried: int
    #: The share of completed runs, 0 to 1.
    success_rate: float | None
    average_ms: float | None
    max_ms: float | None
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    #: The time that jobs waited before they were started.
    wait_average_ms: float | None
    wait_p50_ms: float | None
    wait_p95_ms: float | None
    wait_p99_ms: float | None
    wait_max_ms: float | None
    #: Attempts by outcome, including those that did not run to their end.
    outcomes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DayTotals:
    """One day. ``processed`` counts runs, ``failed`` the runs that failed, finally or to be retried."""

    day: date
    processed: int
    failed: int


class QueueMetrics:
    """Reads the metrics of one queue."""

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
        """Return roll-ups per window and task, oldest first; of the last 24 hours by default."""
        since_ms, until_ms = self._range(step, start, end)
        _check_task(task)
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
        """Return the counts of one outcome over time."""
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
        """Return figures of the last ``period``, in whole minutes (beyond a day, in whole hours)."""
        _check_task(task)
        period_ms = seconds_to_ms(period, "period", minimum=60)
        step: Step = "minute" if period_ms <= _DAY_MS else "hour"
        now_ms = self._store.clock.now_ms()
        await roll_up(self._store, self._queue)
        since_ms = now_ms - period_ms
        since_ms -= since_ms % STEP_MS[step]
        rows = [row async for row in self._read(step, task, since_ms, now_ms + 1)]
        return stats_of(total(rows), task or self._queue)

    async def days(self, days: int, timezone: str) -> list[DayTotals]:
        """Return totals per day, oldest first. The last one is today so far."""
        if isinstance(days, bool) or not isinstance(days, int) or not 1 <= days <= 1_830:
            raise ConfigError("days", "a whole number from 1 to 1830", days)
        local = zone(timezone)
        today = _instant(self._store.clock.now_ms()).astimezone(local).date()
        first = today - timedelta(days=days - 1)
        since = datetime(first.year, first.month, first.day, tzinfo=local)
        until = datetime(today.year, today.month, today.day, tzinfo=local) + timedelta(days=1)
        await roll_up(self._store, self._queue)
        # Hours are enough if days begin on a full hour. In other time zones, minutes are needed.
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
        # A window that began before ``since_ms`` contains part of the range.
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
    """Return the figures of one merged row."""
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


def _check_task(task: object) -> None:
    """Raise unless ``task`` is None or a text. Jobs whose record cannot be read have the task ""."""
    if task is not None and not is_text(task):
        raise ConfigError("task", "the name of a task, or None", task)


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
    """The part of ``Queue`` that reads metrics."""

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
        """Return how often attempts ended in ``outcome`` ("completed", "failed", ...), per minute or hour.

        The default range is the last 24 hours. Without an outcome, returns lifetime counters per task and
        outcome (including ``enqueued``), which only grow.
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
        """Return roll-ups per window and task: counts by outcome, and histograms of wait and run times."""
        return await QueueMetrics(self.store, self.name).rows(step, task=task, start=start, end=end)

    async def stats_for_task(self, name: str | None, period: Duration = 3_600) -> TaskStats:
        """Return totals, averages and percentiles of a task (None: of the queue) over the last ``period``."""
        return await QueueMetrics(self.store, self.name).stats(name, period)

    async def get_daily_totals(self, days: int = 30, *, timezone: str = "UTC") -> list[DayTotals]:
        """Return runs and failures per day, oldest first. The last entry is today so far."""
        return await QueueMetrics(self.store, self.name).days(days, timezone)

    async def get_latency(self) -> float:
        """Return for how many seconds the oldest ready job has been waiting; 0 when none waits."""
        for info in await self.store.execute(rq.ListQueues()):
            if info.name == self.name and info.oldest_ready_ms is not None:
                return max(self.store.clock.now_ms() - info.oldest_ready_ms, 0) / 1000
        return 0.0

    async def get_utilisation(self) -> float | None:
        """Return the share of busy slots of the workers of this queue, 0 to 1; None without a worker."""
        workers = await self.get_workers()
        slots = sum(worker.concurrency for worker in workers)
        return sum(worker.busy for worker in workers) / slots if slots else None
