"""Jobs in lists and one by one."""

from __future__ import annotations

from typing import Any

import msgspec

from windlass.core.states import JobState
from windlass.dashboard.shapes.base import Shape


class LastError(Shape):
    """The last error of a job."""

    error_class: str
    message: str
    at_ms: int


class Item(Shape):
    """A job in a list."""

    queue: str
    id: str
    task: str
    state: JobState
    priority: int
    #: Number of the current, last or next run.
    attempt: int
    attempts: int
    max_attempts: int
    enqueued_ms: int
    ready_ms: int | None
    due_ms: int | None
    started_ms: int | None
    finished_ms: int | None
    #: Between start and end of the last run.
    duration_ms: int | None
    worker: str | None
    progress: Any
    error: LastError | None
    reason: str
    tags: list[str]
    group: str | None
    schedule: str | None
    #: A short text of the masked arguments.
    args_preview: str
    #: What can be done with it in its state: ``retry``, ``cancel``, ``delete``; ``retry_flow``: from
    #: here on, when another job of its flow comes after it.
    can: list[str]


class Items(Shape):
    """One page of jobs. ``next_cursor`` null: that was all.

    A page may hold fewer jobs than asked for and still have a next one. ``total`` comes from the counters;
    it is null when the filter says more than states and queues.
    """

    items: list[Item]
    next_cursor: str | None
    total: int | None
    #: Records that were looked at for this page.
    scanned: int = 0
    #: Records that there are in these queues and states: what a search looks at, at most, by all its pages.
    to_scan: int = 0
    #: The search has come to its end; else ``next_cursor`` continues it.
    done: bool = True


class ErrorEntry(Shape):
    """One failed attempt."""

    at_ms: int
    attempt: int
    error_class: str
    message: str
    traceback: str
    fingerprint: str


class EdgeEntry(Shape):
    """A job that this one waits for, or that waits for it."""

    queue: str
    id: str
    task: str
    #: Null: the record is gone.
    state: JobState | None
    #: What the waiting one knows: ``open``, ``done``, ``failed``, ``ignored``.
    status: str
    on_failure: str


class Detail(Item):
    """Everything about one job."""

    args: list[Any]
    kwargs: dict[str, Any]
    #: What ``queue.add`` was given.
    data: Any
    result: Any
    has_result: bool
    #: It completed, and its result is past its time.
    result_expired: bool
    result_until_ms: int | None
    errors: list[ErrorEntry]
    options: dict[str, Any]
    deliveries: int
    stalls: int
    manual_retries: int
    expires_ms: int | None
    lease_until_ms: int | None
    cancel_reason: str | None
    awaits: str | None
    signals: list[str]
    unique_key: str | None
    trace: dict[str, str]
    slot_ms: int | None
    #: What this job waits for, and who waits for it (at most 1,000 of each).
    children: list[EdgeEntry]
    parents: list[EdgeEntry]
    log_lines: int
    #: Some values are hidden by the server's mask.
    masked: bool


class QueueTimeEntry(Shape):
    """What an attempt waited for before it started."""

    scheduled_ms: int
    parked_ms: int
    blocked_ms: int
    in_line_ms: int


class AttemptEntry(Shape):
    """One run, or (``attempt`` 0) the end of a job without one."""

    #: The number of the run in the life of the job, which is never given twice: ``attempt`` begins again
    #: after a retry by hand. 0: only its error is left.
    run: int
    attempt: int
    delivery: int
    run_id: str
    worker: str | None
    ready_ms: int | None
    started_ms: int | None
    finished_ms: int | None
    wait_ms: int | None
    duration_ms: int | None
    outcome: str
    error_class: str | None
    message: str
    #: Null: it waited for nothing but a worker, or that is not known.
    queue_time: QueueTimeEntry | None


class EventEntry(Shape):
    """One entry of a queue's event log."""

    id: int
    at_ms: int
    type: str
    queue: str
    job_id: str
    task: str
    data: dict[str, str | int | None]


class Timeline(Shape):
    """What happened to a job, as far as its store still knows. ``complete`` false: logs were trimmed."""

    attempts: list[AttemptEntry]
    events: list[EventEntry]
    complete: bool


class LogLine(Shape):
    """One line; ``number`` counts from 0 among the lines that are kept."""

    number: int
    text: str
    #: When it was written; null: an earlier release kept no times.
    at_ms: int | None
    #: ``debug``, ``info``, ``warning`` or ``error``.
    level: str
    #: The attempt that wrote it (0: none ran yet), and the run: see ``AttemptEntry.run``.
    attempt: int
    run: int


class Logs(Shape):
    """Log lines. Ask again with ``start`` = ``next`` for those that come."""

    lines: list[LogLine]
    next: int
    total: int


class OutputChunk(Shape):
    """One piece of what a job put out (``job.stream``), as text; ``run`` as in ``AttemptEntry``."""

    index: int
    run: int
    #: The same as ``run``.
    delivery: int
    text: str


class Output(Shape):
    """What a job put out. Ask again with ``after`` = ``next`` for what comes."""

    chunks: list[OutputChunk]
    next: int
    #: The numbers of the newest and of the oldest chunk that is kept; 0: nothing yet.
    last: int
    oldest: int


class Cause(Shape):
    """One thing that keeps a job from running.

    ``kind``: ``queue_paused``, ``no_worker``, ``workers_quiet``, ``workers_busy``, ``behind``,
    ``queue_concurrency``, ``queue_rate``, ``queue_hold``, ``group_paused``, ``group_concurrency``,
    ``group_rate``, ``group_bucket``, ``group_ordered``, ``group_hold``, ``group``, ``dependencies``,
    ``scheduled``, ``retry_later``, ``signal``, ``running``, ``finished``.
    """

    kind: str
    #: One sentence for people.
    text: str
    #: What to do about it; may be empty.
    advice: str = ""
    #: When it ends by itself, if that is known.
    until_ms: int | None = None
    #: The limit that holds it back.
    limit: int | None = None
    #: How much of the limit is used.
    used: int | None = None
    #: Jobs that hold the limit, or that this one waits for (at most 20).
    jobs: list[EdgeEntry] = msgspec.field(default_factory=list)
    #: How many such jobs there are in all, when known.
    job_count: int | None = None


class Why(Shape):
    """Why a job is not running: the first cause decides, the others would come next."""

    queue: str
    id: str
    state: JobState
    causes: list[Cause]
    #: How many jobs would be claimed before it, plus one; null: it is not in line, or far back.
    place: int | None
    #: Waiting jobs that were looked at to find the place.
    waiting: int


class JobPage(Shape):
    """All that a page about one job shows. ``why`` is null when it has ended.

    Asked for with ``values=false``, the job's arguments and result are left out: they do not change while it
    runs.
    """

    job: Detail
    timeline: Timeline
    #: The newest lines.
    logs: Logs
    why: Why | None
