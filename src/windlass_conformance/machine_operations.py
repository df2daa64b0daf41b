"""The operations of the model test: each makes one request from numbers that Hypothesis draws."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
from hypothesis import strategies as st

from windlass.backend import flow_requests as fl
from windlass.backend import limit_requests as lrq
from windlass.backend import metric_requests as mq
from windlass.backend import requests as rq
from windlass.backend import schedule_requests as sq
from windlass.backend import stream_requests as sm
from windlass.core.edges import Dependency
from windlass.core.job import JobRecord, JobRef, NewJob, WorkerInfo
from windlass.core.limit_rules import GroupLimits, Rate
from windlass.core.option_values import StoredUnique, UniqueMode
from windlass.core.options import StoredOptions
from windlass.core.order import Sort, states_of
from windlass.core.outcome import Outcome, Settlement
from windlass.core.rollups import rows_of
from windlass.core.schedule_rules import Rule, ScheduleRecord, plan_firing, slot_job
from windlass.core.states import FINISHED, JobState
from windlass_conformance.machine_twin import IDS, QUEUES, WORKERS, Lease, Twin

Claim = tuple[str, list[tuple[str, int, int]], int, int]
#: Each kind of step: its weight, and the strategies of its arguments.
Steps = dict[str, tuple[int, dict[str, st.SearchStrategy[Any]]]]


class Operations:
    """The steps of a model test on one twin. Leases are chosen by age: 0 is the newest."""

    def __init__(self, twin: Twin, *, apart: bool = False) -> None:
        self.twin = twin
        self._apart = apart
        self._claims = 0
        self._fired = 0
        self._streamed: dict[str, int] = {}

    async def pass_time(self, ms: int) -> None:
        self.twin.now_ms += ms

    async def pass_long_time(self, ms: int) -> None:
        self.twin.now_ms += ms
        await self.prune()

    async def add(self, jobs: list[dict[str, Any]], real: bool = False) -> None:
        """Add jobs. ``real``: only with edges to jobs that exist, since one other edge refuses all jobs."""
        news = [self._new(**fields) for fields in jobs]
        if real:
            await self._drop_edges_to_nothing(news)
        if not self.twin.can("flows"):
            for new in news:
                new.depends_on, new.parent = [], None
        if not self.twin.can("lifo"):
            for new in news:
                new.options = msgspec.structs.replace(new.options, lifo=False)
        if self._apart:
            news = [_kept_apart(new) for new in news]
        await self.twin.same(rq.Add(jobs=news))

    async def add_twice(
        self, queue: str, ids: list[str], unique: StoredUnique, jobs: list[dict[str, Any]]
    ) -> None:
        """A flow that names one id twice: a key may keep the first mention out, the second has an edge."""
        holder, twice, child, _ = ids
        names = (holder, twice, twice, child)
        alone: dict[str, Any] = {"queue": queue, "depends_on": [], "parent": None}
        jobs = [fields | alone | {"id": name} for fields, name in zip(jobs, names, strict=True)]
        jobs[0]["unique"] = jobs[1]["unique"] = unique
        jobs[2]["depends_on"] = [Dependency(queue, child)]
        await self.add(jobs)

    async def _drop_edges_to_nothing(self, news: list[NewJob]) -> None:
        refs = [JobRef(queue, job_id) for queue in QUEUES for job_id in IDS]
        found: list[JobRecord | None] = await self.twin.send(0, rq.GetJobs(refs=refs))
        there = {job.ref: job.state for job in found if job is not None}
        for at, new in enumerate(news):
            earlier = {JobRef(one.queue, one.id) for one in news[:at]}
            new.depends_on = [one for one in new.depends_on if one.ref in there or one.ref in earlier]
            parent = new.parent
            if parent is not None and there.get(parent.ref, JobState.COMPLETED) in FINISHED:
                new.parent = None

    def _new(
        self,
        options: StoredOptions,
        group: tuple[str, int] | None,
        unique: StoredUnique | None,
        **fields: Any,
    ) -> NewJob:
        if group is not None and self.twin.can("groups"):
            options = msgspec.structs.replace(options, group=group[0], cost=group[1])
        follows = unique is not None and unique.mode is UniqueMode.KEEP_LAST
        if unique is not None and self.twin.can("unique") and (not follows or self.twin.can("flows")):
            options = msgspec.structs.replace(options, unique=unique)
        return NewJob(payload=b"[]", options=options, **fields)

    async def limit_queue(
        self, queue: str, fields: list[str], concurrency: int | None, rate: Rate | None
    ) -> None:
        request = lrq.SetQueueLimits(queue=queue, fields=fields, concurrency=concurrency, rate=rate)
        await self._limit("limits", request)

    async def limit_group(self, queue: str, group: str, limits: GroupLimits | None) -> None:
        if group == "*":  # some stores also promote jobs of groups whose hold has ended
            await self.promote(1_000)
        await self._limit("groups", lrq.SetGroupLimits(queue=queue, group=group, limits=limits))

    async def pause_group(self, queue: str, group: str, paused: bool) -> None:
        await self._limit("groups", lrq.PauseGroup(queue=queue, group=group, paused=paused))

    async def hold(self, queue: str, group: str | None, ms: int) -> None:
        await self._limit("limits", lrq.Hold(queue=queue, group=group, ms=ms))

    async def free_key(self, queue: str, key: str) -> None:
        await self._limit("unique", lrq.FreeUniqueKey(queue=queue, key=key))

    async def _limit(self, capability: str, request: rq.Request[Any]) -> None:
        if self.twin.can(capability):
            await self.twin.same(request)

    async def claim(self, claim: Claim) -> None:
        await self.twin.same(self._claim(claim))

    async def settle(self, picks: list[int], ends: list[dict[str, Any]], claim: Claim | None = None) -> None:
        leases = [self._lease(pick) for pick in picks]
        request = self._claim(claim) if claim else None
        ends = [self._possible(end) for end in ends]

        def make(side: int) -> rq.Settle:
            items = [
                Settlement(queue=lease.queue, id=lease.id, token=lease.tokens[side], **end)
                for lease, end in zip(leases, ends, strict=False)
            ]
            return rq.Settle(items=items, claim=request)

        await self.twin.ask(make)

    def _possible(self, end: dict[str, Any]) -> dict[str, Any]:
        needs = {Outcome.WAIT: "flows", Outcome.SUSPEND: "signals"}.get(end["outcome"])
        return end if needs is None or self.twin.can(needs) else {**end, "outcome": Outcome.SNOOZE}

    async def work(self, queue: str, limit: int, ends: list[dict[str, Any]]) -> None:
        """Claim and settle, so that most jobs make progress."""
        before = len(self.twin.leases)
        await self.claim(("w1", [(queue, limit, limit)], limit, 100))
        picks = list(range(len(self.twin.leases) - before))
        if picks:
            await self.settle(picks, ends)

    async def stall(self, queue: str, limit: int) -> None:
        """Claim, let the lease expire, and recover."""
        await self.claim((WORKERS[1], [(queue, limit, limit)], limit, 10))
        self.twin.now_ms += 60
        await self.recover(1_000)

    async def extend(self, picks: list[int], lease_ms: int) -> None:
        leases = [self._lease(pick) for pick in picks]
        await self.twin.ask(
            lambda side: rq.Extend(
                leases=[rq.LeaseRef(one.queue, one.id, one.tokens[side], lease_ms) for one in leases]
            )
        )

    async def reconcile(self, worker: str, picks: list[int]) -> None:
        leases = [self._lease(pick) for pick in picks]
        await self.twin.ask(
            lambda side: rq.Reconcile(worker=worker, held=[one.tokens[side] for one in leases])
        )

    async def promote(self, limit: int) -> None:
        if await self.twin.is_tied([JobState.SCHEDULED, JobState.RETRYING], "due_ms"):
            limit = 1_000
        await self.twin.same(rq.Promote(limit=limit))

    async def recover(self, limit: int) -> None:
        if await self.twin.is_tied([JobState.ACTIVE], "lease_until_ms"):
            limit = 1_000
        await self.twin.same(rq.Recover(limit=limit))

    async def prune(self) -> None:
        await self.twin.same(rq.Prune())

    async def cancel(self, **fields: Any) -> None:
        await self.twin.same(rq.CancelJobs(**fields))

    async def remove(self, refs: list[JobRef], force: bool) -> None:
        await self.twin.same(rq.RemoveJobs(refs=refs, force=force))

    async def retry(self, refs: list[JobRef]) -> None:
        await self.twin.same(rq.RetryJobs(refs=refs))

    async def change(self, ref: JobRef, pick: int | None, fields: dict[str, Any]) -> None:
        target, tokens = self._target(ref, pick)
        await self.twin.ask(lambda side: rq.ChangeJob(ref=target, token=tokens[side], **fields))

    async def report(self, ref: JobRef, pick: int | None, **what: Any) -> None:
        target, tokens = self._target(ref, pick)
        self.twin.logged.add(target)
        await self.twin.ask(lambda side: rq.Report(ref=target, token=tokens[side], **what))

    async def pause(self, queue: str, paused: bool) -> None:
        await self.twin.same(rq.PauseQueue(queue=queue, paused=paused))

    async def trim_events(self, queue: str, keep: int) -> None:
        for side in (0, 1):  # the counts differ: a store may trim old events at any time
            await self.twin.send(side, rq.TrimEvents(queue=queue, keep=keep))

    async def revoke_task(self, queue: str, **how: Any) -> None:
        if self.twin.can("revoked_tasks"):
            await self.twin.same(lrq.RevokeTask(queue=queue, **how))

    async def restore_task(self, queue: str, task: str) -> None:
        if self.twin.can("revoked_tasks"):
            await self.twin.same(lrq.RestoreTask(queue=queue, task=task))

    async def purge(self, **fields: Any) -> None:
        await self.twin.same(rq.Purge(**fields))

    async def keep_result(self, ref: JobRef, ttl_ms: int) -> None:
        await self.twin.same(rq.SetResultTtl(ref=ref, ttl_ms=ttl_ms))

    async def lead(self, holder: str, resign: bool) -> None:
        if resign:
            await self.twin.same(rq.Resign(role="r", holder=holder))
        else:
            await self.twin.same(rq.Elect(role="r", holder=holder, ttl_ms=30))

    async def beat(self, worker: str, busy: int, gone: bool) -> None:
        info = WorkerInfo(id=worker, queues=QUEUES, busy=busy)
        await self.twin.same(rq.Beat(worker=info, gone=gone))

    async def relay(self, limit: int) -> None:
        if self.twin.can("flows"):
            await self.twin.same(fl.Relay(limit=limit))

    async def signal(self, ref: JobRef, name: str, data: bytes) -> None:
        if self.twin.can("signals"):
            await self.twin.same(fl.Signal(ref=ref, name=name, data=data))

    async def stream(self, pick: int, chunks: list[bytes]) -> None:
        """Append the next output of a running attempt twice; the second time changes nothing."""
        lease = self._lease(pick)
        if not self.twin.can("streams"):
            return
        first = self._streamed.get(lease.tokens[0], 0) + 1
        self._streamed[lease.tokens[0]] = first + len(chunks) - 1
        for _ in range(2):
            await self.twin.ask(
                lambda side: sm.AppendStream(
                    ref=JobRef(lease.queue, lease.id), token=lease.tokens[side], first=first, chunks=chunks
                )
            )

    async def archive(self, name: str, cursors: dict[str, int]) -> None:
        await self.twin.same(rq.Archive(name=name, cursors=cursors))

    async def search(self, **fields: Any) -> None:
        sort, states = fields["sort"], fields["states"]
        if sort is not Sort.ADDED:
            fields["states"] = [state for state in states if state in states_of([], sort)]
        await self.twin.same_listing(**fields)

    async def restore(self, refs: list[JobRef], later: bool) -> None:
        """Remove jobs and import them again, as an export shows them."""
        found = await self.twin.send(0, rq.GetJobs(refs=refs))
        if not self.twin.can("restore"):
            return
        jobs = [job for job in found if job is not None and job.payload and job.state is not JobState.BLOCKED]
        if not later:
            await self.twin.same(rq.RemoveJobs(refs=refs, force=True))
        await self.twin.ask(lambda side: rq.Restore(jobs=[_exported(job) for job in jobs]))

    async def publish(self, queue: str, job_id: str) -> None:
        await self.twin.same(rq.PublishEvent(queue=queue, name="n", data='{"a":1}', job_id=job_id))

    async def command(self, worker: str, command_id: str) -> None:
        if self.twin.can("commands"):
            await self.twin.same(rq.CommandWorker(worker=worker, action="quiet", id=command_id))

    async def mark(self, mark_id: str) -> None:
        if self.twin.can("metrics"):
            await self.twin.same(mq.AddMark(id=mark_id, label=f"mark {mark_id}"))

    async def roll_up(self, queue: str) -> None:
        """Roll up the rest of the history of a queue."""
        if not self.twin.can("metrics"):
            return
        progress = await self.twin.same(mq.MetricsProgress(queue=queue))
        if not progress:
            return
        page = await self.twin.send(
            0, rq.ReadHistory(queue=queue, after=max(progress[0].at, progress[0].oldest - 1))
        )
        at = progress[0].at
        await self.twin.ask(
            lambda side: mq.AddMetrics(queue=queue, after=at, upto=page.last, rows=rows_of(page.records))
        )

    async def put_schedule(self, name: str, job: dict[str, Any], rule: Rule, **fields: Any) -> None:
        if not self.twin.can("schedules"):
            return
        template = self._new(**job)
        template.id = template.request_id = ""
        template.depends_on, template.parent = [], None
        first = self.twin.now_ms + (rule.every_ms or 0)
        record = ScheduleRecord(
            queue=template.queue, name=name, template=template, rule=rule, next_ms=first, **fields
        )
        await self.twin.same(sq.PutSchedule(schedule=record))

    async def fire(self, limit: int, again: bool) -> None:
        """Fire what is due, perhaps twice: the second time nothing happens."""
        if not self.twin.can("schedules"):
            return
        due = await self.twin.same(sq.DueSchedules())
        for record in due.schedules[:limit]:
            plan = plan_firing(record, self.twin.now_ms)
            request = sq.FireSchedule(
                queue=record.queue,
                name=record.name,
                slot_ms=record.next_ms,
                jobs=[slot_job(record, slot) for slot in plan.slots],
                slots=plan.slots,
                next_ms=plan.next_ms,
            )
            for _ in range(1 + again):
                await self.twin.same(request)

    async def fire_by_hand(self, queue: str, name: str) -> None:
        if not self.twin.can("schedules"):
            return
        page = await self.twin.same(sq.ListSchedules(queue=queue, name=name))
        for record in page.schedules:
            self._fired += 1
            job = slot_job(record, f"run{self._fired % 3}")
            await self.twin.same(sq.FireSchedule(queue=queue, name=name, slot_ms=None, jobs=[job]))

    async def pause_schedule(self, queue: str, name: str, paused: bool, wait_ms: int) -> None:
        if self.twin.can("schedules"):
            await self.twin.same(
                sq.PauseSchedule(queue=queue, name=name, paused=paused, next_ms=self.twin.now_ms + wait_ms)
            )

    async def remove_schedule(self, **fields: Any) -> None:
        if self.twin.can("schedules"):
            await self.twin.same(sq.RemoveSchedule(**fields))

    def _claim(self, claim: Claim) -> rq.Claim:
        worker, parts, limit, lease_ms = claim
        self._claims += 1
        queues = [rq.ClaimQueue(*part) for part in parts]
        claim_id = f"c{self._claims}"
        return rq.Claim(worker=worker, queues=queues, limit=limit, claim_id=claim_id, lease_ms=lease_ms)

    def _lease(self, pick: int) -> Lease:
        leases = self.twin.leases
        return leases[-1 - pick % len(leases)] if leases else Lease("x", "j0", "w1", ("", ""))

    def _target(self, ref: JobRef, pick: int | None) -> tuple[JobRef, tuple[str | None, str | None]]:
        if pick is None:
            return ref, (None, None)
        lease = self._lease(pick)
        return JobRef(lease.queue, lease.id), lease.tokens


def _kept_apart(new: NewJob) -> NewJob:
    """The job with its edges in its own queue."""
    new.depends_on = [Dependency(new.queue, one.id, one.on_failure) for one in new.depends_on]
    if new.parent is not None:
        new.parent = Dependency(new.queue, new.parent.id, new.parent.on_failure)
    return new


def _exported(job: JobRecord) -> JobRecord:
    """The job as an import reads it: its lease is gone, and its group decides again."""
    job = copy.copy(job)
    if job.state in (JobState.ACTIVE, JobState.PARKED):
        job.state, job.started_ms, job.worker = JobState.WAITING, None, None
        job.lease_until_ms = None
    return job
