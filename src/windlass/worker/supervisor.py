"""Keeps the tasks of a worker running: starts them by name, restarts and stops them.

A task of the worker that a handler has cancelled, or that raised an error, is logged and restarted
(``core.lasting_task``).
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Final

from windlass.core.clock import Clock
from windlass.core.lasting_task import LastingTask, Main
from windlass.core.probe import reach
from windlass.core.text import printable
from windlass.errors import WindlassError

log: Final = logging.getLogger("windlass.worker")
service_log: Final = logging.getLogger("windlass.service")

#: How long a service pauses after a failed step: the first time, and at most.
_FIRST_PAUSE_MS, _MAX_PAUSE_MS = 500, 30_000


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
        self._supervised: dict[str, LastingTask] = {}
        self._loops: dict[str, _ServiceLoop] = {}

    def start(self, name: str, main: Main) -> None:
        """Run ``main`` until it returns. If it raises or is cancelled, it is restarted. Idempotent."""
        if name not in self._supervised:
            over = partial(self._forget, name)
            self._supervised[name] = LastingTask(
                name, main, self._clock, on_restart=_log_restart, on_over=over
            )

    def serve(self, service: Service) -> None:
        """Run the steps of ``service`` until it is stopped. Idempotent."""
        if service.name not in self._supervised:
            loop = self._loops[service.name] = _ServiceLoop(service, self._clock)
            self.start(service.name, loop.run)

    def over(self, name: str) -> asyncio.Future[None]:
        """Return a future that is done when the task of that name has returned or was released."""
        task = self._supervised.get(name)
        if task is not None:
            return task.over
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        over.set_result(None)
        return over

    def run_now(self, name: str) -> None:
        """Run the next step of a service now. Restart a task that waits for its restart."""
        if name in self._loops:
            self._loops[name].wake.set()
        task = self._supervised.get(name)
        if task is not None:
            task.restart_now()

    async def stop(self, name: str) -> None:
        """End a service after its current step. Idempotent. Cancelling this call cancels the step."""
        loop, task = self._loops.get(name), self._supervised.get(name)
        if loop is None or task is None:
            return
        loop.stopping = task.released = True
        self.run_now(name)
        try:
            await asyncio.wait([task.over])
        except asyncio.CancelledError:
            task.cancel()
            raise

    def release(self, name: str) -> None:
        """Cancel a task and do not restart it."""
        task = self._supervised.get(name)
        if task is not None:
            task.cancel()

    def _forget(self, name: str) -> None:
        self._supervised.pop(name, None)
        self._loops.pop(name, None)


def _log_restart(name: str, reason: str) -> None:
    log.error("the worker's task %s ended unexpectedly and is started again: %s", name, reason)
    reach("worker.restarted", task=name)


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
