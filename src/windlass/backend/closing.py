"""Whether something was closed, and which waiters must be notified at once.

A store, a queue and a reader of events each have one. A waiter checks it after every turn of its loop.
Closing wakes the listeners, so no wait continues after the close.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING
from weakref import WeakSet

from windlass.errors import ClosedError

if TYPE_CHECKING:
    from windlass.backend.protocol import Listener


class Closing:
    """Open at first. May be closed, and opened again, from any thread."""

    def __init__(self, what: str, advice: str) -> None:
        self._what = what
        self._advice = advice
        self._lock = threading.Lock()
        self._listeners: WeakSet[Listener] = WeakSet()
        self.closed: bool = False

    def error(self) -> ClosedError:
        """The error that later calls raise."""
        return ClosedError(self._what, self._advice)

    def check(self) -> None:
        """Raise ``ClosedError`` if it is closed."""
        if self.closed:
            raise self.error()

    def watch(self, listener: Listener) -> None:
        """Wake ``listener`` when it is closed, also if it is closed already."""
        with self._lock:
            self._listeners.add(listener)
        if self.closed:
            listener.wake()

    def close(self) -> None:
        """Wake every waiter with the error. Idempotent."""
        with self._lock:
            self.closed = True
            listeners = list(self._listeners)
        for listener in listeners:
            listener.wake()

    def reopen(self) -> None:
        """Undo ``close``."""
        self.closed = False
