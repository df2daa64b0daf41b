"""Health of the store, as ``windlass doctor`` sees it, and errors by their fingerprint."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from litestar import get
from litestar.params import QueryParameter

from windlass.api.health import CheckContext, jobs_of, look_around, lost_workers
from windlass.api.search import Search
from windlass.backend import requests as rq
from windlass.core.job import QueueInfo, WorkerInfo
from windlass.core.order import Sort
from windlass.core.states import JobState
from windlass.dashboard.access import of_queues
from windlass.dashboard.errors_seen import ErrorTally
from windlass.dashboard.injected import TheStoreView
from windlass.dashboard.lists import holding, listing
from windlass.dashboard.params import Limit, Queues
from windlass.dashboard.shapes.health import (
    ErrorGroups,
    FindingEntry,
    HealthReport,
    LostJob,
    LostWorker,
)
from windlass.dashboard.store_view import StoreView

#: Lost workers that are shown, and jobs that the errors are counted over.
LOST = 20
_ERRORS = 20_000
_STEP = 1_000
Hours = Annotated[int, QueryParameter(ge=1, le=24 * 90, description="Only errors of so many hours.")]


@get("/api/v1/health", tags=["health"], access=of_queues())
async def get_health(store_view: TheStoreView) -> HealthReport:
    """What the checks of ``windlass doctor`` find now, and workers that fell silent in the last day."""
    infos = await store_view.queues()
    lost = store_view.seen(await lost_workers(store_view.app))[:LOST]
    now_ms = store_view.now_ms()
    context = CheckContext(store_view.app, False, now_ms, infos, await store_view.workers(), lost)
    found = await look_around(context)
    return HealthReport(
        healthy=not found,
        at_ms=now_ms,
        findings=[FindingEntry(**asdict(finding)) for finding in found],
        lost_workers=[await lost_worker(store_view, worker, infos) for worker in lost],
    )


async def lost_worker(store_view: StoreView, worker: WorkerInfo, infos: list[QueueInfo]) -> LostWorker:
    """A worker that fell silent, with the jobs that it held."""
    refs = await jobs_of(store_view.app, worker, infos)
    answers = await store_view.store.execute(rq.GetJobs(refs=refs)) if refs else []
    return LostWorker(
        id=worker.id,
        hostname=worker.hostname,
        pid=worker.pid,
        queues=list(worker.queues),
        started_ms=worker.started_ms,
        beat_ms=worker.beat_ms,
        busy=worker.busy,
        version=worker.version,
        jobs=[LostJob(queue=one.queue, id=one.id, task=one.task, state=one.state) for one in answers if one],
    )


@get("/api/v1/errors", tags=["health"], access=of_queues())
async def list_errors(
    store_view: TheStoreView, queue: Queues = None, hours: Hours = 24, limit: Limit = 100
) -> ErrorGroups:
    """Errors of failed and retrying jobs by fingerprint: how often, since when, where, with a sample."""
    now_ms = store_view.now_ms()
    tally = ErrorTally(store_view.mask, now_ms, now_ms - hours * 3_600_000)
    infos = [info for info in await store_view.queues() if not queue or info.name in queue]
    for name in queue or ():
        store_view.queue(name)
    for state, sort in ((JobState.FAILED, Sort.FINISHED), (JobState.RETRYING, Sort.DUE)):
        cursor: str | None = None
        while tally.scanned < _ERRORS:
            listed = listing(store_view, Search(state=state), sort=sort, past=tally.is_past)
            found = await listed.page(holding(infos, [state]), cursor, _STEP)
            tally.add(found.records)
            cursor = found.cursor
            if cursor is None:
                break
        tally.done = tally.done and cursor is None
    return ErrorGroups(groups=tally.groups()[:limit], scanned=tally.scanned, done=tally.done)


HANDLERS = [get_health, list_errors]
