"""Jobs in lists, and single jobs."""

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
    #: Actions that its state allows: ``retry``, ``cancel``, ``delete``; ``retry_flow`` (from this job on) if
    #: another job of its flow depends on it.
    can: list[str]


class Items(Shape):
    """One page of jobs. ``next_cursor`` null: there are no more.

    A page may hold fewer jobs than requested and still have a next one. ``total`` comes from the counters. It
    is null if the filter contains more than states and queues.
    """

    items: list[Item]
    next_cursor: str | None
    total: int | None
    #: Records that were read for this page.
    scanned: int = 0
    #: Records in these queues and states: the most that all pages of a search read.
    to_scan: int = 0
    #: Whether the search has ended; if not, ``next_cursor`` continues it.
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
    #: The state of the edge, as the dependent stores it: ``open``, ``done``, ``failed``, ``ignored``.
    status: str
    on_failure: str


class Detail(Item):
    """Everything about one job."""

    args: list[Any]
    kwargs: dict[str, Any]
    #: The data given to ``queue.add``.
    data: Any
    result: Any
    has_result: bool
    #: It completed, and its result has expired.
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
    #: The jobs that this one waits for, and those that wait for it (at most 1,000 of each).
    children: list[EdgeEntry]
    parents: list[EdgeEntry]
    log_lines: int
    #: Whether the server's mask hides some values.
    masked: bool


class QueueTimeEntry(Shape):
    """What an attempt waited for before it started."""

    scheduled_ms: int
    parked_ms: int
    blocked_ms: int
    in_line_ms: int


class AttemptEntry(Shape):
    """One run, or (``attempt`` 0) the end of a job without a run."""

    #: The number of the run over the job's whole life, which is never reused: ``attempt`` starts again after
    #: a manual retry. 0: only its error is known.
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
    #: Null: it waited only for a worker, or this is not known.
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
    """The history of a job, as far as the store still has it. ``complete`` false: logs were trimmed."""

    attempts: list[AttemptEntry]
    events: list[EventEntry]
    complete: bool


class LogLine(Shape):
    """One line; ``number`` is its index (from 0) among the lines that are kept."""

    number: int
    text: str
    #: When it was written; null if an earlier release wrote it without a time.
    at_ms: int | None
    #: ``debug``, ``info``, ``warning`` or ``error``.
    level: str
    #: The attempt that wrote it (0: before the first), and the run: see ``AttemptEntry.run``.
    attempt: int
    run: int


class Logs(Shape):
    """Log lines. Request ``start`` = ``next`` for the following ones."""

    lines: list[LogLine]
    next: int
    total: int


class OutputChunk(Shape):
    """One chunk of a job's output (``job.stream``), as text; ``run`` as in ``AttemptEntry``."""

    index: int
    run: int
    #: The same as ``run``.
    delivery: int
    text: str


class Output(Shape):
    """The output of a job. Request ``after`` = ``next`` for the following chunks."""

    chunks: list[OutputChunk]
    next: int
    #: The numbers of the newest and the oldest chunk that is kept; 0: there is none.
    last: int
    oldest: int


class Cause(Shape):
    """One reason why a job is not running.

    ``kind``: ``queue_paused``, ``no_worker``, ``workers_quiet``, ``workers_busy``, ``behind``,
    ``queue_concurrency``, ``queue_rate``, ``queue_hold``, ``group_paused``, ``group_concurrency``,
    ``group_rate``, ``group_bucket``, ``group_ordered``, ``group_hold``, ``group``, ``dependencies``,
    ``scheduled``, ``retry_later``, ``unknown_task``, ``signal``, ``running``, ``finished``.
    """

    kind: str
    #: One sentence for users.
    text: str
    #: What to do about it; may be empty.
    advice: str = ""
    #: When it ends by itself, if known.
    until_ms: int | None = None
    #: The limit that holds the job back.
    limit: int | None = None
    #: How much of the limit is used.
    used: int | None = None
    #: Jobs that use up the limit, or that this one waits for (at most 20).
    jobs: list[EdgeEntry] = msgspec.field(default_factory=list)
    #: How many such jobs there are in total, if known.
    job_count: int | None = None


class Why(Shape):
    """Why a job is not running. The first cause decides; the others would be next."""

    queue: str
    id: str
    state: JobState
    causes: list[Cause]
    #: Its place in line, from 1; null if it is not in line, or far back.
    place: int | None
    #: Waiting jobs that were read to find the place.
    waiting: int


class JobPage(Shape):
    """Everything that the page of a job shows. ``why`` is null if the job has ended.

    With ``values=false``, the job's arguments and result are left out, since they do not change while it
    runs.
    """

    job: Detail
    timeline: Timeline
    #: The newest lines.
    logs: Logs
    why: Why | None
