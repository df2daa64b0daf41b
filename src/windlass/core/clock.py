"""Time, injected. The only module in the package that may read the system's clocks.

Stores decide by their own clock, so production requests carry no time. A clock that a test drives (see
``windlass.testing.ManualClock``) stamps every request instead, and all delays, leases and expiries obey it.
No code asks which of the two it has: ``stamp`` does nothing in production, and stores look at ``moment``.
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
    """A call that is to come."""

    def cancel(self) -> None:
        """Cancel the call. Idempotent."""
        ...


class Timed(Protocol):
    """What may carry a time: a request."""

    now_ms: int | None


@runtime_checkable
class Clock(Protocol):
    """What the package asks of time."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, UTC."""
        ...

    def stamp(self, request: Timed) -> None:
        """Say when ``request`` counts, if this clock decides that and not the store's."""
        ...

    def monotonic_ms(self) -> float:
        """A clock that never goes back, for durations and local deadlines."""
        ...

    async def wait(self, event: asyncio.Event, timeout_ms: float | None) -> bool:
        """Wait for ``event`` at most ``timeout_ms`` of this clock; False when time ran out."""
        ...

    def timeout(self, timeout_ms: float | None) -> AbstractAsyncContextManager[object]:
        """Raise ``TimeoutError`` out of what is inside, as ``asyncio.timeout`` does, by this clock."""
        ...

    def call_later(self, delay_ms: float, callback: Callable[[], object]) -> Timer:
        """Call ``callback`` on the running event loop when ``delay_ms`` of this clock have passed."""
        ...

    def run_apart(self, name: str, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run ``main`` where nothing on the running event loop holds it up: on a thread of its own.

        A clock that is to know when everything has come to rest may run it on the loop instead.
        """
        ...


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
    """Run ``main`` on a thread called ``name``, with an event loop of its own."""
    threading.Thread(target=lambda: asyncio.run(main()), name=name, daemon=True).start()


SYSTEM_CLOCK = SystemClock()


def moment(given_ms: int | None, read: Callable[[], int]) -> int:
    """When a request counts: at the time that it carries, else at what ``read``, the store's clock, says."""
    return read() if given_ms is None else given_ms


#: How long the time of a store stands still when the machine's clock is behind it.
HOLD_MS = 5_000


class SteadyClock:
    """The time of a store that uses the node's clock, as one process sees it.

    A machine whose clock is behind what the store has seen was set back a little, or a process with a wrong
    clock has been here. The store's time then stands still, but not forever: after ``HOLD_MS`` it follows
    the machine's clock, also backwards. The store that keeps the stamp sees that the answer is below
    it, and puts right what was to end by the old time.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._last_ms = 0
        self._stamp_ms = 0
        self._behind_since: float | None = None
        self._told = False

    def now_ms(self, stamp_ms: int = 0) -> int:
        """The time now; ``stamp_ms`` is the last that the store has written down."""
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
