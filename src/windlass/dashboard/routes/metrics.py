"""Figures: the overview, tasks over time, totals, marks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from litestar import Request, get, post
from litestar.params import JSONBody, QueryParameter

from windlass.api.metrics import stats_of
from windlass.core.job import QueueInfo
from windlass.core.rollups import STEP_MS, MetricsRow, Step
from windlass.core.states import JobState
from windlass.dashboard import views
from windlass.dashboard.access import of_queues, of_store
from windlass.dashboard.audit import note
from windlass.dashboard.figures import (
    DAY_MS,
    MINUTE_MS,
    Figures,
    Rows,
    bars,
    by_task,
    left_open,
    per_minute,
    point,
    points,
    together,
)
from windlass.dashboard.injected import TheFigures, TheLake, TheStoreView
from windlass.dashboard.lake import LakeFigures
from windlass.dashboard.params import Instant, OptionalQueue, Queues, Text, versioned
from windlass.dashboard.problems import ApiError
from windlass.dashboard.shapes.figures import (
    Backlog,
    Day,
    Deploy,
    Mark,
    MarkBody,
    Metrics,
    Overview,
    Point,
    QueueEntry,
    Series,
    TaskEntry,
    TaskSeries,
    Usage,
)
from windlass.dashboard.shapes.wire import JobMetric, JobQueues
from windlass.dashboard.store_view import StoreView
from windlass.dashboard.totals import queue_totals

Period = Annotated[
    float,
    QueryParameter(ge=60, le=157_680_000, description="Seconds back from now; more than a day by hours."),
]
StepName = Annotated[Literal["minute", "hour", "day"], QueryParameter(description="Width of a window.")]
_STEPS = {"minute": MINUTE_MS, "hour": STEP_MS["hour"], "day": DAY_MS}
#: Maximum number of points and tasks in one answer.
_POINTS = 2_000
_TASKS = 200


async def stats(store_view: StoreView, figures: Figures) -> JobQueues:
    """The dashboard's figures."""
    infos, workers = await store_view.queues(), await store_view.workers()
    totals = await queue_totals(store_view)
    now_ms = store_view.now_ms()
    today = await _today(store_view, figures, [info.name for info in infos])
    counts = _counts([info.counts for info in infos])
    return JobQueues(
        processed_today=today.processed,
        failed_today=today.failed,
        queues={info.name: views.queue_view(info, now_ms, *totals.of(info.name)) for info in infos},
        scheduled_count=counts[JobState.SCHEDULED.value],
        retry_count=counts[JobState.RETRYING.value],
        dead_count=counts[JobState.FAILED.value],
        active_processes=len(workers),
        busy_workers=sum(info.busy for info in workers),
    )


async def _today(store_view: StoreView, figures: Figures, names: list[str]) -> Day:
    if not figures.kept:
        return Day(date="", processed=0, failed=0)
    return (await figures.days(names, 1))[-1]


def _counts(found: list[dict[str, int]]) -> dict[str, int]:
    return {state.value: sum(counts.get(state.value, 0) for counts in found) for state in JobState}


@get("/api/overview", tags=["figures"], access=of_queues())
async def get_overview(store_view: TheStoreView, figures: TheFigures) -> Overview:
    """Counts, the last hour by minute, and the last 30 days."""
    infos, workers = await store_view.queues(), await store_view.workers()
    names = [info.name for info in infos]
    totals = await queue_totals(store_view)
    now_ms = store_view.now_ms()
    since_ms = now_ms - 59 * MINUTE_MS
    days: list[Day] = []
    minutes: list[Point] = []
    hour: Point | None = None
    rows: Rows = {}
    if figures.kept:
        days = await figures.days(names)
        rows = await figures.rows(names, "minute", since_ms, now_ms + 1)
        everything = [row for found in rows.values() for row in found]
        minutes = left_open(points(everything, MINUTE_MS, since_ms, now_ms + 1), MINUTE_MS, now_ms)
        hour = point(together(everything, since_ms - since_ms % MINUTE_MS))
    processed, failed = totals.runs()
    counts = _counts([info.counts for info in infos])
    entries = []
    for info in infos:
        view = views.queue_view(info, now_ms, *totals.of(info.name))
        line = per_minute(rows[info.name], since_ms, now_ms + 1) if figures.kept else []
        entries.append(QueueEntry(**msgspec.structs.asdict(view), per_minute=line))
    return Overview(
        now_ms=now_ms,
        processed_today=days[-1].processed if days else 0,
        failed_today=days[-1].failed if days else 0,
        processed_total=processed,
        failed_total=failed,
        counts=counts,
        queues=entries,
        scheduled_count=counts[JobState.SCHEDULED.value],
        retry_count=counts[JobState.RETRYING.value],
        dead_count=counts[JobState.FAILED.value],
        active_processes=len(workers),
        busy_workers=sum(info.busy for info in workers),
        slots=sum(info.concurrency for info in workers),
        minutes=minutes,
        days=days,
        hour=hour,
    )


async def _names(store_view: StoreView, queues: list[str] | None) -> list[str]:
    return _chosen(store_view, queues, [] if queues else await store_view.queues())


def _chosen(store_view: StoreView, queues: list[str] | None, known: list[QueueInfo]) -> list[str]:
    """The queues that were named, or all known ones."""
    for name in queues or []:
        store_view.queue(name)
    return queues or [info.name for info in known]


@get("/api/job-metrics", tags=["figures"], access=of_queues())
async def list_metrics(
    store_view: TheStoreView,
    figures: TheFigures,
    queue: Queues = None,
    job_class: Text = None,
    period: Period = 3_600,
    from_ms: Instant = None,
    to_ms: Instant = None,
) -> list[JobMetric]:
    """Every task over a period: totals, mean and percentiles of its run times, success rate.

    ``period`` counts back from now; ``from_ms`` and ``to_ms`` set a span instead. Periods of up to a day
    are rounded to minutes, longer ones to hours.
    """
    now_ms = store_view.now_ms()
    until_ms = now_ms + 1 if to_ms is None else to_ms
    since_ms = max(until_ms - round(period * 1000), 0) if from_ms is None else from_ms
    step: Step = "minute" if until_ms - since_ms <= DAY_MS else "hour"
    rows = await figures.rows(await _names(store_view, queue), step, since_ms, until_ms, job_class or None)
    found = []
    for name in sorted(rows):
        for task, mine in sorted(by_task(rows[name]).items()):
            figure = stats_of(together(mine), task)
            found.append(
                JobMetric(
                    job_class=task,
                    queue=name,
                    total=figure.total,
                    success=figure.completed,
                    failed=figure.failed,
                    retried=figure.retried,
                    success_rate=figure.success_rate,
                    avg_ms=figure.average_ms,
                    max_ms=figure.max_ms,
                    p50_ms=figure.p50_ms,
                    p95_ms=figure.p95_ms,
                    p99_ms=figure.p99_ms,
                    wait_avg_ms=figure.wait_average_ms,
                    wait_p50_ms=figure.wait_p50_ms,
                    wait_p95_ms=figure.wait_p95_ms,
                    wait_p99_ms=figure.wait_p99_ms,
                    wait_max_ms=figure.wait_max_ms,
                    outcomes=figure.outcomes,
                )
            )
    return found


class _Ask(NamedTuple):
    """The subject and period of a series."""

    names: list[str]
    task: str | None
    step: str
    since_ms: int
    until_ms: int

    @property
    def fine(self) -> Step:
        """The step of the roll-ups that it is made of."""
        return "minute" if self.step == "minute" else "hour"

    async def rows(self, figures: Figures) -> Rows:
        return await figures.rows(self.names, self.fine, self.since_ms, self.until_ms, self.task)

    def points(self, rows: Iterable[MetricsRow], now_ms: int) -> list[Point]:
        """The windows of these roll-ups, with those that have not ended marked as such."""
        width_ms = _STEPS[self.step]
        return left_open(points(rows, width_ms, self.since_ms, self.until_ms), width_ms, now_ms)


def _span(store_view: StoreView, step: str, from_ms: int | None, to_ms: int | None) -> tuple[int, int]:
    until_ms = store_view.now_ms() + 1 if to_ms is None else to_ms
    width_ms = _STEPS[step]
    since_ms = max(until_ms - 60 * width_ms, 0) if from_ms is None else from_ms
    if since_ms > until_ms or (until_ms - since_ms) // width_ms >= _POINTS:
        raise ApiError(
            422,
            "config",
            f"from_ms to to_ms must be a span of at most {_POINTS} {step}s",
            "Take a wider step.",
        )
    return since_ms, until_ms


async def _series(store_view: StoreView, lake: LakeFigures | None, ask: _Ask, rows: Rows) -> Series:
    """The series from the lake if there is one, else from the roll-ups."""
    now_ms = store_view.now_ms()
    if lake is None:
        found = ask.points((row for mine in rows.values() for row in mine), now_ms)
        return Series(step=ask.step, source="store", points=found)
    found = await lake.points(ask.step, ask.names, ask.task, ask.since_ms, ask.until_ms)
    return Series(
        step=ask.step,
        source="lake",
        points=left_open(found, _STEPS[ask.step], now_ms),
        lake=await lake.state(store_view.app, ask.names, whole=store_view.sees_all),
    )


@get("/api/job-metrics/series", tags=["figures"], access=of_queues())
async def get_series(
    store_view: TheStoreView,
    figures: TheFigures,
    lake: TheLake,
    queue: Queues = None,
    job_class: Text = None,
    step: StepName = "minute",
    from_ms: Instant = None,
    to_ms: Instant = None,
) -> Series:
    """Figures over time for all or some queues and tasks. From the lake, if there is one."""
    span = _span(store_view, step, from_ms, to_ms)
    ask = _Ask(await _names(store_view, queue), job_class or None, step, *span)
    return await _series(store_view, lake, ask, {} if lake is not None else await ask.rows(figures))


@get("/api/v1/metrics", tags=["figures"], access=of_queues())
async def get_metrics(
    store_view: TheStoreView,
    figures: TheFigures,
    lake: TheLake,
    queue: Queues = None,
    task: Text = None,
    step: StepName = "minute",
    from_ms: Instant = None,
    to_ms: Instant = None,
) -> Metrics:
    """Figures over time for all or some queues and tasks: runs, waiting jobs, percentiles, histograms, the
    current backlog, marks, and the versions of the workers."""
    since_ms, until_ms = _span(store_view, step, from_ms, to_ms)
    known = await store_view.queues()
    ask = _Ask(_chosen(store_view, queue, known), task or None, step, since_ms, until_ms)
    rows = await ask.rows(figures)
    series = await _series(store_view, lake, ask, rows)
    whole = together(row for mine in rows.values() for row in mine)
    infos = [info for info in known if info.name in ask.names]
    oldest = [info.oldest_ready_ms for info in infos if info.oldest_ready_ms is not None]
    return Metrics(
        step=step,
        source=series.source,
        points=series.points,
        wait_histogram=bars(whole.wait),
        run_histogram=bars(whole.duration),
        backlog=Backlog(
            waiting=sum(info.counts.get(JobState.WAITING.value, 0) for info in infos),
            oldest_ms=min(oldest, default=None),
        ),
        marks=await list_marks.fn(store_view, since_ms),
        deploys=await _deploys(store_view),
        lake=series.lake,
    )


async def _deploys(store_view: StoreView) -> list[Deploy]:
    """Versions of workers that are alive or were lost in the last day, oldest first."""
    living, lost = await store_view.workers_seen()
    found: dict[str, Deploy] = {}
    for info in [*living, *lost]:
        one = found.setdefault(
            info.version, Deploy(version=info.version, first_ms=info.started_ms, workers=0)
        )
        one.first_ms = min(one.first_ms, info.started_ms)
        one.workers += 1
    return sorted(found.values(), key=lambda one: one.first_ms)


@get("/api/job-metrics/tasks", tags=["figures"], access=of_queues())
async def get_task_series(
    store_view: TheStoreView,
    figures: TheFigures,
    queue: Queues = None,
    step: StepName = "minute",
    from_ms: Instant = None,
    to_ms: Instant = None,
) -> list[TaskSeries]:
    """Each task over time, for small charts. At most 200 tasks, the busiest ones."""
    since_ms, until_ms = _span(store_view, step, from_ms, to_ms)
    if (until_ms - since_ms) // _STEPS[step] > 200:
        raise ApiError(
            422, "config", "for all tasks, the span must be at most 200 windows", "Take a wider step."
        )
    ask = _Ask(await _names(store_view, queue), None, step, since_ms, until_ms)
    rows, now_ms = await ask.rows(figures), store_view.now_ms()
    tasks = [(name, task, mine) for name in rows for task, mine in by_task(rows[name]).items()]
    tasks.sort(key=lambda entry: -sum(row.runs for row in entry[2]))
    return [
        TaskSeries(queue=name, task=task, points=ask.points(mine, now_ms))
        for name, task, mine in tasks[:_TASKS]
    ]


@get(versioned("/api/tasks"), tags=["figures"], access=of_queues())
async def list_tasks(store_view: TheStoreView, queue: OptionalQueue = None) -> list[TaskEntry]:
    """Tasks that the queues have seen, with their lifetime totals."""
    if queue is not None:
        store_view.queue(queue)
    found: dict[tuple[str, str], TaskEntry] = {}
    for row in await store_view.counters(queue):
        entry = found.setdefault((row.queue, row.task), TaskEntry(queue=row.queue, task=row.task, totals={}))
        entry.totals[row.outcome] = entry.totals.get(row.outcome, 0) + row.total
    return [found[key] for key in sorted(found)]


@get(versioned("/api/usage"), tags=["figures"], access=of_queues())
async def get_usage(store_view: TheStoreView) -> Usage:
    """Lifetime totals by queue and outcome."""
    totals = await queue_totals(store_view)
    return Usage(totals=totals.all(), queues=totals.queues)


@get(versioned("/api/marks"), tags=["figures"], access=of_queues())
async def list_marks(store_view: TheStoreView, from_ms: Instant = None) -> list[Mark]:
    """Marks on the timeline, oldest first."""
    marks = await store_view.app.marks((from_ms or 0) / 1000)
    return [Mark(id=mark.id, at_ms=mark.at_ms, label=mark.label) for mark in marks]


@post(versioned("/api/marks"), status_code=201, tags=["figures"], access=of_store("marks"))
async def add_mark(
    store_view: TheStoreView, request: Request[Any, Any, Any], data: JSONBody[MarkBody]
) -> Mark:
    """Add a mark at the current time, for example for a deploy."""
    mark = await store_view.app.mark(data.label)
    note(request, id=mark.id, label=mark.label)
    return Mark(id=mark.id, at_ms=mark.at_ms, label=mark.label)


HANDLERS = [
    get_overview,
    list_metrics,
    get_series,
    get_metrics,
    get_task_series,
    list_tasks,
    get_usage,
    list_marks,
    add_mark,
]
