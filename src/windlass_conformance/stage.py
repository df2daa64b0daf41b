"""An application on the harness's store, with a clock that the test sets: for tests of level two."""

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
        """Close a worker. Let time pass if it waits: a failed test may leave calls that hang."""
        closing = asyncio.ensure_future(worker.close(force=True))
        while not (await asyncio.wait([closing], timeout=2))[0]:
            await self.advance(1)
        await closing

    @property
    def queue(self) -> Queue:
        """The default queue of a test."""
        return self.app.queue(QUEUE)

    async def work(
        self, handler: Callable[..., Any] | None = None, queues: Any = QUEUE, **options: Any
    ) -> Worker:
        """A worker that runs until the test ends. Without a handler the app's tasks are its handlers.

        It polls and sends heartbeats so rarely that only hints and due times wake it, and does no duties,
        unless the test sets other options.
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
        """Wait until everything is done that needs no time to pass."""
        await self.clock.settle()

    async def until_state(self, job: Job[Any], state: JobState, timeout: float = 20) -> None:
        """Wait, in real time, until the job has ``state`` in the store; then ``settle``."""
        async with asyncio.timeout(timeout):
            while await job.get_state() is not state:  # noqa: ASYNC110 - not every state has an event
                await asyncio.sleep(0.002)
        await self.settle()


@asynccontextmanager
async def live(harness: Harness, **options: Any) -> AsyncIterator[Windlass]:
    """An app on the harness's store as in production: with the machine's clock and an unwrapped store."""
    app = Windlass("memory://", **options)
    app.store = Store(harness.connect(harness.namespace), SYSTEM_CLOCK)
    try:
        yield app
    finally:
        await app.close()


class LiveStage(Stage):
    """A stage with the system's clock, as in production: time passes, and a thread renews leases."""

    def __init__(self, harness: Harness, **options: Any) -> None:
        super().__init__(harness, **options)
        self.faults = FaultyBackend(harness.connect(harness.namespace))
        self.app = Windlass("memory://", **options)
        self.app.store = Store(self.faults, self.app.clock)


class Gate:
    """A point where handlers wait until the test opens it."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()
        #: How many handlers have reached it.
        self.count = 0

    async def pass_through(self) -> None:
        """For handlers: count the arrival and wait until the gate is open."""
        self.count += 1
        self.reached.set()
        await self.opened.wait()

    async def reached_times(self, count: int) -> None:
        """Wait, in real time, until the gate was reached this often."""
        await eventually(lambda: self.count >= count)

    def open(self) -> None:
        """Open the gate for all handlers, now and later."""
        self.opened.set()


async def eventually(condition: Callable[[], bool], timeout: float = 30) -> None:
    """Wait, in real time, until ``condition`` holds, for example through other threads or processes."""
    async with asyncio.timeout(timeout):
        while not condition():  # noqa: ASYNC110 - any condition, so nothing to wait on
            await asyncio.sleep(0.002)


async def in_time(call: Awaitable[object]) -> float:
    """How many seconds ``call`` took, without the time in which the machine did not run this process.

    On a busy machine a process may not run for seconds, which is not due to the call. See ``Standstill``.
    """
    with Standstill() as machine:
        began = time.monotonic()
        async with asyncio.timeout(30):
            await call
        ended = time.monotonic()
    return ended - began - machine.within(began, ended)


class Standstill:
    """Measures when the machine did not run this process: then a thread that sleeps briefly wakes late.

    A call that blocks the event loop is not such a time as long as other threads run. The thread needs the
    GIL to wake, so a long call into C that holds the GIL counts as a standstill.
    """

    #: How long the thread sleeps each time, in seconds.
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
        """For how many seconds of this interval the process did not run."""
        wakes = [*self.wakes, ended]  # the thread may be overdue at the end
        return sum(
            max(min(woke, ended) - max(before + self.TICK, began), 0.0) for before, woke in pairwise(wakes)
        )

    def longest_other(self, stalls: Iterable[tuple[float, float]]) -> float:
        """The longest of some stalls (began, ended), without the time in which the process did not run."""
        return max((ended - began - self.within(began, ended) for began, ended in stalls), default=0.0)

    def _run(self) -> None:
        self.wakes.append(time.monotonic())
        while not self._over.wait(self.TICK):
            self.wakes.append(time.monotonic())
        self.wakes.append(time.monotonic())
