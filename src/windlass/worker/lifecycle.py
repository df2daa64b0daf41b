"""Start and stop of a worker: parts open one after the other and close in reverse, in bounded time.

A start that fails undoes what it did. A stop ends in time even if the store does not answer: parts that are
not closed by then are abandoned and named.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import signal
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from windlass.core.clock import Clock
from windlass.core.probe import reach
from windlass.errors import ClosedError
from windlass.worker.emitter import Emitter

log: Final = logging.getLogger("windlass.worker")

#: What a stop may take besides the grace and the wait after a cancel ...
LAST_MS = 2_000
#: ... of which this much is kept for closing parts, after the last settlements ...
PARTS_MS = 1_000
#: ... and this much for what turns up after all of that: a part always gets a moment.
_SPARE_MS, _MOMENT_MS = 400, 50
#: Turns of the loop that a stop in a hurry waits: handlers end in them that only had to be notified.
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

    def at_once(self) -> Stop:
        """A stop without a wait, for a worker that has not started."""
        stop = Stop(self._clock, grace_ms=0, cancel_wait_ms=0)
        stop.begin()
        return stop

    def begin(self) -> None:
        """Start the clock of the stop."""
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
    """The parts that are open, in the order of opening."""

    def __init__(self) -> None:
        self._open: list[tuple[str, Close, float]] = []

    def opened(self, name: str, close: Close, *, most_ms: float = LAST_MS) -> None:
        """``name`` is open, and ``close`` closes it, which may take ``most_ms``."""
        self._open.append((name, close, most_ms))
        reach("worker.opened", part=name)

    async def close(self, stop: Stop) -> list[str]:
        """Close all parts, the last first; returns the names of those that ran out of time."""
        abandoned: list[str] = []
        while self._open:
            name, close, most_ms = self._open.pop()
            if not await close_part(stop, name, close, most_ms):
                abandoned.append(name)
        return abandoned


async def close_part(stop: Stop, name: str, close: Close, most_ms: float = LAST_MS) -> bool:
    """Close one part; False when that was abandoned."""
    task = asyncio.ensure_future(_closed(name, close))
    in_time = await stop.wait_for(task, most_ms=most_ms)
    if not in_time:
        task.cancel()
    reach("worker.close_part", part=name)
    return in_time


async def _closed(name: str, close: Close) -> None:
    try:
        answer = close()
        if inspect.isawaitable(answer):
            await answer
    except Exception:
        log.exception("%s failed to close", name)


class Lifecycle:
    """Starts a worker and stops it, once each; both can be asked for at any time, by any number of callers.

    ``open_parts`` opens one part after the other and names each to ``Parts``: a start that fails, or is
    cancelled, undoes what it did and may be tried again. ``wind_up`` ends what runs and gives the names of
    what does not; ``last`` is closed at the very end.
    """

    def __init__(
        self,
        stop: Stop,
        emitter: Emitter,
        *,
        open_parts: Callable[[Parts], Awaitable[None]],
        wind_up: Callable[[Stop], Awaitable[list[str]]],
        last: Mapping[str, Close],
    ) -> None:
        self._stop = stop
        self._emitter = emitter
        self._open_parts = open_parts
        self._wind_up = wind_up
        self._last = last
        self._parts = Parts()
        self._opening: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        #: new, starting, running, closing, closed
        self.state: str = "new"
        #: What the stop could not wait for, by name: handlers, calls to the store, parts of the worker.
        self.left_behind: list[str] = []

    @property
    def is_running(self) -> bool:
        return self.state == "running"

    @property
    def is_closing(self) -> bool:
        """Whether a close was asked for, also long ago."""
        return self._closing is not None

    # --- start ---------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open all parts. Idempotent; ``ClosedError`` once a close was asked for."""
        if self.is_closing:
            raise ClosedError("the worker", "make another one")
        if self.state == "running":
            return
        if self._opening is None:
            self.state = "starting"
            self._opening = asyncio.create_task(self._open(), name="windlass-start")
        opening = self._opening
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            if opening.done() and self.is_closing:
                raise ClosedError("the worker", "it had not started yet; make another one") from None
            opening.cancel()
            await asyncio.wait([opening])
            if self.state == "running":  # it had finished when the cancel came
                self.begin_close(force=True)
                await self._closed_through_cancels()
            raise

    async def _open(self) -> None:
        try:
            await self._open_parts(self._parts)
        except BaseException:
            self.left_behind += await self._parts.close(self._stop.at_once())
            self.state, self._opening = "new", None  # it may be started again
            raise
        self.state, self._opening = "running", None
        self._emitter.emit("ready")

    # --- stop ----------------------------------------------------------------------------------------

    async def close(self, *, force: bool = False) -> None:
        """Wait for the end of a close; cancelling this call hurries it."""
        self.begin_close(force=force)
        if await self._closed_through_cancels():
            raise asyncio.CancelledError

    async def see_out(self, over: asyncio.Future[None]) -> None:
        """Wait until ``over``, then close; being cancelled is a graceful close, twice a hurried one."""
        try:
            if not self.is_closing:
                await asyncio.wait([over])
        except asyncio.CancelledError:
            log.info("stopping: the task that runs the worker was cancelled")
            self.begin_close()
            await self._closed_through_cancels()
            raise
        await self.close()

    def begin_close(self, *, force: bool = False) -> None:
        """Close in the background; all callers share one close."""
        if force:
            self._stop.hurry()
        if self._closing is None:
            self._stop.begin()
            self._close_apart()

    def _close_apart(self) -> None:
        self._closing = asyncio.create_task(self._close(), name="windlass-close")
        self._closing.add_done_callback(self._closing_ended)

    def _closing_ended(self, closing: asyncio.Task[None]) -> None:
        """All tasks of the loop were cancelled, this one before its first step: all is yet to be closed."""
        if closing.cancelled() and self.state != "closed" and not self._stop.is_over:
            log.error("the close of the worker was cancelled; it continues, in a hurry")
            self._stop.hurry()
            self._close_apart()

    def handle_signals(self) -> None:
        """Close at SIGTERM and SIGINT, at once at the second of them."""
        asked = 0

        def stop() -> None:
            nonlocal asked
            asked += 1
            log.info("stopping%s", "" if asked == 1 else " at once")
            self.begin_close(force=asked > 1)

        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop)

    async def _closed_through_cancels(self) -> bool:
        """Wait for the end of the close; being cancelled meanwhile hurries it. Whether that happened."""
        cancelled = False
        while self._closing is not None and not self._closing.done():
            try:
                await asyncio.wait([self._closing])
            except asyncio.CancelledError:
                cancelled = True
                self._stop.hurry()
        if self._closing is not None:
            self._closing.result()
        return cancelled

    async def _close(self) -> None:
        """The close itself."""
        stop = self._stop
        if self._opening is not None:
            self._opening.cancel()
            await stop.wait_for(self._opening)
        if self.is_running:
            self.state = "closing"
            self._emitter.emit("closing")
        if self.state == "closing":
            self.left_behind += await self._wind_up(stop)
        self.left_behind += await self._parts.close(stop)
        for name, close in self._last.items():
            if not await close_part(stop, name, close):
                self.left_behind.append(name)
        before, self.state = self.state, "closed"
        if before == "closing":
            self._emitter.emit("closed")
            await stop.wait_for(asyncio.ensure_future(self._emitter.settle()))
        if self.left_behind:
            log.error("the worker stopped without waiting for: %s", "; ".join(self.left_behind))
