"""Claim: choose the jobs that start next, and lease them."""

from __future__ import annotations

from collections.abc import Iterable

from windlass.backend import requests as rq
from windlass.core import change_rules, transitions
from windlass.core import limit_rules as lm
from windlass.core.job import EventType, JobRecord
from windlass.core.states import JobState
from windlass.engine import leases, timing
from windlass.engine.effects import Kind
from windlass.engine.groups import refit_some
from windlass.engine.reads import STEP, Reads, Verb
from windlass.engine.saving import is_prepared, limits_of, prepare, save, save_alike
from windlass.engine.unit_of_work import QueueView, UnitOfWork
from windlass.engine.views import view

#: How often one claim may read further into a queue. It has to when jobs have unique keys, or when many jobs
#: were parked or expired instead of starting.
FURTHER = 3

_WAITING, _ACTIVE, _LEASED = JobState.WAITING, JobState.ACTIVE, Kind.LEASED


def claim(work: UnitOfWork, request: rq.Claim) -> Verb[rq.Claimed]:
    """Lease the next jobs of some queues to a worker.

    Reads: 1, with groups 2, 1 more while new limits of every group are applied; at most ``FURTHER`` more.
    """
    yield reads(request)
    return (yield from pick(work, request))


def reads(request: rq.Claim) -> Reads:
    """The first batch that a claim reads."""
    names = [item.name for item in request.queues]
    timed = dict.fromkeys(names, STEP)
    return Reads(queues=names, lines=dict.fromkeys(names, request.limit + 1), due=timed, timed=timed)


def pick(work: UnitOfWork, request: rq.Claim) -> Verb[rq.Claimed]:
    """Lease jobs. The caller has loaded ``reads``."""
    work.claiming = True
    claim = _Claim(work, request)
    yield from claim.prepare()
    for bound in ("share", "cap"):
        for queue, item in claim.queues:
            claim.passed = 0
            while not claim.take(queue, getattr(item, bound)) and claim.further > 0:
                claim.further -= 1
                yield from prepare(work, work.lines[queue.name].ahead(2 * STEP))
        if len(claim.jobs) >= request.limit:
            break
    note_drained(work, claim.taken)
    due_in_ms = 0 if claim.cut else timing.next_due_in(work, [queue for queue, _ in claim.queues])
    return rq.Claimed([view(job, work.now_ms) for job in claim.jobs], work.now_ms, due_in_ms)


class _Claim:
    """The state of one claim while it runs."""

    __slots__ = ("_request", "_work", "cut", "further", "jobs", "passed", "queues", "taken")

    def __init__(self, work: UnitOfWork, request: rq.Claim) -> None:
        self._work = work
        self._request = request
        self.queues = [(queue, item) for item in request.queues if (queue := work.queues[item.name]).exists]
        self.jobs: list[JobRecord] = []
        self.taken: dict[str, int] = {}
        #: The number of jobs of the current queue that were found but did not start in this round.
        self.passed = 0
        self.further = FURTHER
        #: Whether the claim stopped at a bound while more jobs may be able to start. The worker then claims
        #: again at once.
        self.cut = False

    def prepare(self) -> Iterable[Reads]:
        """Promote due jobs, and load what the jobs at the front of the queues need to start."""
        work = self._work
        for queue, _ in self.queues:
            name = queue.name
            if queue.row.grouped or work.due[name].head() is not None or work.timed[name].head() is not None:
                return self._bring_in()
        return ()

    def _bring_in(self) -> Verb[int]:
        work, names = self._work, [queue.name for queue, _ in self.queues]
        yield from refit_some(work, names)
        grouped = [work.lines[queue.name] for queue, _ in self.queues if queue.row.grouped]
        due, timed = timing.due_by_queue(work, names, STEP), timing.timed_now(work, names)
        ahead = [job for line in grouped for job in line.ahead(self._request.limit)]
        return (yield from timing.bring_in(work, due, timed, names, STEP, ahead=ahead))

    def take(self, queue: QueueView, bound: int) -> bool:
        """Lease jobs of a queue, up to ``bound`` in this claim. False: the caller must read further first."""
        work, line = self._work, self._work.lines[queue.name]
        room = min(bound - self.taken.get(queue.name, 0), self._request.limit - len(self.jobs))
        if room <= 0 or queue.row.paused:
            return True
        room = min(room, queue_room(work, queue)[0])
        if queue.row.limits.revoked:
            self._forget_past(queue)
        limits = queue.row.limits
        if not queue.row.grouped and limits.rate is None and not limits.revoked:
            room -= self._start_plain(queue, line.take_plain(room))
        while room > 0:
            job = line.head()
            if job is None:
                self.cut = self.cut or line.is_cut
                break
            if self.passed >= STEP:
                self.cut = True
                break
            if not is_prepared(work, job):
                self.cut = self.cut or not self.further
                return False
            if self._start(queue, job):
                room -= 1
            else:
                self.passed += 1
        return True

    def _start_plain(self, queue: QueueView, jobs: list[JobRecord]) -> int:
        """Lease plain jobs that were taken from the front of the queue. Returns how many."""
        if jobs:
            request = self._request
            claim_id = request.claim_id
            tokens = [f"{claim_id}.{job.seq}" for job in jobs]
            transitions.lease_all(jobs, tokens, self._work, worker=request.worker, lease_ms=request.lease_ms)
            save_alike(self._work, queue.name, jobs, _WAITING, _ACTIVE, _LEASED)
            self._count(queue, jobs)
        return len(jobs)

    def _count(self, queue: QueueView, jobs: list[JobRecord]) -> None:
        self.jobs += jobs
        self.taken[queue.name] = self.taken.get(queue.name, 0) + len(jobs)

    def _forget_past(self, queue: QueueView) -> None:
        """Drop expired revocations, so that the next claim does not check them."""
        limits = lm.without_past(queue.row.limits, self._work.now_ms)
        if limits is not queue.row.limits:
            queue.row.limits = limits
            self._work.put_queue(queue)

    def _start(self, queue: QueueView, job: JobRecord) -> bool:
        """Lease a job. False if it has expired, its group has no room, or its task is revoked."""
        work, request = self._work, self._request
        if job.expires_ms is not None and transitions.is_expired(job, work.now_ms):
            leases.end_late(work, job)
            return False
        if job.options.group is not None and not may_start(work, job):
            save(work, job, _WAITING)
            return False
        if queue.row.limits.revoked and uses_revocation(work, queue, job.task):
            change_rules.cancel(job, lm.REVOKED_REASON % job.task, work)
            save(work, job, _WAITING)
            return False
        token = f"{request.claim_id}.{job.seq}"
        start(work, queue, job, token=token, worker=request.worker, lease_ms=request.lease_ms)
        self._count(queue, [job])
        return True


def uses_revocation(work: UnitOfWork, queue: QueueView, task: str) -> bool:
    """Whether a task is revoked. A revocation for one start is used up by this call.

    The caller has dropped expired revocations.
    """
    found = queue.row.limits.revoked.get(task)
    if found is not None and found.once:
        queue.row.limits = lm.with_revoked(queue.row.limits, task, None)
        work.put_queue(queue)
    return found is not None


def start(
    work: UnitOfWork, queue: QueueView, job: JobRecord, *, token: str, worker: str, lease_ms: int
) -> None:
    """Lease a waiting job that may start now."""
    transitions.lease(job, work, token=token, worker=worker, lease_ms=lease_ms)
    _note_start(work, queue, job)
    save(work, job, _WAITING, _LEASED)


def note_drained(work: UnitOfWork, names: Iterable[str]) -> None:
    """Record a ``drained`` event for each of these queues that has no waiting and no parked job left."""
    for name in names:
        line = work.lines[name]
        if not work.queues[name].parked and line.head() is None and not line.is_cut:
            work.note_of(name, EventType.DRAINED)


def queue_room(work: UnitOfWork, queue: QueueView) -> tuple[int, int | None]:
    """How many jobs may start now under the queue's own limits: see ``core.limit_rules.queue_room``."""
    row = queue.row
    return lm.queue_room(row.limits, queue.starts, queue.active, row.hold_until_ms, work.now_ms)


def may_start(work: UnitOfWork, job: JobRecord) -> bool:
    """Whether a waiting job of a group may start now. If not, this parks it, or fails it if it never can.

    The caller saves the job.
    """
    assert job.options.group is not None, "only jobs of a group are checked"
    group = work.groups[job.queue, job.options.group]
    limits = limits_of(work, group)
    if not limits.takes(job.options.cost):
        transitions.refuse_cost(job, work)
        return False
    at_ms = group.opens_at(limits, job, work.now_ms, starting=True)
    if at_ms is None or at_ms > work.now_ms:
        transitions.park(job, work)
        return False
    return True


def _note_start(work: UnitOfWork, queue: QueueView, job: JobRecord) -> None:
    """Record a start for the rates and buckets of the queue and of the job's group."""
    if queue.row.limits.rate is not None:
        lm.note_start(queue.row.limits.rate, queue.starts, work.now_ms)
        work.add_start(queue.name, None, queue.starts)
    if job.options.group is not None:
        group = work.groups[job.queue, job.options.group]
        limits = limits_of(work, group)
        lm.take_start(limits, group.usage, job.options.cost, work.now_ms)
        if limits.rate is not None:
            work.add_start(queue.name, group.name, group.usage.starts)
        if limits.bucket is not None:
            work.put_group(group)
