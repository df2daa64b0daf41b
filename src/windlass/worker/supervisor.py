"""Keeps the tasks of a worker alive: starts them by name, starts again what ends unexpectedly, stops them.

A handler shares the event loop with its worker and may cancel every task that it finds there. A task of the
worker that ends so, or by an error that it does not handle itself, is logged and started again, later and
later while it keeps ending. None ends silently.

When the event loop itself ends without a close, nothing is started again: the loop is gone before it is due.
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

#: How long a task that ended unexpectedly stays away, the first time and at most. One that lived longer than
#: that has its first time again.
_FIRST_REST_MS, _LAST_REST_MS = 100, 5_000
#: How long a service pauses after a step that failed.
_FIRST_PAUSE_MS, _LAST_PAUSE_MS = 500, 30_000

Main = Callable[[], Coroutine[Any, Any, None]]


class Service:
    """Base class of what is done step after step: implement ``step``."""

    def __init__(self, name: str) -> None:
        self.name = name

    def first_pause_ms(self) -> float:
        """How long to wait before the first step."""
        return 0

    async def step(self) -> float:
        """One bounded step; returns how long to pause before the next, in milliseconds."""
        raise NotImplementedError

    async def stopped(self) -> None:
        """Called once after the last step."""


class TaskSupervisor:
    """The tasks of one worker. A task called ``name`` shows up as ``windlass-name``."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: dict[str, _Kept] = {}
        self._rounds: dict[str, _Rounds] = {}

    def start(self, name: str, main: Main) -> None:
        """Run ``main`` until it returns; however else it ends, it is started again. Idempotent."""
        if name not in self._kept:
            kept = self._kept[name] = _Kept(name, main)
            self._begin(kept)

    def serve(self, service: Service) -> None:
        """Do the steps of ``service`` until it is stopped. Idempotent."""
        if service.name not in self._kept:
            rounds = self._rounds[service.name] = _Rounds(service, self._clock)
            self.start(service.name, rounds.run)

    def over(self, name: str) -> asyncio.Future[None]:
        """Done when the task of that name has returned, or was dropped."""
        kept = self._kept.get(name)
        if kept is not None:
            return kept.over
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        over.set_result(None)
        return over

    def hurry(self, name: str) -> None:
        """Take the next step of a service now; start again at once what rests after an unexpected end."""
        if name in self._rounds:
            self._rounds[name].wake.set()
        kept = self._kept.get(name)
        if kept is not None and kept.rest is not None:
            kept.rest.cancel()
            self._again(kept)

    async def stop(self, name: str) -> None:
        """End a service after its current step. Idempotent; cancelling it cancels the step."""
        rounds, kept = self._rounds.get(name), self._kept.get(name)
        if rounds is None or kept is None:
            return
        rounds.stopping = kept.released = True
        self.hurry(name)
        try:
            await asyncio.wait([kept.over])
        except asyncio.CancelledError:
            self.release(name)
            raise

    def release(self, name: str) -> None:
        """Cancel a task, for good."""
        kept = self._kept.get(name)
        if kept is None:
            return
        kept.released = True
        if kept.task is not None:
            kept.task.cancel()
        else:
            self._forget(kept)

    def _begin(self, kept: _Kept) -> None:
        kept.rest, kept.since_ms = None, self._clock.monotonic_ms()
        kept.task = asyncio.create_task(kept.main(), name=f"windlass-{kept.name}")
        kept.task.add_done_callback(partial(self._ended, kept))

    def _ended(self, kept: _Kept, task: asyncio.Task[None]) -> None:
        kept.task = None
        error = asyncio.CancelledError("it was cancelled") if task.cancelled() else task.exception()
        if kept.released or error is None:
            self._forget(kept)
            return
        if self._clock.monotonic_ms() - kept.since_ms > _LAST_REST_MS:
            kept.deaths = 0
        rest_ms = min(_FIRST_REST_MS * 2**kept.deaths, _LAST_REST_MS)
        kept.deaths = min(kept.deaths + 1, 10)
        kept.error = error
        kept.rest = self._clock.call_later(rest_ms, partial(self._again, kept))

    def _again(self, kept: _Kept) -> None:
        error, kept.error = kept.error, None
        message = printable(str(error) or type(error).__name__)
        log.error("the worker's task %s ended unexpectedly and is started again: %s", kept.name, message)
        reach("worker.restarted", task=kept.name)
        self._begin(kept)

    def _forget(self, kept: _Kept) -> None:
        if kept.rest is not None:
            kept.rest.cancel()
        if self._kept.pop(kept.name, None) is not None:
            self._rounds.pop(kept.name, None)
            kept.over.set_result(None)


class _Kept:
    """A task and what is to be known to start it again."""

    __slots__ = ("deaths", "error", "main", "name", "over", "released", "rest", "since_ms", "task")

    def __init__(self, name: str, main: Main) -> None:
        self.name: str = name
        self.main: Main = main
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[None] | None = None
        #: What starts it again, and why it ended.
        self.rest: Timer | None = None
        self.error: BaseException | None = None
        self.since_ms: float = 0
        self.deaths: int = 0
        #: Whether it may end now, in any way.
        self.released: bool = False


class _Rounds:
    """The steps of a service. After one that fails it pauses longer and longer, until one succeeds."""

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
                self._pause_ms = min(_FIRST_PAUSE_MS * 2**self._failures, _LAST_PAUSE_MS)
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
        """Until the next step is due, or asked for; a turn of the loop in any case."""
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
                "%s met an error and goes on in %g s: %s", self._name, self._pause_ms / 1000, error
            )
        else:
            service_log.exception("%s met an unexpected error and goes on", self._name)
