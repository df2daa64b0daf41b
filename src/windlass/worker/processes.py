"""Handlers with ``isolation="process"``: hand the attempt to a sandboxed child."""

from __future__ import annotations

from typing import Any

from windlass.worker.attempt import Attempt
from windlass.worker.options import WorkerOptions


class SandboxRunner:
    """Starts the pool of children when the first isolated job comes."""

    def __init__(self, options: WorkerOptions) -> None:
        self._options = options
        self._pool: Any = None

    async def run(self, attempt: Attempt) -> Any:
        raise NotImplementedError

    async def close(self) -> None:
        """End every child."""
        if self._pool is not None:
            await self._pool.close()
