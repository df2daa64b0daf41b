"""Clocks that tests control.

``ManualClock`` is for one event loop: ``advance`` wakes sleepers in the order of their due times and lets
each run until the loop is idle before it continues, so an hour of a worker's life takes milliseconds.
``SharedClock`` is for several processes: its time is in a file that all of them read.

Requests to the store carry the time of both, so delays, leases and expiries follow them too.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import mmap
import os
import struct
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from windlass.core.clock import Timed, Timer, run_in_thread
from windlass.errors import ConfigError

#: The default start: 2025-06-15, 15:06:40 UTC.
START_MS = 1_750_000_000_000
#: Consecutive turns of the event loop without work after which it counts as idle.
_QUIET_TURNS = 30
#: Real seconds in which hints from a store in other threads or processes should arrive.
_LINGER = 0.005


class _Timed(ABC):
    """Methods that every clock with ``call_later`` shares."""

    @abstractmethod
    def call_later(self, delay_ms: float, callback: Callable[[], object]) -> Timer: ...

    async def wait(self, event: asyncio.Event, timeout_ms: float | None) -> bool:
        try:
            async with self.timeout(timeout_ms):
                await event.wait()
        except TimeoutError:
            return event.is_set()
        return True

    @asynccontextmanager
    async def timeout(self, timeout_ms: float | None) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(None) as scope:
            timer = None
            if timeout_ms is not None:
                timer = self.call_later(timeout_ms, lambda: scope.reschedule(loop.time()))
            try:
                yield
            finally:
                if timer is not None:
                    timer.cancel()


class ManualClock(_Timed):
    """A clock that stands still until ``advance`` is called."""

    def __init__(self, start: datetime | float = START_MS / 1000) -> None:
        self._monotonic_ms = 0.0
        self._offset_ms: float = _instant_ms(start)
        self._sleepers: list[tuple[float, int, _Sleeper]] = []
        self._apart: set[asyncio.Task[None]] = set()
        self._order = itertools.count()
        self._working = 0
        self._works = self._settled_works = 0

    def __repr__(self) -> str:
        return f"<ManualClock at {self.now().isoformat()}, {self.sleepers} asleep>"

    def now_ms(self) -> int:
        return int(self._offset_ms + self._monotonic_ms)

    def stamp(self, request: Timed) -> None:
        if request.now_ms is None:
            request.now_ms = self.now_ms()

    def now(self) -> datetime:
        """The time as an aware ``datetime``."""
        return datetime.fromtimestamp(self.now_ms() / 1000, UTC)

    def monotonic_ms(self) -> float:
        return self._monotonic_ms

    @property
    def sleepers(self) -> int:
        """The number of pending waits with a time limit."""
        return sum(not sleeper.done for _, _, sleeper in self._sleepers)

    @property
    def next_wake_ms(self) -> float | None:
        """The time until the first sleeper is due; None if there is none."""
        self._forget_done()
        return self._sleepers[0][0] - self._monotonic_ms if self._sleepers else None

    async def wait(self, event: asyncio.Event, timeout_ms: float | None) -> bool:
        if timeout_ms is not None and timeout_ms <= 0:
            await asyncio.sleep(0)
            return event.is_set()
        return await super().wait(event, timeout_ms)

    def call_later(self, delay_ms: float, callback: Callable[[], object]) -> Timer:
        sleeper = _Sleeper(callback)
        heapq.heappush(self._sleepers, (self._monotonic_ms + delay_ms, next(self._order), sleeper))
        return sleeper

    def run_apart(self, name: str, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run ``main`` on the current loop, so that ``advance`` waits until it is idle too."""
        task = asyncio.get_running_loop().create_task(main(), name=name)
        self._apart.add(task)
        task.add_done_callback(self._apart.discard)

    async def advance(self, seconds: float = 0, *, ms: float = 0) -> None:
        """Advance the time and wake sleepers in order. Each runs until the loop is idle before the next."""
        if seconds < 0 or ms < 0:
            raise ConfigError(
                "advance", message=f"cannot go back in time: {seconds=}, {ms=}", got=(seconds, ms)
            )
        target_ms = self._monotonic_ms + seconds * 1000 + ms
        await self.settle()
        while True:
            self._forget_done()
            if not self._sleepers or self._sleepers[0][0] > target_ms:
                break
            due_ms, _, sleeper = heapq.heappop(self._sleepers)
            self._monotonic_ms = max(self._monotonic_ms, due_ms)
            sleeper.wake()
            await self.settle()
        self._monotonic_ms = target_ms
        await self.settle()

    def set(self, instant: datetime | float) -> None:
        """Set the wall clock (aware datetime or seconds since 1970), forward or back.

        This wakes no sleeper: sleepers wait for durations, which only ``advance`` changes.
        """
        self._offset_ms = _instant_ms(instant) - self._monotonic_ms

    @contextmanager
    def working(self) -> Iterator[None]:
        """Mark work outside of the event loop. ``advance`` waits until it ends, and a moment longer for hints
        that a store sends, before it continues."""
        self._working += 1
        self._works += 1
        try:
            yield
        finally:
            self._working -= 1

    async def settle(self) -> None:
        """Return when the loop is idle at the current time."""
        while True:
            await self._wait_until_idle()
            if self._works == self._settled_works:
                return
            self._settled_works = self._works
            await asyncio.sleep(_LINGER)

    async def _wait_until_idle(self) -> None:
        quiet = 0
        while quiet < _QUIET_TURNS:
            if self._working:
                quiet = 0
                await asyncio.sleep(0.0005)  # another thread works: give it real time
            else:
                quiet += 1
                await asyncio.sleep(0)

    def _forget_done(self) -> None:
        while self._sleepers and self._sleepers[0][2].done:
            heapq.heappop(self._sleepers)


class _Sleeper:
    """A callback that waits for its time."""

    def __init__(self, callback: Callable[[], object]) -> None:
        self._callback = callback
        self.done = False

    def wake(self) -> None:
        self.done = True
        self._callback()

    def cancel(self) -> None:
        self.done = True


#: magic, monotonic ms, offset ms
_LAYOUT = struct.Struct("<8sqq")
_MAGIC = b"windclk1"
_MONOTONIC_AT, _OFFSET_AT = 8, 16


class SharedClock(_Timed):
    """A clock in a file. One process controls it, and all processes with the same path follow it.

    Waiting processes read the file every ``poll`` seconds of real time. ``advance`` changes it at once. It
    cannot know when other processes have reacted, so tests must wait for what they expect.
    """

    def __init__(
        self, path: str | os.PathLike[str], start: datetime | float = START_MS / 1000, *, poll: float = 0.002
    ) -> None:
        self._path = Path(path)
        self._poll = poll
        self._create(_instant_ms(start))
        with self._path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _LAYOUT.size)
        if self._memory[:8] != _MAGIC:
            raise ConfigError("path", message=f"{path} was not made by SharedClock", got=str(path))

    def now_ms(self) -> int:
        return self._read(_OFFSET_AT) + self._read(_MONOTONIC_AT)

    def stamp(self, request: Timed) -> None:
        if request.now_ms is None:
            request.now_ms = self.now_ms()

    def monotonic_ms(self) -> float:
        return float(self._read(_MONOTONIC_AT))

    def call_later(self, delay_ms: float, callback: Callable[[], object]) -> Timer:
        return _Poll(self, self._poll, self.monotonic_ms() + delay_ms, callback)

    def run_apart(self, name: str, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        run_in_thread(name, main)

    async def advance(self, seconds: float = 0, *, ms: float = 0) -> None:
        """Advance the time of all processes at once."""
        if seconds < 0 or ms < 0:
            raise ConfigError(
                "advance", message=f"cannot go back in time: {seconds=}, {ms=}", got=(seconds, ms)
            )
        self._write(_MONOTONIC_AT, self._read(_MONOTONIC_AT) + round(seconds * 1000 + ms))
        await asyncio.sleep(0)

    def set(self, instant: datetime | float) -> None:
        """Set the wall clock of all processes, forward or back. Durations do not change."""
        self._write(_OFFSET_AT, _instant_ms(instant) - self._read(_MONOTONIC_AT))

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._memory.close()

    def _create(self, start_ms: int) -> None:
        """Create the file if it does not exist. Two processes may try at the same time."""
        draft = self._path.with_name(f"{self._path.name}.{os.getpid()}.new")
        if self._path.exists():
            return
        draft.write_bytes(_LAYOUT.pack(_MAGIC, 0, start_ms))
        try:
            os.link(draft, self._path)
        except FileExistsError:
            pass
        finally:
            draft.unlink()

    def _read(self, at: int) -> int:
        return int.from_bytes(self._memory[at : at + 8], "little", signed=True)

    def _write(self, at: int, value: int) -> None:
        self._memory[at : at + 8] = value.to_bytes(8, "little", signed=True)


class _Poll:
    """A callback that waits for its time by polling."""

    def __init__(
        self, clock: SharedClock, every: float, due_ms: float, callback: Callable[[], object]
    ) -> None:
        self._clock = clock
        self._every = every
        self._due_ms = due_ms
        self._callback = callback
        self._loop = asyncio.get_running_loop()
        self._handle = self._loop.call_soon(self._look)

    def cancel(self) -> None:
        self._handle.cancel()

    def _look(self) -> None:
        if self._clock.monotonic_ms() < self._due_ms:
            self._handle = self._loop.call_later(self._every, self._look)
        else:
            self._callback()


def _instant_ms(instant: datetime | float) -> int:
    if isinstance(instant, datetime):
        if instant.tzinfo is None:
            raise ConfigError("instant", "a datetime with a timezone", instant)
        return round(instant.timestamp() * 1000)
    return round(instant * 1000)
