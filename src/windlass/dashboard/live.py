"""Live figures: one ticker for each set of visible queues, with any number of listeners.

While a page is open, the store is read once a second. Each tick is complete, so a page that misses one loses
nothing.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from windlass.core.states import JobState
from windlass.core.text import printable
from windlass.dashboard import views
from windlass.dashboard.shapes.server import Tick, WorkerLoad
from windlass.dashboard.store_view import StoreView
from windlass.dashboard.totals import Totals, queue_totals
from windlass.errors import StorageError

log = logging.getLogger("windlass.dashboard")

TICK_MS = 1_000


class Ticker:
    """Produces ticks while there are listeners."""

    def __init__(self, store_view: StoreView) -> None:
        self._view = store_view
        self._listeners: set[asyncio.Queue[Tick | None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._before: tuple[float, Totals] | None = None

    def listen(self) -> asyncio.Queue[Tick | None]:
        """A queue that receives every tick from now on. A slow reader gets only the newest."""
        queue: asyncio.Queue[Tick | None] = asyncio.Queue(maxsize=1)
        self._listeners.add(queue)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name="windlass-dashboard-ticks")
        return queue

    async def leave(self, queue: asyncio.Queue[Tick | None]) -> None:
        """Stop listening. The ticks stop with the last listener."""
        self._listeners.discard(queue)
        task = self._task
        if not self._listeners and task is not None:
            self._task = None
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def tick(self) -> Tick:
        """The current figures, with rates since the previous tick."""
        store_view = self._view
        infos, workers = await store_view.queues(), await store_view.workers()
        totals = await queue_totals(store_view)
        now_ms = store_view.now_ms()
        rates = self._rates(totals)
        processed, failed = totals.runs()
        return Tick(
            at_ms=now_ms,
            counts={s.value: sum(info.counts.get(s.value, 0) for info in infos) for s in JobState},
            queues=[views.queue_view(info, now_ms, *totals.of(info.name)) for info in infos],
            enqueued_per_s=rates["enqueued"],
            completed_per_s=rates["completed"],
            failed_per_s=rates["failed"] + rates["retrying"],
            processed_total=processed,
            failed_total=failed,
            active_processes=len(workers),
            busy_workers=sum(info.busy for info in workers),
            quiet_workers=sum(info.quiet for info in workers),
            slots=sum(info.concurrency for info in workers),
            workers=[
                WorkerLoad(id=one.id, busy=one.busy, rss_kb=one.rss_kb, cpu_percent=one.cpu_percent)
                for one in workers
            ],
        )

    def _rates(self, totals: Totals) -> dict[str, float]:
        at_ms = self._view.app.clock.monotonic_ms()
        before, self._before = self._before, (at_ms, totals)
        names = ("enqueued", "completed", "failed", "retrying")
        if before is None or at_ms <= before[0]:
            return dict.fromkeys(names, 0.0)
        then, now = before[1].all(), totals.all()
        seconds = (at_ms - before[0]) / 1000
        return {name: round((now.get(name, 0) - then.get(name, 0)) / seconds, 2) for name in names}

    async def _run(self) -> None:
        self._before = None
        while True:
            try:
                self._publish(await self.tick())
            except StorageError as exc:
                log.warning("live figures: the store did not answer: %s", printable(str(exc)))
                self._publish(None)
            await self._view.app.clock.wait(asyncio.Event(), TICK_MS)

    @property
    def idle(self) -> bool:
        """Whether there is no listener."""
        return not self._listeners

    def _publish(self, tick: Tick | None) -> None:
        for queue in self._listeners:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(tick)


class Tickers:
    """The tickers of one server. Callers who see the same queues share one."""

    def __init__(self) -> None:
        self._tickers: dict[tuple[tuple[str, ...], ...], Ticker] = {}

    def of(self, store_view: StoreView) -> Ticker:
        """The ticker for the queues that this store view shows."""
        visible = store_view.grant.visible_queues()
        if visible not in self._tickers:
            self._tickers = {key: one for key, one in self._tickers.items() if not one.idle}
            self._tickers[visible] = Ticker(store_view)
        return self._tickers[visible]
