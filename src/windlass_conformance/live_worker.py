"""A worker with normal jobs beside a harmful one: the normal jobs must run nevertheless."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Any

from windlass import Job, JobState, Windlass, Worker
from windlass.backend.store import Store
from windlass.core.clock import SYSTEM_CLOCK
from windlass_conformance.harness import Harness

#: Normal jobs before and after the odd one.
HONEST = 4
SURROGATE = os.fsdecode(b"caf\xe9.txt")


class Live:
    """An app and a worker on the harness's store, on the system's clock; counts the runs of every job."""

    def __init__(self, harness: Harness, wrap: Callable[[Any], Any] | None = None, **options: Any) -> None:
        backend = harness.connect(harness.namespace)
        self.app = Windlass("memory://", **options)
        self.app.store = Store(backend if wrap is None else wrap(backend), SYSTEM_CLOCK)
        self.queue = self.app.queue("mail")
        self.runs: Counter[str] = Counter()
        self.honest: list[Job[Any]] = []
        self.worker: Worker | None = None

    async def __aenter__(self) -> Live:
        await self.app.store.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        async with asyncio.timeout(15):
            if self.worker is not None:
                await self.worker.close()
            await self.app.close()

    async def add(self, name: str, **options: Any) -> Job[Any]:
        """Add a job between normal ones; all are retried without a delay."""
        options = {"backoff": 0, "max_attempts": 2} | options
        before = await self.queue.add_bulk([{"name": "honest"} for _ in range(HONEST)])
        odd = await self.queue.add(name, **options)
        after = await self.queue.add_bulk([{"name": "honest"} for _ in range(HONEST)])
        self.honest += [*before, *after]
        return odd

    async def work(
        self,
        handler: Callable[[Job[Any]], Any],
        told: dict[str, Callable[..., Any]] | None = None,
        **options: Any,
    ) -> Worker:
        """Start a worker that runs odd jobs with ``handler`` and completes others; ``callbacks`` by event."""

        async def run(job: Job[Any]) -> Any:
            self.runs[job.id] += 1
            if job.name == "honest":
                return "done"
            return await handler(job) if inspect.iscoroutinefunction(handler) else handler(job)

        self.worker = Worker("mail", run, url_or_app=self.app, grace=1, cancel_wait=1, **options)
        for event, callback in (told or {}).items():
            self.worker.on(event, callback)
        await self.worker.start()
        return self.worker

    async def check_honest(self) -> None:
        """Assert that every normal job ran once, completed, and was never stalled."""
        for job in self.honest:
            assert await job.result(timeout=20) == "done"
        assert {(self.runs[job.id], job.stalled_count, job.attempts) for job in self.honest} == {(1, 0, 0)}

    async def ends(self, job: Job[Any], state: JobState = JobState.FAILED) -> Job[Any]:
        """Wait for the end of an odd job."""
        assert await job.wait_until_finished(timeout=20) is state
        await self.check_honest()
        return job


def raiser(error: Callable[[], BaseException]) -> Callable[[Job[Any]], Any]:
    """A handler that raises what ``error`` returns."""

    def run(job: Job[Any]) -> Any:
        raise error()

    return run


class NoText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Last(BaseException):
    """An error that is not an ``Exception``."""
