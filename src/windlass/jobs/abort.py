"""The signal that asks a running handler to stop: timeout, cancel, shutdown or a lost lease."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from contextlib import suppress
from enum import StrEnum
from typing import Any, Final

from windlass.errors import AbortedError

#: Held while the event or the list of waiters is created, so that all threads of a handler use the same one.
_first_wait: Final = threading.Lock()


class StopReason(StrEnum):
    """Why an attempt was asked to stop."""

    TIMEOUT = "timeout"
    CANCEL = "cancel"
    SHUTDOWN = "shutdown"
    LOST = "lost"


class AbortSignal:
    """A signal that is set once and can be read from any thread.

    Handlers in threads check it. Handlers on the loop are also cancelled. ``await job.abort_signal`` returns
    the reason once it is set; it is for other tasks that a handler started, since its own task is cancelled.
    """

    __slots__ = ("_event", "_waiters", "detail", "reason")

    def __init__(self) -> None:
        self.reason: StopReason | None = None
        #: The reason that was given to ``abort_job``; often empty.
        self.detail: str = ""
        self._event: threading.Event | None = None  # created by the first ``wait``
        self._waiters: list[asyncio.Future[None]] | None = None

    @property
    def aborted(self) -> bool:
        """Whether the handler was asked to stop."""
        return self.reason is not None

    def abort(self, reason: StopReason, detail: str = "") -> None:
        """Ask the handler to stop. Only the first reason counts."""
        if self.reason is None:
            self.detail = detail
            self.reason = reason
            if self._event is not None:
                self._event.set()
            for waiter in list(self._waiters or ()):
                with suppress(RuntimeError):  # that loop has ended, and so have its tasks
                    waiter.get_loop().call_soon_threadsafe(_wake, waiter)

    def __await__(self) -> Generator[Any, None, StopReason]:
        if self.reason is None:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            with _first_wait:
                waiters = self._waiters = self._waiters or []
                waiters.append(waiter)
            try:
                if self.reason is None:  # otherwise another thread has just set it
                    yield from waiter
            finally:
                waiters.remove(waiter)  # a handler may wait many times, a moment each
        assert self.reason is not None
        return self.reason

    def raise_if_aborted(self) -> None:
        """Raise ``AbortedError`` if asked to stop, for threads that can stop early."""
        if self.reason is not None:
            raise AbortedError(self.reason)

    def wait(self, timeout: float | None = None) -> bool:
        """Block this thread until asked to stop, at most ``timeout`` seconds; True if asked to stop."""
        with _first_wait:
            event = self._event = self._event or threading.Event()
        if self.reason is not None:  # it was set before the event existed
            return True
        return event.wait(timeout)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
