"""An application on the harness's store under a clock that the test drives: the ground of level two."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from windlass import Job, JobState, Queue, Windlass, Worker
from windlass.backend.store import Store
from windlass.core.clock import SYSTEM_CLOCK
from windlass.testing.clock import ManualClock
from windlass.testing.faults import FaultyBackend
from windlass.testing.wrapper import WatchedBackend

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from types import TracebackType

    from windlass_conformance.harness import Harness

QUEUE = "mail"


class Stage:
    """An app, its clock, the faults of its store, and its workers. Use it as an async context manager."""

    def __init__(self, harness: Harness, **options: Any) -> None:
        self.clock = ManualClock()
        self.faults = FaultyBackend(WatchedBackend(harness.connect(harness.namespace), self.clock))
        self.app = Windlass("memory://", clock=self.clock, **options)
        self.app.store = Store(self.faults, self.clock)
        self.workers: list[Worker] = []

    async def __aenter__(self) -> Stage:
        await self.app.store.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        async with asyncio.timeout(20):
            for worker in self.workers:
                await self._close(worker)
            await self.app.close()

    async def _close(self, worker: Worker) -> None:
        """Close a worker. Time passes if it waits for that: a failed test may leave calls hanging."""
        closing = asyncio.ensure_future(worker.close(force=True))
        while not (await asyncio.wait([closing], timeout=2))[0]:
            await self.advance(1)
        await closing

    @property
    def queue(self) -> Queue:
        """The queue that a test means when it names none."""
        return self.app.queue(QUEUE)

    async def work(
        self, handler: Callable[..., Any] | None = None, queues: Any = QUEUE, **options: Any
    ) -> Worker:
        """A worker that runs until the test ends. Without a handler the app's tasks are its handlers.

        It looks and beats so rarely that only hints and due times can be what wakes it, and leaves the
        store's duties alone, unless the test says otherwise.
        """
        quiet = {"poll": 600, "heartbeat": 600, "duties": False}
        worker = Worker(queues, handler, url_or_app=self.app, **(quiet | options))
        self.workers.append(worker)
        await worker.start()
        return worker

    async def advance(self, seconds: float = 0, *, ms: float = 0) -> None:
        """Let time pass."""
        await self.clock.advance(seconds, ms=ms)

    async def settle(self) -> None:
        """Let everything happen that happens without time passing."""
        await self.clock.settle()

    async def until_state(self, job: Job[Any], state: JobState, timeout: float = 20) -> None:
        """Wait, in real time, until the store shows ``state``; then let the worker notice it too."""
        async with asyncio.timeout(timeout):
            while await job.get_state() is not state:  # noqa: ASYNC110 - not every state has an event
                await asyncio.sleep(0.002)
        await self.settle()


@asynccontextmanager
async def live(harness: Harness, **options: Any) -> AsyncIterator[Windlass]:
    """An app on the harness's store as in production: the machine's clock, nothing in between."""
    app = Windlass("memory://", **options)
    app.store = Store(harness.connect(harness.namespace), SYSTEM_CLOCK)
    try:
        yield app
    finally:
        await app.close()


class LiveStage(Stage):
    """The same on the system's clock, as production runs: a thread renews leases, time passes by itself."""

    def __init__(self, harness: Harness, **options: Any) -> None:
        super().__init__(harness, **options)
        self.faults = FaultyBackend(harness.connect(harness.namespace))
        self.app = Windlass("memory://", **options)
        self.app.store = Store(self.faults, self.app.clock)


class Gate:
    """Where a handler waits until the test lets it pass."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()
        #: How often it was reached.
        self.count = 0

    async def pass_through(self) -> None:
        """For handlers: say that we are here, wait to be let through."""
        self.count += 1
        self.reached.set()
        await self.opened.wait()

    def open(self) -> None:
        """Let through all who wait, and all who come."""
        self.opened.set()


async def eventually(condition: Callable[[], bool], timeout: float = 10) -> None:
    """Wait, in real time, until ``condition`` holds: for what other threads and processes do."""
    async with asyncio.timeout(timeout):
        while not condition():  # noqa: ASYNC110 - any condition, so nothing to wait on
            await asyncio.sleep(0.002)
