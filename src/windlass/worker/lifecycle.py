"""How a worker comes and goes: parts that are opened one after the other and let go in reverse, in a bound.

A start that fails undoes what it did. A stop ends in time whatever the store does: what does not come to an
end by then is abandoned, and named.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from windlass.core.clock import Clock
from windlass.core.probe import reach

log: Final = logging.getLogger("windlass.worker")

#: What a stop may take besides the grace and the wait after a cancel ...
LAST_MS = 2_000
#: ... of which so much is kept for letting go of parts, after the last settlements ...
PARTS_MS = 1_000
#: ... and so much for what turns up after all of that: a part always gets a moment.
_SPARE_MS, _MOMENT_MS = 400, 50
#: Turns of the loop that a stop in a hurry waits: handlers end in them that only had to be told.
_TURNS = 10

Close = Callable[[], Awaitable[None] | None]


class Stop:
    """The time that a stop takes: the grace, the wait after a cancel, and two seconds for the rest."""

    def __init__(self, clock: Clock, *, grace_ms: float, cancel_wait_ms: float) -> None:
        self._clock = clock
        self._most_ms = grace_ms + cancel_wait_ms + LAST_MS
        self._end_ms = float("inf")
        #: Set when nothing is to be waited for that can be given back.
        self.hurried: asyncio.Event = asyncio.Event()

    def begin(self) -> None:
        """The time runs from now on."""
        most_ms = LAST_MS if self.hurried.is_set() else self._most_ms
        self._end_ms = min(self._end_ms, self._clock.monotonic_ms() + most_ms)

    def hurry(self) -> None:
        """Give back at once what runs; two seconds are left."""
        self.hurried.set()
        if self._end_ms < float("inf"):
            self._end_ms = min(self._end_ms, self._clock.monotonic_ms() + LAST_MS)

    @property
    def is_over(self) -> bool:
        """Whether even the last settlements are not waited for any more."""
        return self.left_ms(PARTS_MS) <= 0

    def left_ms(self, keep_ms: float = _SPARE_MS) -> float:
        """How much time is left if ``keep_ms`` are kept for what follows."""
        return self._end_ms - keep_ms - self._clock.monotonic_ms()

    async def wait_unhurried(self, event: asyncio.Event, ms: float) -> bool:
        """Wait for ``event`` at most ``ms``, in a hurry a few turns of the loop; whether it is set."""
        if not self.hurried.is_set() and not event.is_set():
            await self._first_of(event, ms)
        for _ in range(_TURNS if self.hurried.is_set() else 0):
            if not event.is_set():
                await asyncio.sleep(0)
        return event.is_set()

    async def wait_for(
        self, task: asyncio.Future[Any], *, keep_ms: float = _SPARE_MS, most_ms: float = float("inf")
    ) -> bool:
        """Wait for the end of ``task`` while there is time, and a moment in any case; whether it ended."""
        ended = asyncio.Event()
        task.add_done_callback(lambda _: ended.set())
        give_up_ms = self._clock.monotonic_ms() + most_ms
        left_ms = max(self.left_ms(keep_ms), _MOMENT_MS)
        while not task.done() and left_ms > 0:
            await self._first_of(ended, min(left_ms, most_ms))
            left_ms = min(self.left_ms(keep_ms), give_up_ms - self._clock.monotonic_ms())
        return task.done()

    async def _first_of(self, event: asyncio.Event, ms: float) -> None:
        """Until the event, the end of the time, or the begin of a hurry; being cancelled is a hurry."""
        waits: list[asyncio.Task[Any]] = [asyncio.create_task(event.wait())]
        if not self.hurried.is_set():
            waits.append(asyncio.create_task(self.hurried.wait()))
        waits.append(asyncio.create_task(_pass(self._clock, ms)))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self.hurry()
        finally:
            for wait in waits:
                wait.cancel()


async def _pass(clock: Clock, ms: float) -> None:
    await clock.wait(asyncio.Event(), ms)


class Parts:
    """What was opened so far, in order."""

    def __init__(self) -> None:
        self._open: list[tuple[str, Close, float]] = []

    def opened(self, name: str, close: Close, *, most_ms: float = LAST_MS) -> None:
        """``name`` is open, and ``close`` lets go of it, which may take ``most_ms``."""
        self._open.append((name, close, most_ms))
        reach("worker.opened", part=name)

    async def close(self, stop: Stop) -> list[str]:
        """Let go of all, the last first; the names of those that were abandoned, for want of time."""
        abandoned: list[str] = []
        while self._open:
            name, close, most_ms = self._open.pop()
            if not await let_go(stop, name, close, most_ms):
                abandoned.append(name)
        return abandoned


async def let_go(stop: Stop, name: str, close: Close, most_ms: float = LAST_MS) -> bool:
    """Close one part; False when that was abandoned."""
    task = asyncio.ensure_future(_closed(name, close))
    in_time = await stop.wait_for(task, most_ms=most_ms)
    if not in_time:
        task.cancel()
    reach("worker.let_go", part=name)
    return in_time


async def _closed(name: str, close: Close) -> None:
    try:
        answer = close()
        if inspect.isawaitable(answer):
            await answer
    except Exception:
        log.exception("%s failed to close", name)
