"""Figures from the lake's gold tables, and its status. Needs no JVM and runs outside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from windlass.api.app import Windlass
from windlass.api.health import archivers_behind
from windlass.backend.health import Finding
from windlass.core.text import many, show_age
from windlass.dashboard.shapes.figures import LakeFailure, LakeSource, LakeState, Point
from windlass.errors import not_installed

if TYPE_CHECKING:
    from windlass.pipeline.status import LakeStatus

#: Minimum time between reads of the lake's status.
_FRESH_MS = 10_000
#: Timeout for reading the status. After it, the previous status is returned.
_PATIENCE_S = 5.0
#: If records are missing and the newest batch is this old, the pipeline is not running.
_LATE_MS = 3_600_000
_WIDTH_MS = {"minute": 60_000, "hour": 3_600_000, "day": 86_400_000}


class LakeFigures:
    """The roll-ups of a lake in a folder or an object store."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._gold: Any = None
        self._lock = asyncio.Lock()
        self._look: asyncio.Task[LakeState] | None = None
        self._looked_ms = 0.0
        self._state = _UNREADABLE

    async def state(self, app: Windlass, queues: Collection[str], *, whole: bool) -> LakeState:
        """The status of the lake, and how far it is behind the history of these queues.

        ``whole``: the caller sees all queues, and therefore also the totals of the lake.
        """
        now_ms = app.clock.monotonic_ms()
        if self._look is None or (self._look.done() and now_ms - self._looked_ms >= _FRESH_MS):
            self._looked_ms = now_ms
            self._look = asyncio.create_task(asyncio.to_thread(_state_of, self._root))
        if not self._look.done():
            await asyncio.wait([self._look], timeout=_PATIENCE_S)
        if self._look.done():
            self._state = self._look.result()
        lags = await archivers_behind(app, queues)
        behind = [lag.behind for lag in lags if lag.archiver.name == self._state.archiver]
        shown = self._state if whole else msgspec.structs.replace(self._state, attempts=None, lost=None)
        return msgspec.structs.replace(shown, behind=behind[0] if behind else None)

    async def points(
        self, grain: str, queues: list[str], task: str | None, since_ms: int, until_ms: int
    ) -> list[Point]:
        """All windows from ``since_ms`` to ``until_ms``, for ``queues``."""
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
            raise not_installed("lake", "support for lakes", "windlass[spark]") from exc
        if self._gold is None:
            self._gold = Gold(self._root)
        else:
            self._gold.refresh()
        since_ms -= since_ms % _WIDTH_MS[grain]
        equal = {} if task is None else {"task": task}
        rows = self._gold.rollups(grain, since_ms, until_ms, **equal)
        found: list[dict[str, Any]] = add_up([r for r in rows if r["queue"] in queues], ("window_start",))
        return found


_UNREADABLE = LakeState(archiver="", sources=[], attempts=0, lost=0, failure=None)


def _state_of(root: str) -> LakeState:
    try:
        from windlass.pipeline.lake import Lake
        from windlass.pipeline.status import lake_status

        lake = Lake(root).open()
        return _as_state(lake.archiver, lake_status(lake))
    except Exception:  # the health report must show the problem, not fail
        return _UNREADABLE


def _as_state(archiver: str, status: LakeStatus) -> LakeState:
    """A status without error messages, which may name things that a reader of some queues must not see."""
    sources = [
        LakeSource(source=one.source, read_ms=one.read_ms, newest_ms=one.newest_ms) for one in status.sources
    ]
    last = status.last_failure
    failure = None
    if last is not None and not last.is_over:
        failure = LakeFailure(source=last.source, error=last.error, at_ms=last.at_ms)
    attempts = status.rows["silver/attempts"]
    return LakeState(archiver=archiver, sources=sources, attempts=attempts, lost=status.lost, failure=failure)


def lake_findings(state: LakeState, now_ms: int) -> Iterator[Finding]:
    """Problems of a lake, for the health report."""
    look = "windlass pipeline status --lake LAKE says more"
    if not state.archiver:
        yield Finding("warning", "the lake cannot be read, or does not answer", look, "pipeline")
    if state.failure is not None:
        text = f"the pipeline's last run of {state.failure.source} failed: {state.failure.error}"
        yield Finding("problem", text, look, "pipeline", since_ms=state.failure.at_ms)
    read_ms = max((source.read_ms for source in state.sources), default=0)
    if state.behind and now_ms - read_ms > _LATE_MS:
        age = show_age(now_ms - read_ms)
        text = f"the lake lacks {many(state.behind, 'record')}; its newest batch is {age} old"
        advice = "start 'windlass pipeline run', or let it run with --continuous"
        yield Finding("warning", text, advice, "pipeline", count=state.behind, since_ms=read_ms)


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
