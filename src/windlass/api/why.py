"""Explains why a job is not running, for the API, the command line and programs.

``explain`` reads a few records and counts and changes nothing. The first cause holds the job now; later
causes would hold it next. A store without groups, limits or flows has no such causes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from windlass.backend import flow_requests as fl
from windlass.backend import limit_requests as lrq
from windlass.backend import requests as rq
from windlass.core.edges import EdgeStatus
from windlass.core.job import JobRecord, JobRef, QueueInfo, WorkerInfo
from windlass.core.limit_rules import GroupInfo, GroupLimits, Rate
from windlass.core.states import FINISHED, JobState
from windlass.errors import JobNotFoundError

if TYPE_CHECKING:
    from windlass.backend.store import Store

#: The maximum number of jobs that a cause names, and of records read to find them.
NAMED = 20
_LOOKED = 1_000
#: The maximum number of waiting jobs that are compared to find a job's position.
_LINE = 5_000


class Cause(msgspec.Struct, kw_only=True):
    """One reason why a job does not run. ``kind`` is its stable name."""

    kind: str
    text: str
    advice: str = ""
    until_ms: int | None = None
    limit: int | None = None
    used: int | None = None
    #: The first of the jobs that use the limit, or that the job waits for.
    jobs: list[JobRef] = []
    job_count: int | None = None


class Why(msgspec.Struct, kw_only=True):
    """Why a job is not running. ``place`` is its position in the queue, from 1; None when unknown."""

    ref: JobRef
    state: JobState
    causes: list[Cause]
    place: int | None = None
    #: The number of waiting jobs that were compared.
    waiting: int = 0


async def explain(store: Store, ref: JobRef, now_ms: int) -> Why:
    """Return why the job is not running. Raises ``JobNotFoundError`` when it does not exist."""
    job = await store.get(ref)
    if job is None:
        raise JobNotFoundError(ref.queue, ref.id)
    if job.state in FINISHED:
        return Why(ref=ref, state=job.state, causes=[_finished(job)])
    if job.state is JobState.ACTIVE:
        return Why(ref=ref, state=job.state, causes=[_running(job)])
    scene = await _look(store, job, now_ms)
    place, waiting = await scene.place() if job.state is JobState.WAITING else (None, 0)
    causes = [*await scene.own_causes(), *await scene.queue_causes(place)]
    return Why(ref=ref, state=job.state, causes=causes, place=place, waiting=waiting)


def _finished(job: JobRecord) -> Cause:
    advice = f"windlass retry {job.queue} {job.id}" if job.state is not JobState.COMPLETED else ""
    reason = f" ({job.reason})" if job.reason else ""
    if not job.errors or job.state is not JobState.FAILED:
        return Cause(kind="finished", text=f"it has ended: {job.state}{reason}", advice=advice)
    text = f"it has ended: {job.state}{reason}; its last error is {job.errors[-1].error_class}"
    return Cause(
        kind="finished", text=text, advice=f"windlass job {job.queue} {job.id} shows it; once fixed: {advice}"
    )


def _unknown_task(job: JobRecord) -> list[Cause]:
    """Return the cause of a job that workers gave back because they do not know its task."""
    if not job.misses:
        return []
    times = "once" if job.misses == 1 else f"{job.misses} times"
    return [
        Cause(
            kind="unknown_task",
            text=f"workers gave it back {times}, because they have no handler for its task {job.task!r}",
            advice="start a worker whose app has that task; the log of a worker names similar tasks",
        )
    ]


def _running(job: JobRecord) -> Cause:
    return Cause(kind="running", text=f"worker {job.worker} is running it", until_ms=job.lease_until_ms)


async def _look(store: Store, job: JobRecord, now_ms: int) -> _Scene:
    infos = await store.execute(rq.ListQueues())
    info = next((one for one in infos if one.name == job.queue), QueueInfo(name=job.queue))
    workers = await store.execute(rq.ListWorkers())
    return _Scene(store, job, info, [worker for worker in workers if job.queue in worker.queues], now_ms)


class _Scene:
    """A job that is not running, with its queue and the workers that serve it."""

    def __init__(
        self, store: Store, job: JobRecord, info: QueueInfo, workers: list[WorkerInfo], now_ms: int
    ) -> None:
        self.store = store
        self.now_ms = now_ms
        self.job = job
        self.info = info
        self.workers = workers

    # --- causes of the job itself --------------------------------------------------------------------

    async def own_causes(self) -> list[Cause]:
        """Return what the job waits for because of its state."""
        job = self.job
        match job.state:
            case JobState.SCHEDULED:
                return [*_unknown_task(job), _due(job, "scheduled", "it is due later", "promote")]
            case JobState.WAITING:
                return _unknown_task(job)
            case JobState.RETRYING:
                return [
                    _due(
                        job,
                        "retry_later",
                        f"attempt {job.attempts} failed, and it waits for its retry",
                        "retry",
                    )
                ]
            case JobState.SUSPENDED:
                text = f"it waits for the signal {job.awaits!r}"
                return [Cause(kind="signal", text=text, advice="send the signal", until_ms=job.due_ms)]
            case JobState.BLOCKED:
                return [await self._dependencies()]
        return []

    async def _dependencies(self) -> Cause:
        found = (await self.store.execute(fl.GetDependencies(refs=[self.job.ref], values=False)))[0]
        open_edges = [edge.child for edge in found.depends_on if edge.status is EdgeStatus.OPEN]
        return Cause(
            kind="dependencies",
            text=f"it waits for {len(open_edges):,} of {len(found.depends_on):,} jobs that it depends on",
            advice="look at those jobs",
            jobs=open_edges[:NAMED],
            job_count=len(open_edges),
        )

    # --- causes of its queue and its group -------------------------------------------------------------

    async def queue_causes(self, place: int | None) -> list[Cause]:
        """Return causes outside the job: pauses, limits, missing or busy workers, jobs ahead of it."""
        causes: list[Cause] = []
        if self.info.paused:
            advice = f"windlass resume {self.job.queue}"
            causes.append(Cause(kind="queue_paused", text="its queue is paused", advice=advice))
        causes += self._workers_missing()
        if self.job.state in (JobState.WAITING, JobState.PARKED):
            limits = await self._limit_causes()
            causes += limits
            if not causes:
                causes += self._workers_busy()
            if self.job.state is JobState.WAITING and (place is None or place > 1 or not causes):
                causes.append(_behind(place))
        return causes

    def _workers_missing(self) -> list[Cause]:
        if not self.workers:
            advice = f"start one: windlass worker MODULE:APP --queues {self.job.queue}"
            return [Cause(kind="no_worker", text="no worker serves its queue", advice=advice)]
        if all(worker.quiet for worker in self.workers):
            text = "every worker that serves its queue is quiet: none takes new jobs"
            return [Cause(kind="workers_quiet", text=text, advice="resume one of them, or start another")]
        return []

    def _workers_busy(self) -> list[Cause]:
        awake = [worker for worker in self.workers if not worker.quiet]
        busy, slots = sum(w.busy for w in awake), sum(w.concurrency for w in awake)
        if not awake or busy < slots:
            return []
        text = f"all {slots} slots of the {len(awake)} workers that serve its queue are busy"
        advice = "add slots (--concurrency, --processes) or workers"
        return [Cause(kind="workers_busy", text=text, advice=advice, limit=slots, used=busy)]

    async def _limit_causes(self) -> list[Cause]:
        if not self.store.capabilities.limits:
            return []
        group = self.job.options.group
        named = (group,) if group and self.store.capabilities.groups else ()
        said = await self.store.execute(lrq.GetLimits(queue=self.job.queue, groups=named))
        causes = await self._queue_limits(said)
        if named:
            settings = said.groups[named[0]]
            limits = settings.limits if settings.limits is not None else said.every_group
            info = await self._group_info(named[0])
            causes = [*await self._group_limits(limits, info, settings.hold_until_ms), *causes]
        return causes

    async def _queue_limits(self, said: lrq.Limits) -> list[Cause]:
        causes: list[Cause] = []
        if said.hold_until_ms:
            text = "its queue is on hold and starts no jobs"
            causes.append(Cause(kind="queue_hold", text=text, until_ms=said.hold_until_ms))
        active, most = self.info.counts.get(JobState.ACTIVE, 0), said.queue.concurrency
        if most is not None and active >= most:
            text = f"its queue is limited to {most:,} running jobs, and {active:,} are running"
            causes.append(await self._held("queue_concurrency", text, most, active, None))
        if said.queue.rate is not None:
            causes += await self._rate_of_queue(said.queue.rate)
        return causes

    async def _rate_of_queue(self, rate: Rate) -> list[Cause]:
        """Return the queue's rate limit if the records of started jobs show that its window is full."""
        ran = [JobState.ACTIVE, JobState.COMPLETED, JobState.FAILED, JobState.RETRYING]
        starts = sorted(job.started_ms for job in await self._jobs(ran) if job.started_ms is not None)
        window = starts[-rate.max :]
        if len(window) < rate.max or window[0] + rate.per_ms <= self.now_ms:
            return []
        text = f"its queue is limited to {rate.max:,} starts in any {rate.per_ms / 1_000:g} s"
        return [Cause(kind="queue_rate", text=text, limit=rate.max, until_ms=window[0] + rate.per_ms)]

    async def _group_info(self, group: str) -> GroupInfo | None:
        """Find the group in the list of groups, from a prefix of its name, which sorts before it."""
        request = lrq.ListGroups(queue=self.job.queue, cursor=group[:-1] or None, limit=_LOOKED)
        for _ in range(10):
            page = await self.store.execute(request)
            for info in page.groups:
                if info.name == group:
                    return info
            if page.cursor is None:
                return None
            request.cursor = page.cursor
        return None

    async def _group_limits(
        self, limits: GroupLimits, info: GroupInfo | None, hold_until_ms: int
    ) -> list[Cause]:
        group = self.job.options.group
        causes: list[Cause] = []
        if info is not None and info.paused:
            text = f"its group {group!r} is paused"
            causes.append(Cause(kind="group_paused", text=text, advice="resume the group"))
        if hold_until_ms:
            text = f"its group {group!r} is on hold and starts no jobs"
            causes.append(Cause(kind="group_hold", text=text, until_ms=hold_until_ms))
        admitted = info.active + info.waiting if info is not None else 0
        if self.job.state is JobState.WAITING:
            admitted = info.active if info is not None else 0
        if limits.ordered and admitted:
            text = f"jobs of its group {group!r} run one at a time, in the order of adding"
            causes.append(await self._held("group_ordered", text, 1, admitted, group))
        elif limits.concurrency is not None and admitted >= limits.concurrency:
            most = limits.concurrency
            used = f"{admitted:,} are running or next"
            text = f"its group {group!r} is limited to {most:,} running jobs, and {used}"
            causes.append(await self._held("group_concurrency", text, most, admitted, group))
        if not causes and self.job.state is JobState.PARKED:
            causes += _group_pace(limits, info, group)
        return causes

    async def _held(self, kind: str, text: str, limit: int, used: int, group: str | None) -> Cause:
        """Return a cause for a limit that is used up, with the jobs that use it."""
        active = await self._jobs([JobState.ACTIVE])
        holders = [job.ref for job in active if group is None or job.options.group == group]
        advice = "wait for them, or raise the limit"
        return Cause(
            kind=kind, text=text, advice=advice, limit=limit, used=used, jobs=holders[:NAMED], job_count=used
        )

    async def _jobs(self, states: list[JobState]) -> list[JobRecord]:
        request = rq.ListJobs(queue=self.job.queue, states=states, limit=_LOOKED)
        return (await self.store.execute(request)).jobs

    # --- position ----------------------------------------------------------------------------------------

    async def place(self) -> tuple[int | None, int]:
        """Return the job's position among the waiting jobs, from 1; None when too many jobs wait."""
        mine = _rank(self.job)
        request = rq.ListJobs(queue=self.job.queue, states=[JobState.WAITING], limit=_LOOKED)
        before, seen = 0, 0
        while seen < _LINE:
            page = await self.store.execute(request)
            before += sum(_rank(job) < mine for job in page.jobs if job.id != self.job.id)
            seen += len(page.jobs)
            if page.cursor is None:
                return before + 1, seen
            request.cursor = page.cursor
            seen += 1  # an empty page also counts
        return None, seen


def _rank(job: JobRecord) -> tuple[int, int, int]:
    return -job.priority, job.turn, job.place


def _due(job: JobRecord, kind: str, text: str, verb: str) -> Cause:
    return Cause(kind=kind, text=text, advice=f"windlass {verb} {job.queue} {job.id}", until_ms=job.due_ms)


def _behind(place: int | None) -> Cause:
    if place is None:
        return Cause(kind="behind", text=f"more than {_LINE:,} jobs wait in its queue")
    if place == 1:
        return Cause(kind="behind", text="it is the next in line")
    return Cause(kind="behind", text=f"{place - 1:,} jobs are ahead of it", used=place - 1)


def _group_pace(limits: GroupLimits, info: GroupInfo | None, group: str | None) -> list[Cause]:
    """Return the rate or bucket that delays a parked job whose group has free slots."""
    until_ms = None if info is None else info.next_ms
    if limits.rate is not None:
        window = f"{limits.rate.per_ms / 1_000:g} s"
        text = f"its group {group!r} is limited to {limits.rate.max:,} starts in any {window}"
        return [Cause(kind="group_rate", text=text, limit=limits.rate.max, until_ms=until_ms)]
    if limits.bucket is not None:
        gain = f"{limits.bucket.refill_per_s:g} per second"
        text = f"the token bucket of its group {group!r} has too few tokens and gains {gain}"
        return [Cause(kind="group_bucket", text=text, limit=limits.bucket.capacity, until_ms=until_ms)]
    return [
        Cause(
            kind="group", text=f"its group {group!r} will have room for the next job soon", until_ms=until_ms
        )
    ]
