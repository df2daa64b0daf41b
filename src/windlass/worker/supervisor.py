"""Keeps the tasks of a worker running: starts them by name, restarts and stops them.

A handler shares the event loop with its worker and may cancel every task that it finds there. A task of the
worker that was cancelled this way, or that raised an error, is logged and restarted, with a growing delay
while it keeps ending. No task ends without a log entry.

When the event loop itself ends without a close, no task is restarted: the loop is gone before it is due.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from windlass.core.clock import Clock, Timer
from windlass.core.probe import reach
from windlass.core.text import printable
from windlass.errors import WindlassError

log: Final = logging.getLogger("windlass.worker")
service_log: Final = logging.getLogger("windlass.service")

#: The delay before a task is restarted: the first, and the maximum. A task that ran for longer than the
#: maximum starts with the first delay again.
_FIRST_RESTART_MS, _MAX_RESTART_MS = 100, 5_000
#: How long a service pauses after a failed step: the first time, and at most.
_FIRST_PAUSE_MS, _MAX_PAUSE_MS = 500, 30_000

Main = Callable[[], Coroutine[Any, Any, None]]


class Service:
    """Base class of periodic work. Subclasses implement ``step``."""

    def __init__(self, name: str) -> None:
        self.name = name

    def first_pause_ms(self) -> float:
        """How long to wait before the first step."""
        return 0

    async def step(self) -> float:
        """Do one bounded step. Returns the pause before the next one, in milliseconds."""
        raise NotImplementedError

    async def stopped(self) -> None:
        """Called once after the last step."""


class TaskSupervisor:
    """The tasks of one worker. The asyncio task of ``name`` is called ``windlass-name``."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._supervised: dict[str, _SupervisedTask] = {}
        self._loops: dict[str, _ServiceLoop] = {}

    def start(self, name: str, main: Main) -> None:
        """Run ``main`` until it returns. If it raises or is cancelled, it is restarted. Idempotent."""
        if name not in self._supervised:
            entry = self._supervised[name] = _SupervisedTask(name, main)
            self._begin(entry)

    def serve(self, service: Service) -> None:
        """Run the steps of ``service`` until it is stopped. Idempotent."""
        if service.name not in self._supervised:
            loop = self._loops[service.name] = _ServiceLoop(service, self._clock)
            self.start(service.name, loop.run)

    def over(self, name: str) -> asyncio.Future[None]:
        """Return a future that is done when the task of that name has returned or was released."""
        entry = self._supervised.get(name)
        if entry is not None:
            return entry.over
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        over.set_result(None)
        return over

    def run_now(self, name: str) -> None:
        """Run the next step of a service now. Restart a task that waits for its restart."""
        if name in self._loops:
            self._loops[name].wake.set()
        entry = self._supervised.get(name)
        if entry is not None and entry.restart_timer is not None:
            entry.restart_timer.cancel()
            self._restart(entry)

    async def stop(self, name: str) -> None:
        """End a service after its current step. Idempotent. Cancelling this call cancels the step."""
        loop, entry = self._loops.get(name), self._supervised.get(name)
        if loop is None or entry is None:
            return
        loop.stopping = entry.released = True
        self.run_now(name)
        try:
            await asyncio.wait([entry.over])
        except asyncio.CancelledError:
            self.release(name)
            raise

    def release(self, name: str) -> None:
        """Cancel a task and do not restart it."""
        entry = self._supervised.get(name)
        if entry is None:
            return
        entry.released = True
        if entry.task is not None:
            entry.task.cancel()
        else:
            self._forget(entry)

    def _begin(self, entry: _SupervisedTask) -> None:
        entry.restart_timer, entry.since_ms = None, self._clock.monotonic_ms()
        entry.task = asyncio.create_task(entry.main(), name=f"windlass-{entry.name}")
        entry.task.add_done_callback(partial(self._ended, entry))

    def _ended(self, entry: _SupervisedTask, task: asyncio.Task[None]) -> None:
        entry.task = None
        error = asyncio.CancelledError("it was cancelled") if task.cancelled() else task.exception()
        if entry.released or error is None:
            self._forget(entry)
            return
        if self._clock.monotonic_ms() - entry.since_ms > _MAX_RESTART_MS:
            entry.failures = 0
        delay_ms = min(_FIRST_RESTART_MS * 2**entry.failures, _MAX_RESTART_MS)
        entry.failures = min(entry.failures + 1, 10)
        entry.error = error
        entry.restart_timer = self._clock.call_later(delay_ms, partial(self._restart, entry))

    def _restart(self, entry: _SupervisedTask) -> None:
        error, entry.error = entry.error, None
        message = printable(str(error) or type(error).__name__)
        log.error("the worker's task %s ended unexpectedly and is started again: %s", entry.name, message)
        reach("worker.restarted", task=entry.name)
        self._begin(entry)

    def _forget(self, entry: _SupervisedTask) -> None:
        if entry.restart_timer is not None:
            entry.restart_timer.cancel()
        if self._supervised.pop(entry.name, None) is not None:
            self._loops.pop(entry.name, None)
            entry.over.set_result(None)


class _SupervisedTask:
    """A task and the data that its restart needs."""

    __slots__ = ("error", "failures", "main", "name", "over", "released", "restart_timer", "since_ms", "task")

    def __init__(self, name: str, main: Main) -> None:
        self.name: str = name
        self.main: Main = main
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[None] | None = None
        #: Set while the task waits for its restart: the timer, and the error that ended the task.
        self.restart_timer: Timer | None = None
        self.error: BaseException | None = None
        self.since_ms: float = 0
        self.failures: int = 0
        #: Whether the task is no longer restarted.
        self.released: bool = False


class _ServiceLoop:
    """Runs the steps of a service. After a failed step it pauses, longer after each further failure."""

    def __init__(self, service: Service, clock: Clock) -> None:
        self._service = service
        self._clock = clock
        self._pause_ms = service.first_pause_ms()
        self._failures = 0
        self.wake = asyncio.Event()
        self.stopping: bool = False

    async def run(self) -> None:
        await self._pause()
        while not self.stopping:
            try:
                self._pause_ms = await self._service.step()
                self._failures = 0
            except Exception as exc:
                self._pause_ms = min(_FIRST_PAUSE_MS * 2**self._failures, _MAX_PAUSE_MS)
                self._failures = min(self._failures + 1, 10)
                self._log_failure(exc)
            await self._pause()
        try:
            await self._service.stopped()
        except WindlassError as exc:
            service_log.warning("%s could not clean up: %s", self._name, printable(str(exc)))
        except Exception:
            service_log.exception("%s could not clean up", self._name)

    @property
    def _name(self) -> str:
        return f"windlass-{self._service.name}"

    async def _pause(self) -> None:
        """Wait until the next step is due or requested. Always yields to the loop."""
        if self._pause_ms > 0:
            await self._clock.wait(self.wake, self._pause_ms)
        else:
            await asyncio.sleep(0)
        if not self.stopping:
            self.wake.clear()

    def _log_failure(self, exc: Exception) -> None:
        if isinstance(exc, WindlassError):
            error = printable(str(exc))
            service_log.warning(
                "%s met an error and continues in %g s: %s", self._name, self._pause_ms / 1000, error
            )
        else:
            service_log.exception("%s failed unexpectedly and continues", self._name)
