"""What flows need of an app and its queues, beyond what jobs need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from windlass.core.job import NewJob
from windlass.flows.tree import JobNode
from windlass.jobs.interfaces import JobApp, JobQueue
from windlass.jobs.job import Job


class FlowQueue(JobQueue, Protocol):
    """A queue that jobs of a flow are added to."""

    async def add_new(self, news: Sequence[NewJob], *, chunk: int = ...) -> list[Job[Any]]:
        """Add prepared jobs, through the app's enqueue hooks; each ``chunk`` is one atomic step."""

    async def get_flow(self, job_id: str, *, depth: int = ..., limit: int = ...) -> JobNode:
        """The job with all that it waits for."""


class FlowApp(JobApp, Protocol):
    """An app whose queues take flows."""

    def queue(self, name: str) -> FlowQueue:
        """The queue of that name."""
