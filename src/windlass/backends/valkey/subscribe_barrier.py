"""Holds requests back while a subscription is on its way. Shared by all clients of a store in one process."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future

#: No request waits longer than this for a subscription, nor longer than this share of its timeout.
_PATIENCE_S, _SHARE = 1.0, 0.2


class SubscribeBarrier:
    """Open unless a client subscribes right now."""

    def __init__(self, timeout_s: float) -> None:
        self._patience_s = min(_PATIENCE_S, _SHARE * timeout_s)
        self._lock = threading.Lock()
        self._shut: dict[int, Future[None]] = {}
        #: Read without the lock: one attribute look-up per request when no client subscribes.
        self.is_shut = False

    def shut(self, owner: object) -> None:
        with self._lock:
            self._shut.setdefault(id(owner), Future())
            self.is_shut = True

    def open(self, owner: object) -> None:
        with self._lock:
            future = self._shut.pop(id(owner), None)
            self.is_shut = bool(self._shut)
        if future is not None:
            future.set_result(None)

    async def passed(self) -> None:
        """Wait until all subscriptions that are on their way have arrived."""
        with self._lock:
            waiting = [asyncio.wrap_future(future) for future in self._shut.values()]
        if waiting:
            await asyncio.wait(waiting, timeout=self._patience_s)
