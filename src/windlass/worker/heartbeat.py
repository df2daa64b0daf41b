"""Report to the store that this worker is alive, what it serves and how busy it is.

Heartbeats are only for display. Leases decide which jobs are recovered.
"""

from __future__ import annotations

import asyncio
import resource
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from windlass.backend import requests as rq
from windlass.backend.store import Store
from windlass.core.clock import Clock
from windlass.core.job import Action, WorkerInfo
from windlass.core.text import clean_text
from windlass.worker.supervisor import Service

#: The shortest time over which the use of the processor is worked out.
_LEAST_S = 1.0
#: Heartbeats carry a dump of stacks for this long, and this much of it.
_STACKS_MS = 60_000
_STACKS_CHARS = 32_000


class Heartbeat(Service):
    """Beats every ``every_ms``; takes the worker off the list when it stops.

    The answer to a beat may bring a command from afar, which is handed on once.
    """

    def __init__(
        self,
        store: Store,
        every_ms: int,
        info: Callable[[], WorkerInfo],
        obey: Callable[[Action], None] = lambda action: None,
    ) -> None:
        super().__init__("heartbeat")
        self._store = store
        self._every_ms = every_ms
        self._info = info
        self._obey = obey
        self._obeyed = ""

    async def run_once(self) -> None:
        """One beat."""
        command = await self._store.execute(rq.Beat(worker=self._info()))
        if command is not None and command.id != self._obeyed:
            self._obeyed = command.id
            self._obey(command.action)

    async def step(self) -> float:
        await self.run_once()
        return self._every_ms

    async def stopped(self) -> None:
        await self._store.execute(rq.Beat(worker=self._info(), gone=True))


def rss_kb() -> int:
    """Memory of this process, in kB."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * (resource.getpagesize() // 1024)
    except (OSError, IndexError, ValueError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak // 1024 if sys.platform == "darwin" else peak


class CpuMeter:
    """How much of one processor this process uses, in percent: 200 means two processors."""

    def __init__(
        self, now_s: Callable[[], float] = time.monotonic, used_s: Callable[[], float] = time.process_time
    ) -> None:
        self._now_s, self._used_s = now_s, used_s
        self._from_s, self._before_s = now_s(), used_s()
        self._percent = 0.0

    def read(self) -> float:
        """The use since the last reading; within a second of it, the same again."""
        now_s, used_s = self._now_s(), self._used_s()
        if now_s - self._from_s >= _LEAST_S:
            self._percent = round(100 * (used_s - self._before_s) / (now_s - self._from_s), 1)
            self._from_s, self._before_s = now_s, used_s
        return self._percent


class StackDump:
    """The last dump of stacks, which heartbeats carry for a while."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._text = ""
        self._until_ms = 0.0

    def take(self) -> str:
        """Make one now."""
        text = dump_stacks()
        self._text, self._until_ms = clean_text(text, _STACKS_CHARS), self._clock.monotonic_ms() + _STACKS_MS
        return text

    @property
    def shown(self) -> str:
        """What heartbeats carry; empty when there was none for a minute."""
        return self._text if self._clock.monotonic_ms() < self._until_ms else ""


def dump_stacks() -> str:
    """Where every thread and every task of this event loop stands, for a log."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = [
        f"thread {names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    ]
    parts += [f"task {task.get_name()}\n{_coroutine_stack(task.get_coro())}" for task in asyncio.all_tasks()]
    return "\n".join(parts)


def _coroutine_stack(coroutine: Any) -> str:
    """Where a suspended coroutine stands, down to what it waits for: a task knows its first frame only."""
    lines = ""
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is not None:
            lines += "".join(traceback.format_stack(frame, limit=1))
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
    return lines
