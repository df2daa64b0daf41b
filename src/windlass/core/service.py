"""Something that runs in the background until it is stopped.

Starting twice, stopping before starting and stopping twice are all legal. A service that meets an error
logs it, waits, and goes on: it never dies quietly.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from windlass.core.clock import Clock
from windlass.errors import WindlassError

log: Final = logging.getLogger("windlass.service")

_FIRST_PAUSE_MS = 500
_LAST_PAUSE_MS = 30_000


class Service:
    """Base class: implement ``_serve``, which returns when ``stopping``."""

    def __init__(self, name: str, clock: Clock) -> None:
        self.name = name
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self.stopping: bool = False

    @property
    def running(self) -> bool:
        return self._task is not None

    def start(self) -> None:
        """Begin, on the running event loop."""
        if self._task is None:
            self.stopping = False
            self._wake.clear()
            self._task = asyncio.create_task(self._supervise(), name=self.name)

    async def stop(self) -> None:
        """End after the current step."""
        task, self._task = self._task, None
        if task is None:
            return
        self.stopping = True
        self._wake.set()
        await task

    async def pause(self, ms: float) -> None:
        """Wait ``ms``, or until asked to stop."""
        await self._clock.wait(self._wake, ms)

    async def _supervise(self) -> None:
        pause_ms = _FIRST_PAUSE_MS
        while not self.stopping:
            try:
                await self._serve()
                pause_ms = _FIRST_PAUSE_MS
            except WindlassError as exc:
                log.warning("%s met an error and goes on in %g s: %s", self.name, pause_ms / 1000, exc)
            except Exception:
                log.exception("%s met an unexpected error and goes on", self.name)
            if not self.stopping:
                await self.pause(pause_ms)
                pause_ms = min(pause_ms * 2, _LAST_PAUSE_MS)
        try:
            await self._stopped()
        except WindlassError as exc:
            log.warning("%s could not clean up: %s", self.name, exc)

    async def _serve(self) -> None:
        raise NotImplementedError

    async def _stopped(self) -> None:
        """Called once after the last step."""
