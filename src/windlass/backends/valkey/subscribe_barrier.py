"""Makes requests wait while a subscription is being confirmed. Shared by all clients of a store in a process.

A caller that listens and then reads the store must miss no hint: its request waits here until the server has
confirmed the subscription.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future

#: No request waits longer than this for a subscription, nor longer than this share of its timeout.
_MAX_WAIT_S, _SHARE = 1.0, 0.2


class SubscribeBarrier:
    """Open unless a client has a subscription that is not confirmed yet. Usable from any thread."""

    def __init__(self, timeout_s: float) -> None:
        self._max_wait_s = min(_MAX_WAIT_S, _SHARE * timeout_s)
        self._lock = threading.Lock()
        self._closed_by: dict[int, Future[None]] = {}
        #: Read without the lock, because every request looks at it.
        self.is_closed = False

    def close(self, owner: object) -> None:
        """Make requests wait until ``owner`` opens the barrier."""
        with self._lock:
            self._closed_by.setdefault(id(owner), Future())
            self.is_closed = True

    def open(self, owner: object) -> None:
        """Let requests pass, as far as ``owner`` is concerned."""
        with self._lock:
            future = self._closed_by.pop(id(owner), None)
            self.is_closed = bool(self._closed_by)
        if future is not None:
            future.set_result(None)

    async def wait(self) -> None:
        """Wait until all clients that have closed the barrier have opened it, or the time is over."""
        with self._lock:
            waiting = [asyncio.wrap_future(future) for future in self._closed_by.values()]
        if waiting:
            await asyncio.wait(waiting, timeout=self._max_wait_s)
