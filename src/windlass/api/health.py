"""Finds problems of a store and suggests remedies, for ``windlass doctor`` and the dashboard.

``HEALTH_CHECKS`` lists the checks. A check takes the ``CheckContext`` and yields findings. Checks read a
bounded part of the store and change nothing. They use only the queues and workers of the context, so a caller
that may see only some of them gets findings about those.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from windlass.backend import limit_requests as lrq
from windlass.backend import metric_requests as mq
from windlass.backend import requests as rq
from windlass.backend.concurrent_requests import gather_limited
from windlass.backend.health import Finding
from windlass.core.job import (
    HISTORY_HELD,
    WORKER_KEPT_MS,
    ArchiverInfo,
    AttemptOutcome,
    JobRecord,
    QueueInfo,
    WorkerInfo,
)
from windlass.core.states import JobState
from windlass.core.text import many, show_age

if TYPE_CHECKING:
    from windlass.api.app import Windlass

#: Living workers recover a lease at most this long after it expired.
_RECOVER_MS = 30_000
#: Jobs that wait this long although there are workers need attention.
_BACKLOG_MS = 5 * 60_000
#: Failures are compared over this window with the hour before it.
_SPIKE_MS, _BEFORE_MS = 10 * 60_000, 60 * 60_000
_SPIKE_LEAST, _SPIKE_SHARE, _SPIKE_TIMES = 10, 0.2, 3
#: An archiver that was not seen for this long, or is this far behind, is reported: the log grows for it.
_LATE_ARCHIVER_MS = 24 * 3_600_000
_FAR_BEHIND = 100_000
#: The maximum number of lost workers that are reported.
_LOST = 50


@dataclass(frozen=True, slots=True)
class CheckContext:
    """The input of the checks. With ``deep`` they may take long."""

    app: Windlass
    deep: bool
    now: int
    queues: list[QueueInfo]
    workers: list[WorkerInfo]
    #: Workers that vanished without signing off.
    lost: list[WorkerInfo] = field(default_factory=list)

    def served(self, queue: str) -> bool:
        """Whether a worker claims jobs of the queue."""
        return any(queue in worker.queues and not worker.quiet for worker in self.workers)

    def every_job(self, queue: str, state: JobState) -> AsyncIterator[JobRecord]:
        """Iterate over the jobs in a state: all of them if ``deep``, otherwise the newest thousand."""
        return every_job(self.app, queue, state, None if self.deep else 1_000)

    async def jobs(self, queue: str, state: JobState) -> list[JobRecord]:
        """Return the newest thousand jobs in a state."""
        request = rq.ListJobs(queue=queue, states=[state], limit=1_000)
        return (await self.app.store.execute(request)).jobs


class _About(TypedDict, total=False):
    """The subject of a finding; see ``Finding``."""

    queue: str
    worker: str
    group: str
    count: int
    since_ms: int | None


class WorkersSeen(NamedTuple):
    """The workers of the last day: those that are alive, and those that vanished without signing off."""

    living: list[WorkerInfo]
    lost: list[WorkerInfo]


async def workers_seen(app: Windlass) -> WorkersSeen:
    """Return the living workers, and the lost ones, the most recent first."""
    known = await app.store.execute(rq.ListWorkers(stale_ms=WORKER_KEPT_MS))
    living = await app.workers()
    alive = {worker.id for worker in living}
    lost = [worker for worker in known if worker.id not in alive]
    return WorkersSeen(living, sorted(lost, key=lambda worker: worker.beat_ms, reverse=True))


async def check_unserved(context: CheckContext) -> AsyncIterator[Finding]:
    """Find queues whose jobs wait because no worker serves them, or because workers are too slow."""
    for info in context.queues:
        waiting = info.counts.get("waiting", 0) + info.counts.get("retrying", 0)
        if not waiting or info.paused:
            continue
        age_ms = 0 if info.oldest_ready_ms is None else context.now - info.oldest_ready_ms
        about = _About(queue=info.name, count=waiting, since_ms=info.oldest_ready_ms)
        if not context.served(info.name):
            text = f"{info.name}: {many(waiting, 'job')} to run and no worker serves the queue"
            advice = f"start one: windlass worker MODULE:APP --queues {info.name}"
            yield Finding("problem", text, advice, "unserved", **about)
        elif age_ms > _BACKLOG_MS:
            text = f"{info.name}: the oldest of {many(waiting, 'job')} waits for {show_age(age_ms)}"
            advice = "add slots (--concurrency, --processes) or workers, or give the queue more weight"
            yield Finding("warning", text, advice, "backlog", **about)


async def check_paused(context: CheckContext) -> AsyncIterator[Finding]:
    """Find paused queues that have jobs."""
    for info in context.queues:
        waiting = info.counts.get("waiting", 0)
        if info.paused and waiting:
            text = f"{info.name}: paused with {many(waiting, 'job')} waiting"
            about = _About(queue=info.name, count=waiting, since_ms=info.oldest_ready_ms)
            yield Finding("warning", text, f"windlass resume {info.name}", "paused", **about)


async def check_leases(context: CheckContext) -> AsyncIterator[Finding]:
    """Find active jobs whose lease has expired, and jobs that had to be recovered."""
    overdue = context.now - (_RECOVER_MS if context.workers else 0)
    for info in context.queues:
        if not info.counts.get("active"):
            continue
        active = await context.jobs(info.name, JobState.ACTIVE)
        ends = [job.lease_until_ms for job in active if job.lease_until_ms and job.lease_until_ms < overdue]
        if ends:
            since = show_age(context.now - min(ends))
            who = "no worker took them back" if context.workers else "no worker is alive to take them back"
            text = f"{info.name}: {many(len(ends), 'running job')} lost the worker {since} ago and {who}"
            advice = "start any worker on this store: it recovers them within seconds"
            about = _About(queue=info.name, count=len(ends), since_ms=min(ends))
            yield Finding("problem", text, advice, "leases", **about)
        stalled = sum(job.stalls > 0 for job in active)
        if stalled:
            text = f"{info.name}: {many(stalled, 'running job')} had to be recovered before"
            advice = "look for handlers that block or crash the worker; isolation='process' contains them"
            yield Finding("warning", text, advice, "stalled", queue=info.name, count=stalled)


async def check_lost(context: CheckContext) -> AsyncIterator[Finding]:
    """Find workers that vanished without signing off."""
    for worker in context.lost[:_LOST]:
        since = show_age(context.now - worker.beat_ms)
        where = f" on {worker.hostname} (process {worker.pid})" if worker.hostname else ""
        text = f"worker {worker.id}{where} fell silent {since} ago with {many(worker.busy, 'job')} running"
        advice = "look at its log and at the memory of its machine; its jobs are taken back by other workers"
        about = _About(worker=worker.id, count=worker.busy, since_ms=worker.beat_ms)
        yield Finding("warning", text, advice, "lost_worker", **about)


async def check_spikes(context: CheckContext) -> AsyncIterator[Finding]:
    """Find queues in which far more runs fail than in the hour before."""
    if not context.app.store.capabilities.metrics:
        return
    since_ms = context.now - _SPIKE_MS
    now = await gather_limited(
        _failures(context, info.name, since_ms, context.now + 60_000) for info in context.queues
    )
    for info, (failed, runs) in zip(context.queues, now, strict=True):
        if failed < _SPIKE_LEAST or failed < _SPIKE_SHARE * runs:
            continue
        earlier, before = await _failures(context, info.name, since_ms - _BEFORE_MS, since_ms)
        if before and failed / runs < _SPIKE_TIMES * earlier / before:
            continue
        text = f"{info.name}: {failed:,} of {runs:,} runs failed in the last 10 minutes"
        advice = f"windlass jobs {info.name} --search 'error:* state:failed,retrying'"
        yield Finding("problem", text, advice, "failures", queue=info.name, count=failed, since_ms=since_ms)


async def _failures(context: CheckContext, queue: str, since_ms: int, until_ms: int) -> tuple[int, int]:
    """Return the numbers of failed runs and of all runs of a queue in a span of time."""
    request = mq.ReadMetrics(queue=queue, since_ms=since_ms, until_ms=until_ms)
    rows = (await context.app.store.execute(request)).rows
    bad = (AttemptOutcome.FAILED, AttemptOutcome.RETRYING)
    return sum(row.outcomes.get(one, 0) for row in rows for one in bad), sum(row.runs for row in rows)


async def check_limits(context: CheckContext) -> AsyncIterator[Finding]:
    """Find limits that are used up while jobs wait."""
    if not context.app.store.capabilities.limits:
        return
    for info in context.queues:
        waiting = info.counts.get("waiting", 0) + info.counts.get("parked", 0)
        if not waiting or info.paused:
            continue
        said = await context.app.store.execute(lrq.GetLimits(queue=info.name))
        most, active = said.queue.concurrency, info.counts.get("active", 0)
        if most is not None and active >= most:
            text = f"{info.name}: all {most:,} that may run at once do, and {many(waiting, 'job')} wait"
            advice = "wait, or raise the queue's concurrency"
            yield Finding("warning", text, advice, "limit", queue=info.name, count=waiting)
        if said.hold_until_ms > context.now:
            text = f"{info.name}: held back for {show_age(said.hold_until_ms - context.now)} more"
            yield Finding("warning", text, "wait, or end the hold", "hold", queue=info.name, count=waiting)
        async for finding in _full_groups(context, info):
            yield finding


async def _full_groups(context: CheckContext, info: QueueInfo) -> AsyncIterator[Finding]:
    """Find the group of a queue that holds back most jobs."""
    if not info.counts.get("parked") or not context.app.store.capabilities.groups:
        return
    page = await context.app.store.execute(lrq.ListGroups(queue=info.name, limit=1_000))
    held = sorted(
        (group for group in page.groups if group.parked), key=lambda group: group.parked, reverse=True
    )
    if held:
        first = held[0]
        others = f", {len(held) - 1:,} more groups hold jobs back" if len(held) > 1 else ""
        verb = "is paused" if first.paused else "has reached its limit"
        text = f"{info.name}: group {first.name} {verb} with {many(first.parked, 'job')} waiting{others}"
        about = _About(queue=info.name, group=first.name, count=first.parked)
        advice = "resume the group" if first.paused else "wait, or raise the group's limits"
        yield Finding("warning", text, advice, "group_limit", **about)


class ArchiverLag(NamedTuple):
    """An archiver, and the number of history records that it has not copied."""

    archiver: ArchiverInfo
    behind: int


async def archivers_behind(app: Windlass, queues: Collection[str]) -> list[ArchiverLag]:
    """Return the archivers of a store, with how far each is behind in the history of these queues."""
    ends = await app.store.execute(mq.MetricsProgress()) if app.store.capabilities.metrics else []
    newest = {end.queue: end.newest for end in ends if end.queue in queues}
    return [
        ArchiverLag(one, sum(max(at - one.cursors.get(name, 0), 0) for name, at in newest.items()))
        for one in await app.store.execute(rq.ListArchivers())
    ]


async def check_pipeline(context: CheckContext) -> AsyncIterator[Finding]:
    """Find archivers that are gone or far behind, because the history log grows for them."""
    for archiver, behind in await archivers_behind(context.app, {info.name for info in context.queues}):
        late_ms = context.now - archiver.seen_ms
        if late_ms > _LATE_ARCHIVER_MS:
            text = f"archiver {archiver.name} was last seen {show_age(late_ms)} ago and holds the history"
        elif behind > _FAR_BEHIND:
            text = f"archiver {archiver.name} is {behind:,} records behind the history"
        else:
            continue
        advice = (
            f"start its 'windlass pipeline run'; after 7 days, or {HISTORY_HELD:,} records, it is forgotten"
        )
        yield Finding("warning", text, advice, "pipeline", count=behind, since_ms=archiver.seen_ms)


async def every_job(
    app: Windlass, queue: str, state: JobState, most: int | None = None
) -> AsyncIterator[JobRecord]:
    """Iterate over the jobs in a state, newest first, up to about ``most`` of them."""
    request = rq.ListJobs(queue=queue, states=[state], limit=1_000)
    seen = 0
    while True:
        page = await app.store.execute(request)
        for job in page.jobs:
            yield job
        seen += len(page.jobs)
        if page.cursor is None or (most is not None and seen >= most):
            return
        request = rq.ListJobs(queue=queue, states=[state], limit=1_000, cursor=page.cursor)


HEALTH_CHECKS: tuple[Callable[[CheckContext], AsyncIterator[Finding]], ...] = (
    check_unserved,
    check_paused,
    check_leases,
    check_lost,
    check_spikes,
    check_limits,
    check_pipeline,
)


async def run_checks(context: CheckContext) -> list[Finding]:
    """Run all checks concurrently and return their findings."""
    found = await gather_limited(_findings(check(context)) for check in HEALTH_CHECKS)
    return [finding for one in found for finding in one]


async def _findings(check: AsyncIterator[Finding]) -> list[Finding]:
    return [finding async for finding in check]
