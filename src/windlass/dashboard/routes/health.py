"""The findings of ``windlass doctor``, and errors by fingerprint."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from litestar import get
from litestar.params import QueryParameter

from windlass.api.health import CheckContext, run_checks
from windlass.dashboard.access import of_queues
from windlass.dashboard.errors_seen import ErrorTally
from windlass.dashboard.injected import TheLake, TheStoreView
from windlass.dashboard.lake import lake_findings
from windlass.dashboard.params import Limit, Queues, Text
from windlass.dashboard.shapes.health import (
    ErrorGroups,
    FindingEntry,
    HealthReport,
)

Hours = Annotated[int, QueryParameter(ge=1, le=24 * 90, description="Only errors of this many hours.")]


@get("/api/v1/health", tags=["health"], access=of_queues())
async def get_health(store_view: TheStoreView, lake: TheLake) -> HealthReport:
    """The current findings of ``windlass doctor``, workers that were lost in the last day, and the state of
    the lake, if there is one."""
    infos = await store_view.queues()
    living, lost = await store_view.workers_seen()
    now_ms = store_view.now_ms()
    found = await run_checks(CheckContext(store_view.app, False, now_ms, infos, living, lost))
    state = None
    if lake is not None:
        names = {info.name for info in infos}
        state = await lake.state(store_view.app, names, whole=store_view.sees_all)
        found += lake_findings(state, now_ms)
    return HealthReport(
        healthy=not found,
        at_ms=now_ms,
        findings=[FindingEntry(**asdict(finding)) for finding in found],
        lost_workers=await store_view.lost_runs.entries(infos, lost),
        lake=state,
    )


@get("/api/v1/errors", tags=["health"], access=of_queues())
async def list_errors(
    store_view: TheStoreView,
    queue: Queues = None,
    task: Text = None,
    hours: Hours = 24,
    limit: Limit = 100,
) -> ErrorGroups:
    """Errors of failed and retrying jobs by fingerprint: how many, since when, where, with a sample."""
    for name in queue or ():
        store_view.queue(name)
    infos = [info for info in await store_view.queues() if not queue or info.name in queue]
    seen = await store_view.errors_seen.of(infos, await store_view.counters(), hours)
    now_ms = store_view.now_ms()
    tally = ErrorTally(store_view.mask, now_ms, now_ms - hours * 3_600_000, task or None)
    for name, errors in seen.items():
        tally.add(name, errors)
    return ErrorGroups(groups=tally.groups()[:limit], scanned=tally.scanned, done=tally.done)


HANDLERS = [get_health, list_errors]
