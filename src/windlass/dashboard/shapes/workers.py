"""Live workers, and lost ones."""

from __future__ import annotations

from windlass.core.states import JobState
from windlass.dashboard.shapes.base import Shape
from windlass.dashboard.shapes.wire import WorkerJob, WorkerStatus


class WorkerEntry(WorkerStatus, kw_only=True):
    """A worker that is alive."""

    id: str
    #: At most 100; jobs of hidden queues are left out.
    running: list[WorkerJob]


class LostJob(Shape):
    """A job that a lost worker held, in its current state."""

    queue: str
    id: str
    task: str
    state: JobState


class LostWorker(WorkerStatus, kw_only=True):
    """A worker whose heartbeats stopped in the last day, without a regular end."""

    id: str
    #: The jobs that it held (at most 50).
    jobs: list[LostJob]


class WorkerStacks(Shape):
    """The stacks of a worker's threads and tasks."""

    id: str
    beat_ms: int
    #: From its last ``dump``, kept for a minute; empty until the worker has answered.
    text: str


class Workers(Shape):
    """Workers with a heartbeat in the last 45 seconds, and workers that were lost in the last day, with the
    jobs that they held."""

    workers: list[WorkerEntry]
    lost: list[LostWorker]
