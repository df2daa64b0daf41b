"""Workers: those that live, and those that fell silent."""

from __future__ import annotations

from windlass.core.states import JobState
from windlass.dashboard.shapes.base import Shape
from windlass.dashboard.shapes.wire import WorkerJob, WorkerStatus


class WorkerEntry(WorkerStatus, kw_only=True):
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


class LostWorker(WorkerStatus, kw_only=True):
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
