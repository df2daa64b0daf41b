"""Whether an object was closed, and the listeners to wake when it is.

A store, a queue and a reader of events each have a ``Closing``. Code that waits in a loop checks it after
every wait. Closing wakes the listeners, so no wait continues after the close.
"""

from __future__ import annotations

import threading
from weakref import WeakSet

from windlass.backend.protocol import Listener
from windlass.errors import ClosedError


class Closing:
    """Starts open. May be closed, and opened again, from any thread."""

    def __init__(self, what: str, advice: str) -> None:
        self._what = what
        self._advice = advice
        self._lock = threading.Lock()
        self._listeners: WeakSet[Listener] = WeakSet()
        self.closed: bool = False

    def error(self) -> ClosedError:
        """The error for calls after the close."""
        return ClosedError(self._what, self._advice)

    def check(self) -> None:
        """Raise ``ClosedError`` if it is closed."""
        if self.closed:
            raise self.error()

    def watch(self, listener: Listener) -> None:
        """Wake ``listener`` on close; at once if this is already closed. Keeps only a weak reference."""
        with self._lock:
            self._listeners.add(listener)
        if self.closed:
            listener.wake()

    def close(self) -> None:
        """Mark as closed and wake every listener; their owners then call ``check``. Idempotent."""
        with self._lock:
            self.closed = True
            listeners = list(self._listeners)
        for listener in listeners:
            listener.wake()

    def reopen(self) -> None:
        """Undo ``close``."""
        self.closed = False
