"""Tell the store that this worker lives, what it serves and how busy it is.

For people to look at. Nothing is recovered or decided by it: leases do that.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from pathlib import Path

from windlass.backend import requests as rq
from windlass.backend.store import Store
from windlass.core.job import WorkerInfo
from windlass.core.service import Service


class Heartbeat(Service):
    """Beats every ``every_ms``; takes the worker off the list when it stops."""

    def __init__(self, store: Store, every_ms: int, info: Callable[[], WorkerInfo]) -> None:
        super().__init__("windlass-heartbeat", store.clock)
        self._store = store
        self._every_ms = every_ms
        self._info = info

    async def run_once(self) -> None:
        """One beat."""
        await self._store.execute(rq.Beat(worker=self._info()))

    async def _serve(self) -> None:
        while not self.stopping:
            await self.run_once()
            await self.pause(self._every_ms)

    async def _stopped(self) -> None:
        await self._store.execute(rq.Beat(worker=self._info(), gone=True))


def rss_kb() -> int:
    """Memory of this process, in kB."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * (resource.getpagesize() // 1024)
    except (OSError, IndexError, ValueError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak // 1024 if sys.platform == "darwin" else peak
