"""Protocols of the app and its queues for flows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from windlass.core.job import NewJob
from windlass.flows.tree import JobNode
from windlass.jobs.interfaces import JobApp, JobQueue
from windlass.jobs.job import Job


class FlowQueue(JobQueue, Protocol):
    """A queue that accepts jobs of flows."""

    async def add_new(self, news: Sequence[NewJob], *, chunk: int = ...) -> list[Job[Any]]:
        """Add prepared jobs through the app's enqueue hooks. Each ``chunk`` is one atomic step."""

    async def get_flow(self, job_id: str, *, depth: int = ..., limit: int = ...) -> JobNode:
        """Return the job and all jobs that it waits for."""


class FlowApp(JobApp, Protocol):
    """An app whose queues accept flows."""

    def queue(self, name: str) -> FlowQueue:
        """Return the queue of that name."""
