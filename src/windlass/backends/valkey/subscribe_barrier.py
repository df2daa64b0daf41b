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
        #: The loop of each owner, and the future that requests wait for.
        self._closed_by: dict[object, tuple[asyncio.AbstractEventLoop, Future[None]]] = {}
        #: Owners whose barrier a request has passed, because it could not wait any longer.
        self._passed: set[object] = set()
        #: Read without the lock, because every request looks at it.
        self.is_closed = False

    def close(self, owner: object) -> None:
        """Make requests wait until ``owner``, a client of the running loop, opens the barrier."""
        with self._lock:
            self._closed_by.setdefault(owner, (asyncio.get_running_loop(), Future()))
            self.is_closed = True

    def open(self, owner: object) -> bool:
        """Let requests pass, as far as ``owner`` is concerned. Returns whether one has passed already, so
        that ``owner`` may have missed its hint."""
        with self._lock:
            _, future = self._closed_by.pop(owner, (None, None))
            self.is_closed = bool(self._closed_by)
            passed = owner in self._passed
            self._passed.discard(owner)
        if future is not None:
            future.set_result(None)
        return passed

    async def wait(self) -> None:
        """Wait until all clients that have closed the barrier have opened it, or the time is over."""
        with self._lock:
            self._forget_closed_loops()
            # A loop that stands still confirms nothing. When it runs again, its client wakes its listeners.
            still = {owner for owner, (loop, _) in self._closed_by.items() if not loop.is_running()}
            self._passed |= still
            closed_by = self._closed_by.items()
            waiting = [asyncio.wrap_future(future) for owner, (_, future) in closed_by if owner not in still]
        if not waiting:
            return
        _, late = await asyncio.wait(waiting, timeout=self._max_wait_s)
        if late:
            with self._lock:
                self._passed.update(self._closed_by)

    def _forget_closed_loops(self) -> None:
        """Remove owners whose loop was closed before their subscription was confirmed: they never open."""
        self._closed_by = {
            owner: (loop, future) for owner, (loop, future) in self._closed_by.items() if not loop.is_closed()
        }
        self._passed.intersection_update(self._closed_by)
        self.is_closed = bool(self._closed_by)
