"""Callbacks for the events of one worker."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any, Final

from windlass.core.option_values import check_known

log: Final = logging.getLogger("windlass.worker")

#: The asynchronous callback in which the current code runs, also in tasks that it started.
_callback: Final[ContextVar[asyncio.Task[Any] | None]] = ContextVar("windlass_callback", default=None)

#: The events of a worker, with the arguments of their callbacks.
WORKER_EVENTS = {
    "ready": "()",
    "active": "(job)",
    "completed": "(job, result)",
    "retrying": "(job, error)",
    "failed": "(job, error)",
    "cancelled": "(job)",
    "released": "(job)",
    "snoozed": "(job)",
    "progress": "(job, progress)",
    "stalled": "(job_id)",
    "lease_lost": "(job)",
    "drained": "()",
    "paused": "()",
    "resumed": "()",
    "leadership_acquired": "()",
    "leadership_lost": "()",
    "error": "(error)",
    "closing": "()",
    "closed": "()",
}
#: Names of these events in other job systems.
WORKER_ALIASES = {
    "started": "ready",
    "stopped": "closed",
    "failing": "retrying",
    "requeued": "released",
    "interrupted": "released",
    "revoked": "cancelled",
    "lockRenewalFailed": "lease_lost",
    "leadershipAcquired": "leadership_acquired",
    "leadershipLost": "leadership_lost",
}


class Emitter:
    """Calls callbacks on the event loop. An error of a callback is logged and has no other effect."""

    def __init__(self) -> None:
        self._callbacks: dict[str, list[Callable[..., Any]]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._idle = asyncio.Event()

    def on(self, event: str, callback: Callable[..., Any]) -> None:
        """Call ``callback`` at every ``event``. Coroutines run as separate tasks."""
        event = WORKER_ALIASES.get(event, event)
        check_known([event], WORKER_EVENTS, "worker event")
        self._callbacks.setdefault(event, []).append(callback)

    def wants(self, event: str) -> bool:
        """Whether ``event`` has a callback."""
        return event in self._callbacks

    def emit(self, event: str, *args: Any) -> None:
        """Call the callbacks of ``event``."""
        self.call(self._callbacks.get(event, ()), *args, what=f"callback of worker event {event!r}")

    def call(
        self, callbacks: Iterable[Callable[..., Any]], *args: Any, what: str = "hook of the app"
    ) -> None:
        """Call each of ``callbacks``. Coroutines run as separate tasks."""
        for callback in callbacks:
            try:
                answer = callback(*args)
                if inspect.iscoroutine(answer):  # inside the try: inspecting a user's object may raise
                    self._background(what, answer)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException:  # also a leaked CancelledError: the worker itself was not cancelled
                log.exception("a %s failed", what)

    def _background(self, what: str, answer: Any) -> None:
        async def guarded() -> None:
            _callback.set(asyncio.current_task())
            try:
                await answer
            except (KeyboardInterrupt, SystemExit, asyncio.CancelledError):
                raise
            except BaseException:
                log.exception("a %s failed", what)

        task = asyncio.create_task(guarded())
        self._tasks.add(task)
        self._idle.clear()
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not self._tasks:
            self._idle.set()

    def leave_current(self) -> None:
        """Do not wait for the callback that makes this call, because it waits for the worker itself."""
        task = _callback.get()
        if task is not None:
            self._forget(task)

    async def settle(self) -> None:
        """Wait for callbacks that are still running."""
        while self._tasks:
            await self._idle.wait()
