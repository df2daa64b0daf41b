"""How calls go from an event loop to the thread that writes.

Calls are handed over once in each turn of the loop: those of many tasks wake the thread once, and share a
transaction. Nothing is written on the loop itself: a disk that hesitates must stop neither the caller's other
tasks nor the timers that keep each call's timeout.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from windlass.backend.calls import Deadline

if TYPE_CHECKING:
    from windlass.backend.calls import StoreCall
    from windlass.backend.local.serving_thread import ServingThread


class Handover:
    """The calls of one event loop that the thread has not got yet; used on that loop only."""

    def __init__(self, loop: asyncio.AbstractEventLoop, writer: ServingThread) -> None:
        self.loop = loop
        self._writer = writer
        self._calls: list[StoreCall[Any]] = []

    def add(self, call: StoreCall[Any]) -> None:
        """Give ``call`` to the thread at the end of this turn of the loop."""
        if not self._calls:
            self.loop.call_soon(self.flush)
        self._calls.append(call)

    def flush(self) -> None:
        """Give the thread what has gathered."""
        if self._calls:
            calls, self._calls = self._calls, []
            Deadline(calls)
            self._writer.put(calls)
