"""What the tests of the user-facing layer share: stores of their own, workers, and time they drive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from windlass import Job, JobState, Queue, Windlass, Worker
from windlass.api.interfaces import App
from windlass.backend import requests as rq
from windlass.core.ids import new_id
from windlass.core.job import AttemptRecord, Event
from windlass.testing import ManualClock
from windlass.testing.wrapper import BackendWrapper

if TYPE_CHECKING:
    from pathlib import Path

    from windlass.backend import Backend
    from windlass.worker.options import Queues

R = TypeVar("R")

BACKENDS = ["memory", "sqlite"]
#: Turns of the loop after which nothing that does not wait for time or for the store can be under way.
_TURNS = 25


def store_url(backend_name: str, directory: Path) -> str:
    """The URL of a fresh store."""
    if backend_name == "memory":
        return f"memory://t{new_id()}"
    return f"sqlite:///{directory / 'jobs.db'}"


class WaitingHandler:
    """A handler that waits until it is stopped, and keeps the reasons for which it was."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.reasons: list[str | None] = []

    async def __call__(self, job: Job[Any]) -> None:
        self.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.reasons.append(job.abort_signal.reason if job.abort_signal else None)


@asynccontextmanager
async def working(
    app: Windlass,
    queues: Queues = "default",
    handler: Callable[[Job[Any]], Any] | None = None,
    **options: Any,
) -> AsyncIterator[Worker]:
    """A running worker, stopped without waiting at the end."""
    worker = Worker(queues, handler, url_or_app=app, **options)
    await worker.start()
    try:
        yield worker
    finally:
        await worker.close(force=True)


async def work_off(
    app: Windlass,
    queues: Queues = "default",
    handler: Callable[[Job[Any]], Any] | None = None,
    **options: Any,
) -> Worker:
    """Run a worker until nothing is waiting, active or retrying."""
    worker = Worker(queues, handler, url_or_app=app, **options)
    await worker.drain()
    return worker


async def states_of(queue: Queue) -> dict[JobState, int]:
    """How many jobs are in each state, without the empty ones."""
    return {state: count for state, count in (await queue.get_job_counts()).items() if count}


async def events_of(queue: Queue, after: int = 0) -> list[Event]:
    """The queue's event log."""
    return (await queue.store.execute(rq.ReadEvents(queue=queue.name, after=after))).events


async def event_names(queue: Queue, job_id: str | None = None) -> list[str]:
    """The kinds of the queue's events, of one job or of all."""
    return [event.type.value for event in await events_of(queue) if job_id is None or event.job_id == job_id]


async def history_of(queue: Queue) -> list[AttemptRecord]:
    """The queue's attempt records."""
    return (await queue.store.execute(rq.ReadHistory(queue=queue.name))).records


async def turns(count: int = _TURNS) -> None:
    """Let everything run that waits for nothing but its turn."""
    for _ in range(count):
        await asyncio.sleep(0)


async def eventually(check: Callable[[], Coroutine[Any, Any, bool]], within: float = 10) -> None:
    """Ask again and again until ``check`` says yes; for things that happen in other threads."""
    async with asyncio.timeout(within):
        while not await check():  # noqa: ASYNC110 - what happens in other threads sets no event here
            await asyncio.sleep(0)


async def reaches(job: Job[Any], *states: JobState) -> None:
    """Wait until the job is in one of ``states``."""

    async def there() -> bool:
        return await job.get_state() in states

    await eventually(there)


async def run_ends(job: Job[Any]) -> None:
    """Wait until the worker's task for a run of the job has ended, also after its worker was closed."""

    async def over() -> bool:
        return all(task.get_name() != job.id for task in asyncio.all_tasks())

    await eventually(over)


class Tally:
    """Counts how many run at once."""

    def __init__(self) -> None:
        self.now = 0
        self.most = 0

    def __enter__(self) -> None:
        self.now += 1
        self.most = max(self.most, self.now)

    def __exit__(self, *exc: object) -> None:
        self.now -= 1


# --- time that a test drives ---------------------------------------------------------------------------


class DrivenClock(ManualClock):
    """The kit's manual clock, and a way to let time pass until something is done."""

    async def until(self, work: Coroutine[Any, Any, R], *, within: float = 86_400) -> R:
        """Let time pass, timer by timer, until ``work`` is done; at most ``within`` seconds of this clock."""
        task = asyncio.ensure_future(work)
        limit_ms = self.monotonic_ms() + within * 1000
        await self.settle()
        while not task.done():
            next_ms = self.next_wake_ms
            if next_ms is None or self.monotonic_ms() + next_ms > limit_ms:
                task.cancel()
                raise TimeoutError(f"not done after {within:g} s of driven time")
            await self.advance(ms=max(next_ms, 0))
        return await task


class WatchedBackend(BackendWrapper):
    """Tells a driven clock what is under way, writes down requests, and can be made to fail."""

    def __init__(self, inner: Backend, clock: DrivenClock | None = None) -> None:
        super().__init__(inner)
        self._clock = clock
        #: Its clones write down and fail as it does.
        self._first = self
        self.requests: list[rq.Request[Any]] = []
        #: Called before and after each request; may raise to play a lost request or a lost reply.
        self.before: Callable[[rq.Request[Any]], None] | None = None
        self.after: Callable[[rq.Request[Any]], None] | None = None

    async def open(self) -> None:
        with self._counted():
            await super().open()

    async def close(self) -> None:
        with self._counted():
            await super().close()

    async def execute(self, request: rq.Request[R]) -> R:
        self.requests.append(request)
        with self._counted():
            if self._first.before is not None:
                self._first.before(request)
            answer = await super().execute(request)
            if self._first.after is not None:
                self._first.after(request)
            return answer

    def clone(self) -> WatchedBackend:
        copy = WatchedBackend(self.inner.clone(), self._clock)
        copy._first, copy.requests = self._first, self.requests
        return copy

    def _counted(self) -> AbstractContextManager[None]:
        return nullcontext() if self._clock is None else self._clock.working()


def watched(app: App) -> WatchedBackend:
    """Put a watcher around the app's backend."""
    clock = app.clock if isinstance(app.clock, DrivenClock) else None
    app.store.backend = wrapper = WatchedBackend(app.store.backend, clock)
    return wrapper
