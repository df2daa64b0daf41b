"""The part of ``Windlass`` that queues and tasks use. It is a protocol to avoid an import cycle."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from windlass.core.job import QueueInfo, WorkerInfo
from windlass.core.options import JobOptions
from windlass.core.schedule_rules import ScheduleStrategy
from windlass.flows.interfaces import FlowApp
from windlass.handlers.hooks import Hooks
from windlass.jobs.job import Job


class App(FlowApp, Protocol):
    """The part of the app that a queue uses."""

    url: str
    hooks: Hooks
    defaults: JobOptions
    schedule_strategies: dict[str, ScheduleStrategy]
    #: Called with the jobs of every add.
    after_add: Callable[[list[Job[Any]]], Awaitable[None]] | None

    async def open(self) -> None:
        """Connect now instead of on first use."""

    async def queues(self) -> list[QueueInfo]:
        """Return every queue of the store, with its counts."""

    async def workers(self) -> list[WorkerInfo]:
        """Return the workers that sent a heartbeat in the last 45 seconds."""
