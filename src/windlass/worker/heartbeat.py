"""Report to the store that this worker is alive, what it serves and how busy it is.

For people to look at. Nothing is recovered or decided by it: leases do that.
"""

from __future__ import annotations

import asyncio
import resource
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from windlass.backend import requests as rq
from windlass.backend.store import Store
from windlass.core.job import Action, WorkerInfo
from windlass.worker.supervisor import Service


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
