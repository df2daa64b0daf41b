"""Injected clocks. Only this module of the package may read the system's clocks.

Stores decide by their own clock, so production requests carry no time. A clock that a test controls (see
``windlass.testing.ManualClock``) stamps every request instead, and all delays, leases and expiries follow it.
No code needs to know which clock it has: ``stamp`` does nothing in production, and stores call ``moment``.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, runtime_checkable

from windlass.core.paths import took

log: logging.Logger = logging.getLogger("windlass.clock")


class Timer(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Cancel the call. Idempotent."""


class Timed(Protocol):
    """A request, which may carry a time."""

    now_ms: int | None


@runtime_checkable
class Clock(Protocol):
    """The clock that all code uses: current time, waiting, timeouts and timers."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, UTC."""

    def stamp(self, request: Timed) -> None:
        """Set the time of ``request``, if this clock decides it instead of the store's clock."""

    def monotonic_ms(self) -> float:
        """Monotonic time in milliseconds, for durations and local deadlines."""

    async def wait(self, event: asyncio.Event, timeout_ms: float | None) -> bool:
        """Wait for ``event`` for at most ``timeout_ms`` of this clock. False if the time ran out."""

    def timeout(self, timeout_ms: float | None) -> AbstractAsyncContextManager[object]:
        """A context manager like ``asyncio.timeout``, but by this clock."""

    def call_later(self, delay_ms: float, callback: Callable[[], object]) -> Timer:
        """Call ``callback`` on the running event loop when ``delay_ms`` of this clock have passed."""

    def run_apart(self, name: str, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run ``main`` on its own thread, where nothing on the current event loop can delay it.

        A test clock that must know when all code is idle may run it on the event loop instead.
        """


class SystemClock:
    """The machine's own clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def stamp(self, request: Timed) -> None:
        """Production requests carry no time."""

    def monotonic_ms(self) -> float:
        return time.monotonic() * 1000

    async def wait(self, event: asyncio.Event, timeout_ms: float | None) -> bool:
        if timeout_ms is None:
            await event.wait()
            return True
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await event.wait()
        except TimeoutError:
            return event.is_set()
        return True

    def timeout(self, timeout_ms: float | None) -> AbstractAsyncContextManager[object]:
        return asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000)

    def call_later(self, delay_ms: float, callback: Callable[[], object]) -> Timer:
        return asyncio.get_running_loop().call_later(delay_ms / 1000, callback)

    def run_apart(self, name: str, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        took("worker.lease_thread")
        run_in_thread(name, main)


def run_in_thread(name: str, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run ``main`` on a thread called ``name``, with its own event loop."""
    threading.Thread(target=lambda: asyncio.run(main()), name=name, daemon=True).start()


SYSTEM_CLOCK = SystemClock()


def moment(given_ms: int | None, read: Callable[[], int]) -> int:
    """The time of a request: the time that it carries, else the store's clock (``read``)."""
    return read() if given_ms is None else given_ms


#: How long the time of a store stands still while the machine's clock is behind it.
HOLD_MS = 5_000


class SteadyClock:
    """The time of a store that uses the machine's clock, as one process sees it.

    The machine's clock can be behind the last time in the store: it was set back, or a process with a wrong
    clock has used the store. The store's time then stands still, but only for ``HOLD_MS``. After that it
    follows the machine's clock, even backwards. The store notices that the time is before its last stamp, and
    corrects the times that were computed with the old clock (``engine.timing.set_back``).
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._last_ms = 0
        self._stamp_ms = 0
        self._behind_since: float | None = None
        self._told = False

    def now_ms(self, stamp_ms: int = 0) -> int:
        """The current time. ``stamp_ms`` is the last time that the store has recorded."""
        if stamp_ms < self._stamp_ms:  # another process has set the store back
            self._last_ms = stamp_ms
        self._stamp_ms = stamp_ms
        machine_ms, last_ms = self._clock.now_ms(), max(self._last_ms, stamp_ms)
        if machine_ms >= last_ms:
            self._behind_since, self._told = None, False
        elif self._is_held():
            return last_ms
        elif not self._told:
            self._told = True
            log.warning(
                "the time of the store was %.1f s ahead of this machine's clock and is set back to it",
                (last_ms - machine_ms) / 1000,
            )
        self._last_ms = machine_ms
        return machine_ms

    def _is_held(self) -> bool:
        now, since = self._clock.monotonic_ms(), self._behind_since  # once: another thread may change it
        if since is None:
            self._behind_since = since = now
        return now - since < HOLD_MS
