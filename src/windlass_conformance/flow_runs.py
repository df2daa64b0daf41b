"""Shared by the behaviour tests of flows: handlers that record their runs, and workers for all queues."""

from __future__ import annotations

from typing import Any

from windlass import Job, UnrecoverableError
from windlass.testing.kit import drain
from windlass_conformance.stage import QUEUE, Stage


class Runs:
    """A handler that records its runs and returns the job's data; with data "bad" the job fails."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.values: dict[str, dict[str, Any]] = {}
        self.failed: dict[str, dict[str, str]] = {}

    async def __call__(self, job: Job[Any]) -> Any:
        self.order.append(job.name)
        self.values[job.name] = await job.get_children_values()
        self.failed[job.name] = await job.get_failed_children()
        if job.data == "bad":
            raise UnrecoverableError("it is bad")
        return job.data


async def run_all(stage: Stage, runs: Any, *queues: str) -> None:
    worker = await stage.work(runs, list(queues or (QUEUE,)))
    await drain(worker)
