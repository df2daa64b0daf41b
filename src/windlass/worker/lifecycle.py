"""Start and stop of a worker. Parts open one after the other and close in reverse, in bounded time.

A start that fails closes the parts that it opened. A stop ends in time even if the store does not answer:
parts that are not closed by then are abandoned, and their names are reported.
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
from windlass.errors import ClosedError, WrongLoopError
from windlass.worker.emitter import Emitter

log: Final = logging.getLogger("windlass.worker")

#: How long a stop may take in addition to the grace and the wait after a cancel.
LAST_MS = 2_000
#: The part of it that is reserved for closing parts, after the last settlements.
PARTS_MS = 1_000
#: The part of that which is kept in reserve, and the minimum time for each part.
_SPARE_MS, _MOMENT_MS = 400, 50
#: Iterations of the loop that a forced stop waits, for handlers that end as soon as they are cancelled.
_TURNS = 10
#: How much longer than the stop a caller on another loop waits for it.
_ANSWER_S = 1
_SIGNALS = (signal.SIGTERM, signal.SIGINT)

Close = Callable[[], Awaitable[None] | None]


class Stop:
    """The time budget of a stop: the grace, the wait after a cancel, and two seconds for the rest."""

    def __init__(self, clock: Clock, *, grace_ms: float, cancel_wait_ms: float) -> None:
        self._clock = clock
        #: How long a stop takes at most.
        self.most_ms: float = grace_ms + cancel_wait_ms + LAST_MS
        self._end_ms = float("inf")
        #: Set when jobs are released instead of waiting for them.
        self.forced: asyncio.Event = asyncio.Event()

    def at_once(self) -> Stop:
        """Return a stop without grace, for a worker that has not started."""
        stop = Stop(self._clock, grace_ms=0, cancel_wait_ms=0)
        stop.begin()
        return stop

    def begin(self) -> None:
        """Start the time of the stop."""
        most_ms = LAST_MS if self.forced.is_set() else self.most_ms
        self._end_ms = min(self._end_ms, self._clock.monotonic_ms() + most_ms)

    def force(self) -> None:
        """Skip the grace. Running jobs are released at once, and two seconds are left."""
        self.forced.set()
        if self._end_ms < float("inf"):
            self._end_ms = min(self._end_ms, self._clock.monotonic_ms() + LAST_MS)

    @property
    def is_over(self) -> bool:
        """Whether there is no time left for the last settlements."""
        return self.left_ms(PARTS_MS) <= 0

    def left_ms(self, keep_ms: float = _SPARE_MS) -> float:
        """The time left if ``keep_ms`` is reserved for the following steps."""
        return self._end_ms - keep_ms - self._clock.monotonic_ms()

    async def wait_unless_forced(self, event: asyncio.Event, ms: float) -> bool:
        """Wait for ``event``, at most ``ms``. Returns whether it is set.

        A forced stop only waits a few iterations of the loop.
        """
        if not self.forced.is_set() and not event.is_set():
            await self._wait_first(event, ms)
        for _ in range(_TURNS if self.forced.is_set() else 0):
            if not event.is_set():
                await asyncio.sleep(0)
        return event.is_set()

    async def wait_for(
        self, task: asyncio.Future[Any], *, keep_ms: float = _SPARE_MS, most_ms: float = float("inf")
    ) -> bool:
        """Wait for ``task`` while there is time, but at least briefly. Returns whether it has ended."""
        ended = asyncio.Event()
        task.add_done_callback(lambda _: ended.set())
        give_up_ms = self._clock.monotonic_ms() + most_ms
        left_ms = max(self.left_ms(keep_ms), _MOMENT_MS)
        while not task.done() and left_ms > 0:
            await self._wait_first(ended, min(left_ms, most_ms))
            left_ms = min(self.left_ms(keep_ms), give_up_ms - self._clock.monotonic_ms())
        return task.done()

    async def _wait_first(self, event: asyncio.Event, ms: float) -> None:
        """Wait for the event, the timeout or ``force``. Being cancelled forces the stop."""
        waits: list[asyncio.Task[Any]] = [asyncio.create_task(event.wait())]
        if not self.forced.is_set():
            waits.append(asyncio.create_task(self.forced.wait()))
        waits.append(asyncio.create_task(_sleep(self._clock, ms)))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self.force()
        finally:
            for wait in waits:
                wait.cancel()


async def _sleep(clock: Clock, ms: float) -> None:
    await clock.wait(asyncio.Event(), ms)


class Parts:
    """The open parts, in the order of opening."""

    def __init__(self) -> None:
        self._open: list[tuple[str, Close, float]] = []

    def opened(self, name: str, close: Close, *, most_ms: float = LAST_MS) -> None:
        """Register the open part ``name``. ``close`` closes it and may take ``most_ms``."""
        self._open.append((name, close, most_ms))
        reach("worker.opened", part=name)

    async def close(self, stop: Stop) -> list[str]:
        """Close all parts, the last first. Returns the names of parts that ran out of time."""
        abandoned: list[str] = []
        while self._open:
            name, close, most_ms = self._open.pop()
            if not await close_part(stop, name, close, most_ms):
                abandoned.append(name)
        return abandoned


async def close_part(stop: Stop, name: str, close: Close, most_ms: float = LAST_MS) -> bool:
    """Close one part. Returns False when it was abandoned."""
    begun = asyncio.Event()
    task = asyncio.ensure_future(_closed(name, close, begun))
    in_time = await stop.wait_for(task, most_ms=most_ms)
    while task.cancelled() and not begun.is_set():  # by other code, before its first step
        task = asyncio.ensure_future(_closed(name, close, begun))
        in_time = await stop.wait_for(task, most_ms=most_ms)
    if not in_time:
        task.cancel()
    reach("worker.close_part", part=name)
    return in_time


async def _closed(name: str, close: Close, begun: asyncio.Event) -> None:
    begun.set()
    try:
        answer = close()
        if inspect.isawaitable(answer):
            await answer
    except Exception:
        log.exception("%s failed to close", name)


class Lifecycle:
    """Starts a worker once and stops it once. Any number of callers may ask for either, at any time.

    ``open_parts`` opens the parts one after the other and registers each with ``Parts``. A start that fails
    or is cancelled closes these again and may be tried again. ``finish_work`` ends the running jobs and
    returns the names of those that did not end. The parts in ``close_last`` are closed at the very end.
    """

    def __init__(
        self,
        stop: Stop,
        emitter: Emitter,
        *,
        open_parts: Callable[[Parts], Awaitable[None]],
        finish_work: Callable[[Stop], Awaitable[list[str]]],
        close_last: Mapping[str, Close],
    ) -> None:
        self._stop = stop
        self._emitter = emitter
        self._open_parts = open_parts
        self._finish_work = finish_work
        self._close_last = close_last
        self._parts = Parts()
        #: The event loop that runs the worker, from the start on.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening: asyncio.Task[None] | None = None
        #: Callers of the current start that were not cancelled.
        self._starters = 0
        self._closing: asyncio.Task[None] | None = None
        #: new, starting, running, closing, closed
        self.state: str = "new"
        #: Names of handlers, store calls and parts that the stop could not wait for.
        self.left_behind: list[str] = []

    @property
    def is_running(self) -> bool:
        return self.state == "running"

    @property
    def has_begun(self) -> bool:
        """Whether a start has begun and has not failed. What it prepares is no longer complete."""
        return self.state != "new"

    @property
    def is_closing(self) -> bool:
        """Whether a close was requested. Stays true once the worker is closed."""
        return self._closing is not None

    # --- start ---------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open all parts. Idempotent. Raises ``ClosedError`` once a close was requested.

        All callers share one start. It is cancelled when all of them were cancelled.
        """
        if self.is_closing:
            raise ClosedError("the worker", "make another one")
        if self.state == "running":
            return
        if self._opening is None:
            self.state, self._starters = "starting", 0
            self._loop = asyncio.get_running_loop()
            self._opening = asyncio.create_task(self._open(), name="windlass-start")
        opening = self._opening
        self._starters += 1
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            if opening.done() and self.is_closing:
                raise self._closed_early() from None
            self._starters -= 1
            if self._starters:
                raise
            opening.cancel()
            await asyncio.wait([opening])
            if self.state == "running":  # it finished before the cancel
                self.begin_close(force=True)
                await self._wait_until_closed()
            raise

    def check_wanted(self) -> None:
        """Raise ``ClosedError`` if a close was requested during the start."""
        if self.is_closing:
            raise self._closed_early()

    def _closed_early(self) -> ClosedError:
        return ClosedError("the worker", "it had not started yet; make another one")

    async def _open(self) -> None:
        try:
            await self._open_parts(self._parts)
        except BaseException:
            self.left_behind += await self._parts.close(self._stop.at_once())
            self._opening = None
            if self.state != "closed":
                self.state, self._loop = "new", None  # it may be started again
            raise
        self.state, self._opening = "running", None
        self._emitter.emit("ready")

    # --- stop ----------------------------------------------------------------------------------------

    async def close(self, *, force: bool = False) -> None:
        """Close on the worker's own loop and wait for the end. Cancelling this call forces the close."""
        own = self._loop
        if self._is_over:
            return
        if own is None or own is asyncio.get_running_loop():
            if await self._close_here(force=force):
                raise asyncio.CancelledError
        elif own.is_closed():
            await self._close_without_loop()
        else:
            await self._close_on(own, force=force)

    @property
    def _is_over(self) -> bool:
        """Whether a close has ended. Its task must not be awaited on another loop, even to find this out."""
        return self.state == "closed" and self._closing is not None and self._closing.done()

    async def _close_here(self, *, force: bool) -> bool:
        self.begin_close(force=force)
        return await self._wait_until_closed()

    async def _close_without_loop(self) -> None:
        """Close what needs no loop of its own, because the worker's loop has ended, and say so."""
        self._loop, self.state = asyncio.get_running_loop(), "closed"
        self._closing = asyncio.create_task(
            self._close_last_parts(self._stop.at_once()), name="windlass-close"
        )
        await asyncio.wait([self._closing])
        advice = "its jobs go to other workers when their leases end. Close a worker before its loop ends"
        raise WrongLoopError("is closed", advice)

    async def _close_on(self, own: asyncio.AbstractEventLoop, *, force: bool) -> None:
        """Close on the loop of another thread. Raises ``WrongLoopError`` if that is not possible."""
        if not own.is_running():
            advice = "close it there: loop.run_until_complete(worker.close())"
            raise WrongLoopError("does not run now", advice)
        closing = asyncio.run_coroutine_threadsafe(self._close_here(force=force), own)
        most_s = self._stop.most_ms / 1_000 + _ANSWER_S
        try:
            async with asyncio.timeout(most_s):
                await asyncio.wrap_future(closing)
        except TimeoutError:
            advice = "a handler may block it, or it was stopped. The worker closes when it runs again"
            raise WrongLoopError(f"did not close it within {most_s:g} s", advice) from None

    async def run_until_done(self, over: asyncio.Future[None]) -> None:
        """Wait for ``over``, then close.

        Cancelling this call closes gracefully; a second cancel forces the close.
        """
        try:
            if not self.is_closing:
                await asyncio.wait([over])
        except asyncio.CancelledError:
            log.info("stopping: the task that runs the worker was cancelled")
            self.begin_close()
            await self._wait_until_closed()
            raise
        await self.close()

    def begin_close(self, *, force: bool = False) -> None:
        """Start to close in the background. All callers share one close."""
        if force:
            self._stop.force()
        if self._closing is None:
            self._stop.begin()
            self._start_close_task()

    def _start_close_task(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._closing = asyncio.create_task(self._close(), name="windlass-close")
        self._closing.add_done_callback(self._closing_ended)

    def _closing_ended(self, closing: asyncio.Task[None]) -> None:
        """Restart a close whose task was cancelled before its first step, with all tasks of the loop."""
        if closing.cancelled() and self.state != "closed" and not self._stop.is_over:
            log.error("the close of the worker was cancelled; it continues as a forced close")
            self._stop.force()
            self._start_close_task()

    def handle_signals(self) -> None:
        """Close at the first SIGTERM or SIGINT; force the close at the second."""
        asked = 0

        def stop() -> None:
            nonlocal asked
            asked += 1
            log.info("stopping%s", "" if asked == 1 else " at once")
            self.begin_close(force=asked > 1)

        for number in _SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, stop)

    def leave_signals(self) -> None:
        """Undo ``handle_signals``: they have their default effect again."""
        for number in _SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(number)

    async def _wait_until_closed(self) -> bool:
        """Wait for the end of the close. Being cancelled forces it. Returns whether that happened."""
        cancelled = False
        self._emitter.leave_current()
        while self._closing is not None and not self._closing.done():
            try:
                await asyncio.wait([self._closing])
            except asyncio.CancelledError:
                cancelled = True
                self._stop.force()
        if self._closing is not None:
            self._closing.result()
        return cancelled

    async def _close(self) -> None:
        """Stop a pending start, finish the work, and close all parts."""
        stop = self._stop
        if self._opening is not None:
            self._opening.cancel()
            if not await stop.wait_for(self._opening):
                self.left_behind.append("the start of the worker")
        if self.is_running:
            self.state = "closing"
            self._emitter.emit("closing")
        if self.state == "closing":
            self.left_behind += await self._finish_work(stop)
            # Callbacks about the last jobs may use what the following steps close.
            await stop.wait_for(asyncio.ensure_future(self._emitter.settle()), keep_ms=PARTS_MS)
        self.left_behind += await self._parts.close(stop)
        await self._close_last_parts(stop)
        before, self.state = self.state, "closed"
        if before == "closing":
            self._emitter.emit("closed")
            await stop.wait_for(asyncio.ensure_future(self._emitter.settle()))
        if self.left_behind:
            log.error("the worker stopped without waiting for: %s", "; ".join(self.left_behind))

    async def _close_last_parts(self, stop: Stop) -> None:
        for name, close in self._close_last.items():
            if not await close_part(stop, name, close):
                self.left_behind.append(name)
