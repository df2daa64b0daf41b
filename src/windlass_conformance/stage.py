"""An application on the harness's store under a clock that the test drives: the ground of level two."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self

from windlass import Job, JobState, Queue, Windlass, Worker
from windlass.backend.store import Store
from windlass.core.clock import SYSTEM_CLOCK
from windlass.testing.clock import ManualClock
from windlass.testing.faults import FaultyBackend
from windlass.testing.wrapper import WatchedBackend

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
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

    async def reached_times(self, count: int) -> None:
        """Wait, in real time, until it was reached so often."""
        await eventually(lambda: self.count >= count)

    def open(self) -> None:
        """Let through all who wait, and all who come."""
        self.opened.set()


async def eventually(condition: Callable[[], bool], timeout: float = 30) -> None:
    """Wait, in real time, until ``condition`` holds: for what other threads and processes do."""
    async with asyncio.timeout(timeout):
        while not condition():  # noqa: ASYNC110 - any condition, so nothing to wait on
            await asyncio.sleep(0.002)


async def in_time(call: Awaitable[object]) -> float:
    """How many seconds ``call`` took, without those in which the machine did not let this process run.

    On a busy machine a process may stand still for seconds, which says nothing about what a stop waits for.
    See ``Standstill`` for what counts as that.
    """
    with Standstill() as machine:
        began = time.monotonic()
        async with asyncio.timeout(30):
            await call
        ended = time.monotonic()
    return ended - began - machine.within(began, ended)


class Standstill:
    """When the machine did not run this process: a thread that sleeps for a moment wakes too late.

    A call that blocks the event loop is no such time, as long as other threads run meanwhile: it waits for
    something, or it is Python code. The thread needs the GIL to wake, so a call that holds it throughout, as
    a long one into C may, is taken for a standstill.
    """

    #: How long the thread sleeps at a time, in seconds.
    TICK = 0.02

    def __init__(self) -> None:
        #: When the thread woke, by ``time.monotonic``. Only ever added to, so any thread may read it.
        self.wakes: list[float] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="standstill")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def within(self, began: float, ended: float) -> float:
        """For how many seconds of this time the machine stood still."""
        wakes = [*self.wakes, ended]  # the thread may be overdue at the end
        return sum(
            max(min(woke, ended) - max(before + self.TICK, began), 0.0) for before, woke in pairwise(wakes)
        )

    def longest_other(self, stalls: Iterable[tuple[float, float]]) -> float:
        """The longest of some stalls (began, ended), without what the machine stood still during each."""
        return max((ended - began - self.within(began, ended) for began, ended in stalls), default=0.0)

    def _run(self) -> None:
        self.wakes.append(time.monotonic())
        while not self._over.wait(self.TICK):
            self.wakes.append(time.monotonic())
        self.wakes.append(time.monotonic())
