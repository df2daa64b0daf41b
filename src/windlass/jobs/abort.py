"""The signal that tells a running handler to stop: timeout, cancel, shutdown or a lost lease."""

from __future__ import annotations

import threading
from enum import StrEnum

from windlass.errors import AbortedError


class StopReason(StrEnum):
    """Why an attempt was asked to stop."""

    TIMEOUT = "timeout"
    CANCEL = "cancel"
    SHUTDOWN = "shutdown"
    LOST = "lost"


class AbortSignal:
    """Set once, readable from any thread. Handlers in threads look at it; tasks are also cancelled."""

    __slots__ = ("_event", "reason")

    def __init__(self) -> None:
        self.reason: StopReason | None = None
        self._event: threading.Event | None = None  # made for the first who waits

    @property
    def aborted(self) -> bool:
        return self.reason is not None

    def abort(self, reason: StopReason) -> None:
        """Ask the handler to stop. The first reason stays."""
        if self.reason is None:
            self.reason = reason
            if self._event is not None:
                self._event.set()

    def raise_if_aborted(self) -> None:
        """Raise ``AbortedError`` when asked to stop: the way for a thread to leave its work undone."""
        if self.reason is not None:
            raise AbortedError(self.reason)

    def wait(self, timeout: float | None = None) -> bool:
        """Block this thread until asked to stop, at most ``timeout`` seconds; whether it was asked."""
        event = self._event = self._event or threading.Event()
        if self.reason is not None:  # asked before the event was there to be set
            return True
        return event.wait(timeout)
