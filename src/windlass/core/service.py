"""Something that runs in the background, step after step, until it is stopped.

Starting twice, stopping before starting and stopping twice are all legal. A step that fails is logged and
tried again, later and later while it keeps failing; the first that succeeds brings the old pace back. A
service never dies quietly.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from windlass.core.clock import Clock
from windlass.core.text import printable
from windlass.errors import WindlassError

log: Final = logging.getLogger("windlass.service")

_FIRST_PAUSE_MS = 500
_LAST_PAUSE_MS = 30_000


class Service:
    """Base class: implement ``_step``, which does one bounded step and tells how long to pause after it."""

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

    def hurry(self) -> None:
        """Take the next step now."""
        self._wake.set()

    async def _supervise(self) -> None:
        await self._pause(self._first_pause_ms())
        failures = 0
        while not self.stopping:
            try:
                pause_ms = await self._step()
                failures = 0
            except Exception as exc:
                pause_ms = min(_FIRST_PAUSE_MS * 2**failures, _LAST_PAUSE_MS)
                failures = min(failures + 1, 10)
                self._log_failure(exc, pause_ms)
            await self._pause(pause_ms)
        try:
            await self._stopped()
        except WindlassError as exc:
            log.warning("%s could not clean up: %s", self.name, printable(str(exc)))

    async def _pause(self, ms: float) -> None:
        """Wait ``ms``, or until asked to hurry or to stop."""
        if ms > 0:
            await self._clock.wait(self._wake, ms)
        if not self.stopping:
            self._wake.clear()

    def _log_failure(self, exc: Exception, pause_ms: float) -> None:
        if isinstance(exc, WindlassError):
            error = printable(str(exc))
            log.warning("%s met an error and goes on in %g s: %s", self.name, pause_ms / 1000, error)
        else:
            log.exception("%s met an unexpected error and goes on", self.name)

    def _first_pause_ms(self) -> float:
        """How long to wait before the first step."""
        return 0

    async def _step(self) -> float:
        """One step; returns how long to pause before the next, in milliseconds."""
        raise NotImplementedError

    async def _stopped(self) -> None:
        """Called once after the last step."""
