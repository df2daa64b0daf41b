"""The JSON shapes of the job-queue routes: times in float seconds, ``jid``, ``class``, ``retry_count``.

Fields beyond the wire format are additions that other readers ignore.
"""

from __future__ import annotations

from typing import Any

import msgspec


class WireJob(msgspec.Struct, kw_only=True, rename={"class_": "class"}):
    """A job in the wire format, which programs in any language read."""

    jid: str
    class_: str
    args: list[Any]
    kwargs: dict[str, Any]
    queue: str
    #: Retries after the first run.
    retry: int
    retry_count: int
    enqueued_at: float
    tags: list[str]
    priority: int
    state: str


class ScheduledJob(msgspec.Struct, kw_only=True):
    """A job that is due later, for its first run."""

    type: str = "scheduled_job"
    jid: str
    scheduled_at: float
    job: WireJob


class RetryJob(msgspec.Struct, kw_only=True):
    """A job that failed and is due again."""

    type: str = "retry"
    jid: str
    retry_at: float
    retry_count: int
    failed_at: float | None
    error_message: str
    error_class: str
    job: WireJob


class DeadJob(msgspec.Struct, kw_only=True):
    """A job that failed for good."""

    type: str = "dead_job"
    jid: str
    died_at: float
    retry_count: int
    error_message: str
    error_class: str
    backtrace: str
    job: WireJob
    #: Why there is no further attempt: ``attempts``, ``unrecoverable``, ``stalled``, ``expired``, ...
    reason: str


class WorkerJob(msgspec.Struct, kw_only=True):
    """A job that a worker runs now."""

    queue: str
    id: str
    task: str
    started_ms: int | None
    progress: Any


class WorkerStatus(msgspec.Struct, kw_only=True):
    """The content of a worker's last heartbeat."""

    hostname: str
    pid: int
    tag: str
    queues: list[str]
    version: str
    started_ms: int
    beat_ms: int
    #: Running jobs, and the maximum number of them.
    busy: int
    concurrency: int
    rss_kb: int
    #: Recent use of one processor, in percent: 200 means two processors.
    cpu_percent: float
    #: Takes no new jobs: paused or stopping.
    quiet: bool
    leader: bool
    #: The last command that it received: ``quiet``, ``resume``, ``stop``, ``dump``.
    command: str | None


class Process(WorkerStatus, kw_only=True):
    """A worker process as its last heartbeat described it."""

    type: str = "heartbeat"
    identity: str
    beat: float
    #: Running jobs, at most 100; those of hidden queues are left out.
    running: list[WorkerJob]


class Queue(msgspec.Struct, kw_only=True):
    """The state of a queue."""

    name: str
    paused: bool
    #: Jobs that wait for a worker.
    size: int
    #: Jobs in each state.
    counts: dict[str, int]
    #: How long the longest waiting job has waited for a worker.
    latency_ms: int
    #: Lifetime totals of runs.
    processed: int
    failed: int


class JobQueues(msgspec.Struct, kw_only=True):
    """The dashboard's figures."""

    processed_today: int
    failed_today: int
    queues: dict[str, Queue]
    scheduled_count: int
    retry_count: int
    dead_count: int
    active_processes: int
    busy_workers: int


class JobMetric(msgspec.Struct, kw_only=True):
    """The runs of a task over a period. Times are milliseconds; null if there was no run."""

    job_class: str
    queue: str
    total: int
    success: int
    failed: int
    retried: int
    success_rate: float | None
    avg_ms: float | None
    max_ms: float | None
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    wait_avg_ms: float | None
    wait_p50_ms: float | None
    wait_p95_ms: float | None
    wait_p99_ms: float | None
    wait_max_ms: float | None
    outcomes: dict[str, int]
