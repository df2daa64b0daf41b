"""What schedules need of an app and its queues, beyond what jobs need."""

from __future__ import annotations

from typing import Protocol

from windlass.handlers.hooks import Hooks
from windlass.jobs.interfaces import JobApp, JobQueue


class ScheduleApp(JobApp, Protocol):
    """An app whose enqueue hooks see the jobs that schedules make."""

    hooks: Hooks


class ScheduleQueue(JobQueue, Protocol):
    """A queue that schedules add their jobs to."""

    @property
    def app(self) -> ScheduleApp:
        """The app that the queue belongs to."""
