"""Figures from the gold tables of a lake, when one is configured; read without a JVM, off the event loop."""

from __future__ import annotations

import asyncio
from typing import Any

from windlass.dashboard.shapes.figures import Point
from windlass.errors import ConfigError

_WIDTH_MS = {"minute": 60_000, "hour": 3_600_000, "day": 86_400_000}


class LakeFigures:
    """The roll-ups of a lake on this machine, or on any store that the pipeline's reader opens."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._gold: Any = None
        self._lock = asyncio.Lock()

    async def points(
        self, grain: str, queues: list[str], task: str | None, since_ms: int, until_ms: int
    ) -> list[Point]:
        """All windows from ``since_ms`` to ``until_ms``, over ``queues``."""
        async with self._lock:
            rows = await asyncio.to_thread(self._rows, grain, set(queues), task, since_ms, until_ms)
        width_ms = _WIDTH_MS[grain]
        found = {row["window_start"]: _point(row) for row in rows}
        starts = range(since_ms - since_ms % width_ms, until_ms, width_ms)
        return [found.get(at) or _empty(at) for at in starts]

    def _rows(
        self, grain: str, queues: set[str], task: str | None, since_ms: int, until_ms: int
    ) -> list[dict[str, Any]]:
        try:
            from windlass.pipeline.gold import Gold, add_up
        except ImportError as exc:
            raise ConfigError("lake", "readable: pip install 'windlass[spark]'") from exc
        if self._gold is None:
            self._gold = Gold(self._root)
        else:
            self._gold.refresh()
        since_ms -= since_ms % _WIDTH_MS[grain]
        equal = {} if task is None else {"task": task}
        rows = self._gold.rollups(grain, since_ms, until_ms, **equal)
        found: list[dict[str, Any]] = add_up([r for r in rows if r["queue"] in queues], ("window_start",))
        return found


def _point(row: dict[str, Any]) -> Point:
    completed, failed, retried = row["completed"], row["failed"], row["retried"]
    return Point(
        start_ms=row["window_start"],
        total=completed + failed + retried,
        completed=completed,
        failed=failed,
        retried=retried,
        wait_p50_ms=row["wait_p50_ms"],
        wait_p95_ms=row["wait_p95_ms"],
        wait_p99_ms=row["wait_p99_ms"],
        duration_avg_ms=row["duration_avg_ms"],
        duration_p50_ms=row["duration_p50_ms"],
        duration_p95_ms=row["duration_p95_ms"],
        duration_p99_ms=row["duration_p99_ms"],
    )


def _empty(start_ms: int) -> Point:
    return Point(
        start_ms=start_ms,
        total=0,
        completed=0,
        failed=0,
        retried=0,
        wait_p50_ms=None,
        wait_p95_ms=None,
        wait_p99_ms=None,
        duration_avg_ms=None,
        duration_p50_ms=None,
        duration_p95_ms=None,
        duration_p99_ms=None,
    )
