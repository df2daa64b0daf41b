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
    """One window of time. Percentiles are null if nothing ran."""

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
    #: The average number of waiting jobs: the total waiting time of the jobs that ran in this window, divided
    #: by its width. Null: the lake does not keep it.
    waiting_avg: float | None = None
    #: The maximum number of waiting jobs, and the longest wait of one, from the samples of a worker in this
    #: window; unclaimed jobs count too. Null: nothing waited, or no worker ran.
    waiting_max: int | None = None
    oldest_max_ms: int | None = None
    #: Whether the window has ended. The last one usually has not.
    complete: bool = True


class QueueEntry(Queue):
    """A queue with its last hour."""

    #: Runs per minute of the last hour, oldest first; empty if the store keeps no roll-ups.
    per_minute: list[int]


class Overview(Shape):
    """The figures of the overview page."""

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
    #: The last 60 minutes of all queues together; the last 30 days. Empty if the store keeps no roll-ups.
    minutes: list[Point]
    days: list[Day]
    #: The sum of the last hour.
    hour: Point | None


class LakeSource(Shape):
    """A store that fills the lake."""

    source: str
    #: When its newest batch was read, and when its newest attempt in the lake ended (null: there is none).
    read_ms: int
    newest_ms: int | None


class LakeFailure(Shape):
    """The last failure of the pipeline."""

    source: str
    error: str
    at_ms: int


class LakeState(Shape):
    """The state of the lake in relation to this store."""

    #: The archiver name of the lake in stores that fill it; empty if the lake cannot be read.
    archiver: str
    sources: list[LakeSource]
    #: Attempts in the lake, and records that were trimmed before they were read. Null: the caller does not
    #: see all queues.
    attempts: int | None
    lost: int | None
    #: Null: a later batch succeeded.
    failure: LakeFailure | None
    #: Records of the visible queues that the lake lacks. Null: this store does not fill it.
    behind: int | None = None


class Series(Shape):
    """Figures over time. ``source`` is where they come from: ``store`` or ``lake``."""

    step: str
    source: str
    points: list[Point]
    #: For figures from the lake: how recent they are.
    lake: LakeState | None = None


class Bucket(Shape):
    """Runs that took or waited from ``from_ms`` to less than ``to_ms`` (null: no upper bound)."""

    from_ms: int
    to_ms: int | None
    count: int


class Deploy(Shape):
    """A version of the workers' program, and when its first known worker started."""

    version: str
    first_ms: int
    workers: int


class Backlog(Shape):
    """The jobs that wait now."""

    waiting: int
    #: Since when the longest waiting job has waited; null if none does.
    oldest_ms: int | None


class Metrics(Shape):
    """Figures over time, with everything that their page shows.

    ``source`` is ``lake`` if the points come from there. Histograms always come from the store, for the same
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
    #: For points from the lake: how recent they are.
    lake: LakeState | None = None


class TaskSeries(Shape):
    """One task over time."""

    queue: str
    task: str
    points: list[Point]


class Mark(Shape):
    """An event to show beside the figures, such as a deploy."""

    id: str
    at_ms: int
    label: str


class MarkBody(Body):
    """A new mark at the current time."""

    label: TaskText


class TaskEntry(Shape):
    """A task of a queue, with its lifetime totals by outcome."""

    queue: str
    task: str
    totals: dict[str, int]


class Usage(Shape):
    """Lifetime totals by outcome (including ``enqueued``): in total, and per queue."""

    totals: dict[str, int]
    queues: dict[str, dict[str, int]]
