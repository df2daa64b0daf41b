"""Whether the store answers, for probes. They need no sign-in, so the store is read once a second at most."""

from __future__ import annotations

import asyncio

from windlass.api.app import Windlass
from windlass.backend import requests as rq
from windlass.errors import StorageError

_PROBE_S = 5.0
_FRESH_MS = 1_000


class Readiness:
    """Caches the last answer of a store."""

    def __init__(self, app: Windlass) -> None:
        self._app = app
        self._asking = asyncio.Lock()
        self._asked_ms: float | None = None
        self._reason = ""

    async def reason(self) -> str:
        """Why the store is not ready; empty if it is."""
        async with self._asking:
            now_ms = self._app.clock.monotonic_ms()
            if self._asked_ms is None or now_ms - self._asked_ms >= _FRESH_MS:
                self._reason = await self._ask()
                self._asked_ms = self._app.clock.monotonic_ms()
            return self._reason

    async def _ask(self) -> str:
        try:
            async with asyncio.timeout(_PROBE_S):
                await self._app.store.execute(rq.ListWorkers())
        except StorageError as exc:
            return str(exc)
        except TimeoutError:
            return f"the store did not answer within {_PROBE_S:g} s"
        return ""
