"""Time, injected. The only module in the package that may read the system's clocks.

Stores decide by their own clock, so production requests carry no time (``now_ms is None``). A clock
that is *driven* (see ``windlass.testing.ManualClock``) stamps every request instead, and all delays,
leases and expiries obey it.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol, runtime_checkable


@runtime_checkable
class Clock(Protocol):
    """What the package asks of time."""

    @property
    def driven(self) -> bool:
        """True when a test moves this clock: requests then carry its time."""
        ...

    def now_ms(self) -> int:
        """Milliseconds since 1970, UTC."""
        ...

    def monotonic_ms(self) -> float:
        """A clock that never goes back, for durations and local deadlines."""
        ...

    async def wait(self, event: asyncio.Event, timeout_ms: float | None) -> bool:
        """Wait for ``event`` at most ``timeout_ms`` of this clock; False when time ran out."""
        ...


class SystemClock:
    """The machine's own clocks."""

    driven = False

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

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


SYSTEM_CLOCK = SystemClock()


class SteadyClock:
    """Wall-clock milliseconds that never go back, for stores that use the node's clock."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._last_ms = 0

    def now_ms(self, at_least: int = 0) -> int:
        """The time, raised to what was seen before and to ``at_least`` (the store's last stamp)."""
        self._last_ms = max(self._last_ms, at_least, self._clock.now_ms())
        return self._last_ms
