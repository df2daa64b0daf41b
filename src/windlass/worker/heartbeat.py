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

#: The shortest period for which CPU usage is computed, in seconds.
_LEAST_S = 1.0
#: How long heartbeats include a stack dump, and its maximum length.
_STACKS_MS = 60_000
_STACKS_CHARS = 32_000


class Heartbeat(Service):
    """Sends a heartbeat every ``every_ms``. When it stops, it removes the worker from the store's list.

    The answer may contain a command for this worker. Each command is passed to ``on_command`` once.
    """

    def __init__(
        self,
        store: Store,
        every_ms: int,
        info: Callable[[], WorkerInfo],
        on_command: Callable[[Action], None] = lambda action: None,
    ) -> None:
        super().__init__("heartbeat")
        self._store = store
        self._every_ms = every_ms
        self._info = info
        self._on_command = on_command
        self._last_command_id = ""

    async def run_once(self) -> None:
        """Send one heartbeat."""
        command = await self._store.execute(rq.Beat(worker=self._info()))
        if command is not None and command.id != self._last_command_id:
            self._last_command_id = command.id
            self._on_command(command.action)

    async def step(self) -> float:
        await self.run_once()
        return self._every_ms

    async def stopped(self) -> None:
        await self._store.execute(rq.Beat(worker=self._info(), gone=True))


def rss_kb() -> int:
    """Return the memory of this process, in kB."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * (resource.getpagesize() // 1024)
    except (OSError, IndexError, ValueError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak // 1024 if sys.platform == "darwin" else peak


class CpuMeter:
    """Measures the CPU time of this process in percent of one processor: 200 means two processors."""

    def __init__(
        self, now_s: Callable[[], float] = time.monotonic, used_s: Callable[[], float] = time.process_time
    ) -> None:
        self._now_s, self._used_s = now_s, used_s
        self._from_s, self._before_s = now_s(), used_s()
        self._percent = 0.0

    def read(self) -> float:
        """Return the usage since the last reading. Within a second, the last value is returned again."""
        now_s, used_s = self._now_s(), self._used_s()
        if now_s - self._from_s >= _LEAST_S:
            self._percent = round(100 * (used_s - self._before_s) / (now_s - self._from_s), 1)
            self._from_s, self._before_s = now_s, used_s
        return self._percent


class StackDump:
    """The last stack dump. Heartbeats include it for a while."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._text = ""
        self._until_ms = 0.0

    def take(self) -> str:
        """Take a stack dump now."""
        text = dump_stacks()
        self._text, self._until_ms = clean_text(text, _STACKS_CHARS), self._clock.monotonic_ms() + _STACKS_MS
        return text

    @property
    def shown(self) -> str:
        """The dump that heartbeats include; empty when the last one is older than a minute."""
        return self._text if self._clock.monotonic_ms() < self._until_ms else ""


def dump_stacks() -> str:
    """Return the stacks of all threads and of all tasks of this event loop, for a log."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = [
        f"thread {names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    ]
    parts += [f"task {task.get_name()}\n{_coroutine_stack(task.get_coro())}" for task in asyncio.all_tasks()]
    return "\n".join(parts)


def _coroutine_stack(coroutine: Any) -> str:
    """Return the stack of a suspended coroutine, including the coroutines that it awaits."""
    lines = ""
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is not None:
            lines += "".join(traceback.format_stack(frame, limit=1))
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
    return lines
