"""Protocols of the app and its queues for schedules."""

from __future__ import annotations

from typing import Protocol

from windlass.handlers.hooks import Hooks
from windlass.jobs.interfaces import JobApp, JobQueue


class ScheduleApp(JobApp, Protocol):
    """An app whose enqueue hooks receive the jobs of schedules."""

    hooks: Hooks


class ScheduleQueue(JobQueue, Protocol):
    """A queue that schedules add their jobs to."""

    @property
    def app(self) -> ScheduleApp:
        """The app that the queue belongs to."""
