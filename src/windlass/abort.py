"""The signal that tells a running handler to stop: timeout, cancel, shutdown or a lost lease."""

from __future__ import annotations

import threading
from enum import StrEnum


class StopReason(StrEnum):
    """Why an attempt was asked to stop."""

    TIMEOUT = "timeout"
    CANCEL = "cancel"
    SHUTDOWN = "shutdown"
    LOST = "lost"


class AbortSignal:
    """Set once, readable from any thread. Handlers in threads look at it; tasks are also cancelled."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.reason: StopReason | None = None

    @property
    def aborted(self) -> bool:
        return self._event.is_set()

    def abort(self, reason: StopReason) -> None:
        """Ask the handler to stop. The first reason stays."""
        if not self._event.is_set():
            self.reason = reason
            self._event.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Block this thread until asked to stop, at most ``timeout`` seconds; whether it was asked."""
        return self._event.wait(timeout)
