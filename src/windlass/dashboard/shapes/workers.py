"""Workers: those that live, and those that fell silent."""

from __future__ import annotations

from typing import Any

from windlass.core.states import JobState
from windlass.dashboard.shapes.base import Shape


class WorkerJob(Shape):
    """What a worker runs now."""

    queue: str
    id: str
    task: str
    started_ms: int | None
    progress: Any


class WorkerFacts(Shape):
    """What the last heartbeat of a worker said."""

    hostname: str
    pid: int
    tag: str
    queues: list[str]
    version: str
    started_ms: int
    beat_ms: int
    #: Jobs that run, of this many at once.
    busy: int
    concurrency: int
    rss_kb: int
    #: How much of one processor it used lately, in percent: 200 means two processors.
    cpu_percent: float
    #: Takes no new jobs: paused or stopping.
    quiet: bool
    leader: bool
    #: The last command that it was given: ``quiet``, ``resume``, ``stop``, ``dump``.
    command: str | None


class WorkerEntry(WorkerFacts):
    """A worker that is alive."""

    id: str
    #: At most 100; those of hidden queues are left out.
    running: list[WorkerJob]


class LostJob(Shape):
    """A job that a lost worker held, as it stands now."""

    queue: str
    id: str
    task: str
    state: JobState


class LostWorker(WorkerFacts):
    """A worker that fell silent in the last day, without a goodbye."""

    id: str
    #: Jobs that it held (at most 50).
    jobs: list[LostJob]


class WorkerStacks(Shape):
    """Where the threads and tasks of a worker stand."""

    id: str
    beat_ms: int
    #: From its last ``dump``, for a minute; empty while the worker has not answered.
    text: str


class Workers(Shape):
    """Workers that gave a sign in the last 45 seconds, and those that fell silent in the last day with what
    they ran."""

    workers: list[WorkerEntry]
    lost: list[LostWorker]
