"""Counts, rates and times."""

from __future__ import annotations

from windlass.dashboard.shapes.base import Body, Shape, TaskText
from windlass.dashboard.shapes.wire import Queue


class Day(Shape):
    """One day (UTC)."""

    date: str
    processed: int
    failed: int


class Point(Shape):
    """One window of time. Percentiles are null where nothing ran."""

    start_ms: int
    total: int
    completed: int
    failed: int
    retried: int
    wait_p50_ms: float | None
    wait_p95_ms: float | None
    wait_p99_ms: float | None
    duration_avg_ms: float | None
    duration_p50_ms: float | None
    duration_p95_ms: float | None
    duration_p99_ms: float | None
    #: How many jobs waited at a time, on average, of those that ran in this window: all their waiting
    #: together, over its width. Null: the lake does not keep it.
    waiting_avg: float | None = None
    #: The most jobs that waited at once, and the longest that one had waited, of the samples that a worker
    #: took in this window; jobs that are not claimed count. Null: nothing waited, or no worker ran.
    waiting_max: int | None = None
    oldest_max_ms: int | None = None
    #: The window is over. The last one usually is not: it holds less than it will.
    complete: bool = True


class QueueEntry(Queue):
    """A queue with its last hour."""

    #: Runs per minute of the last hour, oldest first; empty where the store keeps no roll-ups.
    per_minute: list[int]


class Overview(Shape):
    """The dashboard at a glance."""

    now_ms: int
    processed_today: int
    failed_today: int
    #: Lifetime totals of runs.
    processed_total: int
    failed_total: int
    counts: dict[str, int]
    queues: list[QueueEntry]
    scheduled_count: int
    retry_count: int
    dead_count: int
    active_processes: int
    busy_workers: int
    slots: int
    #: The last 60 minutes, all queues together; the last 30 days. Empty where the store keeps no roll-ups.
    minutes: list[Point]
    days: list[Day]
    #: The last hour as one.
    hour: Point | None


class LakeSource(Shape):
    """A store that fills the lake."""

    source: str
    #: When its newest batch was read, and when its newest attempt in the lake ended (null: none is there).
    read_ms: int
    newest_ms: int | None


class LakeFailure(Shape):
    """What stopped the last run of the pipeline."""

    source: str
    error: str
    at_ms: int


class LakeState(Shape):
    """How the lake stands beside this store."""

    #: The name under which a store that fills it knows it; empty: the lake cannot be read.
    archiver: str
    sources: list[LakeSource]
    #: Attempts in the lake, and records that were trimmed before they were read. Null: the caller does not
    #: see all queues.
    attempts: int | None
    lost: int | None
    #: Null: a batch went through since.
    failure: LakeFailure | None
    #: Records of the queues shown here that the lake lacks. Null: this store does not fill it.
    behind: int | None = None


class Series(Shape):
    """Figures over time. ``source`` says where they come from: ``store`` or ``lake``."""

    step: str
    source: str
    points: list[Point]
    #: When they come from the lake: how fresh that is.
    lake: LakeState | None = None


class Bucket(Shape):
    """Runs that took or waited from ``from_ms`` to less than ``to_ms`` (null: without end)."""

    from_ms: int
    to_ms: int | None
    count: int


class Deploy(Shape):
    """A version of the workers' program, and when the first worker of it started that is still known."""

    version: str
    first_ms: int
    workers: int


class Backlog(Shape):
    """What waits now."""

    waiting: int
    #: Since when the longest waiting job waits; null: none does.
    oldest_ms: int | None


class Metrics(Shape):
    """Figures over time, with all that a page about them draws.

    ``source`` is ``lake`` when the points come from there; histograms are always the store's, over the same
    time, as far as it keeps roll-ups.
    """

    step: str
    source: str
    points: list[Point]
    wait_histogram: list[Bucket]
    run_histogram: list[Bucket]
    backlog: Backlog
    marks: list[Mark]
    deploys: list[Deploy]
    #: When the points come from the lake: how fresh that is.
    lake: LakeState | None = None


class TaskSeries(Shape):
    """One task over time."""

    queue: str
    task: str
    points: list[Point]


class Mark(Shape):
    """Something people want to see beside the figures: a deploy, say."""

    id: str
    at_ms: int
    label: str


class MarkBody(Body):
    """A mark to put now."""

    label: TaskText


class TaskEntry(Shape):
    """A task that a queue has seen, with its lifetime totals by outcome."""

    queue: str
    task: str
    totals: dict[str, int]


class Usage(Shape):
    """Lifetime totals: of all, and per queue, by outcome (``enqueued`` among them)."""

    totals: dict[str, int]
    queues: dict[str, dict[str, int]]
