"""The coordinator's state: the memory store, extended by the verbs of the log.

The memory store carries out every request. This module applies the facts that workers and producers report
(``verbs``). It decides which start of a job counts, which message belongs to the job, and how it ended.
"""

from __future__ import annotations

from collections import OrderedDict

from windlass.backend import requests as rq
from windlass.backends.amqp import verbs
from windlass.backends.amqp.foreign_jobs import Placed
from windlass.backends.amqp.messages import Incoming, MessageError, read_message
from windlass.backends.amqp.placing import PlannedJobs, mark_of
from windlass.backends.amqp.unreadable import poison
from windlass.core import transitions
from windlass.core.job import JobRecord, JobRef
from windlass.core.outcome import Outcome, Settled, Settlement
from windlass.core.states import JobState
from windlass.engine import adding, claiming, leases, reports
from windlass.engine.reads import MoreReads, Reads, Verb
from windlass.engine.settling import settle_one
from windlass.engine.unit_of_work import UnitOfWork
from windlass.engine.views import view

#: The length of a lease that does not have its own, when a new coordinator restarts all leases.
_LEASE_MS = 30_000
_STARTS_KEPT = 100_000


class Ledger(PlannedJobs):
    """The jobs of one namespace."""

    def __init__(self) -> None:
        super().__init__()
        #: Keys of which two messages may exist, because the job was added again or its worker reconnected.
        #: They are in ``void`` too, so that workers verify them. One message counts while the job waits.
        self._ambiguous: OrderedDict[tuple[str, str, int], None] = OrderedDict()
        #: Tokens of the newest starts that were applied.
        self._tokens: OrderedDict[str, None] = OrderedDict()
        self.verbs = self.verbs | {
            verbs.Born: self._born,
            verbs.Started: self._started,
            verbs.Ended: self._ended,
            verbs.Close: self._close,
            verbs.Lend: self._lend,
            verbs.Doubt: self._doubt,
            verbs.Expire: self._expire,
            verbs.PromoteFor: self._promote_for,
            verbs.Poison: self._poison,
            rq.Recover: self._recover_lost,
        }
        self.shows = self.shows | {verbs.GetRules: Ledger.get_rules}

    # --- facts -------------------------------------------------------------------------------------------

    def _born(self, work: UnitOfWork, request: verbs.Born) -> Verb[None]:
        yield from adding.load(work, request.add.jobs)
        for new in request.add.jobs:
            ref = JobRef(new.queue, new.id)
            old = work.jobs[ref]
            adding.add_one(work, new)
            if work.jobs[ref] is not old:
                self._published[ref] = 0
            else:  # added again, with a second message; the first one may be lost
                self._require_check((new.queue, new.id, 0))
                self._doubled.append((new.queue, new.id, 0))

    def _require_check(self, key: tuple[str, str, int]) -> None:
        """Have workers verify messages of ``key``: there may be one or two of them."""
        self.void[key] = None
        self._ambiguous[key] = None
        if len(self._ambiguous) > _STARTS_KEPT:
            self.void.pop(self._ambiguous.popitem(last=False)[0], None)

    def _started(self, work: UnitOfWork, request: verbs.Started) -> Verb[None]:
        yield from self._begin(work, request.starts)

    def _begin(self, work: UnitOfWork, starts: list[verbs.Start]) -> Verb[None]:
        names = list(dict.fromkeys(start.queue for start in starts))
        yield Reads(jobs=_refs(work, starts), lines=dict.fromkeys(names, len(starts) + 1))
        for start in starts:
            if start.token not in self._tokens:  # its end may have come first, and brought the start along
                self._start(work, start)
        claiming.note_drained(work, names)

    def _start(self, work: UnitOfWork, start: verbs.Start) -> JobRecord | None:
        """Apply a start. Returns its job if the start counts, else None."""
        ref = JobRef(start.queue, start.id)
        job = work.jobs[ref] or self._learn(work, start)
        if job is None:
            return None
        newest = self._is_newest(self.placed.get(ref), start.gen)
        if newest:
            self._take_back(work, job, start)
        if job.state is not JobState.WAITING or not newest:
            return job if transitions.holds(job, start.token) else None
        read_ms, work.now_ms = work.now_ms, start.at_ms
        claiming.start(
            work,
            work.queues[job.queue],
            job,
            token=start.token,
            worker=start.worker,
            lease_ms=start.lease_ms,
        )
        work.now_ms = read_ms
        self._choose(start)
        self.has_left(job)  # the worker has its message, even if this entry ends the job
        self._tokens[start.token] = None
        if len(self._tokens) > _STARTS_KEPT:
            self._tokens.popitem(last=False)
        return job

    def _take_back(self, work: UnitOfWork, job: JobRecord, start: verbs.Start) -> None:
        """Take a running job from its earlier holder: the worker that has the message has the job."""
        if job.state is JobState.ACTIVE and job.token != start.token:
            leases.take_back(work, job)

    def _is_newest(self, placed: Placed | None, gen: int) -> bool:
        """Whether neither a later message nor the lease of a running job has replaced this message."""
        if placed is None:
            return True
        return not placed.kept_by_lease and (placed.where != "queue" or placed.gen <= gen)

    def _learn(self, work: UnitOfWork, start: verbs.Start) -> JobRecord | None:
        """Add an unknown job, as of another program, from its message; None if that is not possible."""
        if start.body is None:
            return None
        try:
            found: Incoming = read_message(start.queue, start.body, start.header, start.priority, work.now_ms)
        except MessageError:
            return None
        job = found.job
        reports.learn(work, job, added=found.foreign)
        self.placed[job.ref] = Placed("queue", start.gen, job.state, mark_of(job))
        self._published[job.ref] = start.gen
        return job

    def _ended(self, work: UnitOfWork, request: verbs.Ended) -> Verb[None]:
        yield from self._close(work, verbs.Close(items=request.items, starts=request.starts))
        yield from self._begin(work, request.began)

    def _close(self, work: UnitOfWork, request: verbs.Close) -> Verb[verbs.Closing]:
        known = {start.token: start for start in request.starts}
        refs = dict.fromkeys(JobRef(end.queue, end.id) for end in request.items)
        waits = [JobRef(end.queue, end.id) for end in request.items if end.outcome is Outcome.WAIT]
        yield MoreReads(jobs=[*refs, *_refs(work, request.starts)], waits=waits, unmet=waits)
        items, requeue = [], []
        for end in request.items:
            start = known.get(end.token)
            status, back = self._close_one(work, end, start)
            items.append(status)
            requeue.append(back)
        return verbs.Closing(items, requeue)

    def _close_one(
        self, work: UnitOfWork, end: Settlement, start: verbs.Start | None
    ) -> tuple[Settled, bool]:
        """Settle one attempt. Returns the outcome, and whether the worker must return the message."""
        ref = JobRef(end.queue, end.id)
        mark = mark_of(work.jobs[ref])
        status = settle_one(work, end)
        if status in (Settled.LOST, Settled.GONE) and start is not None and end.token not in self._tokens:
            self._start(work, start)  # its start was never logged, or the log has forgotten it
            mark = mark_of(work.jobs[ref])
            status = settle_one(work, end)
        job = work.jobs[ref]
        if status is not Settled.OK:
            # The first answer may have been lost. If the job was released, its message must go back now.
            back = start is not None and self._waits_on_message(job, start.gen)
            if start is not None and not back and status is not Settled.ALREADY:
                self._dropped(start.key)
            return status, back
        self._closed.add(end.token)
        return status, job is not None and job.state is JobState.WAITING and mark_of(job) == mark

    def _dropped(self, key: tuple[str, str, int]) -> None:
        """Note that a worker drops its message of ``key``. It need not be verified any more, unless there may
        be a second one."""
        if key not in self._ambiguous:
            self.void.pop(key, None)

    def _waits_on_message(self, job: JobRecord | None, gen: int) -> bool:
        """Whether ``job`` is waiting and its message is the one of generation ``gen``."""
        if job is None or job.state is not JobState.WAITING:
            return False
        placed = self.placed.get(job.ref)
        return placed is not None and placed.where == "queue" and placed.gen == gen

    def _lend(self, work: UnitOfWork, request: verbs.Lend) -> Verb[list[bool]]:
        yield Reads(jobs=_refs(work, request.starts))
        kept = []
        for start in request.starts:
            job = work.jobs[JobRef(start.queue, start.id)]
            holds = job is not None and transitions.holds(job, start.token)
            taken = request.left and job is not None and job.state is JobState.ACTIVE
            if not holds and not taken and start.token not in self._tokens:  # its start was never logged
                job = self._start(work, start)
                holds = job is not None
            if holds and not self._is_kept_by_lease(start):
                self._to_keep.add(start.token)
                self._touched[JobRef(start.queue, start.id)] = job
                if request.left:
                    self._require_check(start.key)
                    self._doubled.append(start.key)
            kept.append(holds)
        return kept

    def _is_kept_by_lease(self, start: verbs.Start) -> bool:
        placed = self.placed.get(JobRef(start.queue, start.id))
        return placed is not None and placed.kept_by_lease

    def _doubt(self, work: UnitOfWork, request: verbs.Doubt) -> Verb[list[JobRecord | None]]:
        yield Reads(jobs=_refs(work, request.starts))
        answers: list[JobRecord | None] = []
        let_in: set[tuple[str, str, int]] = set()  # if a worker has two messages of a job, one counts
        for start in request.starts:
            job = None if start.key in let_in else self._verify_one(work, start)
            if job is not None:
                let_in.add(start.key)
            answers.append(job)
        return answers

    def _verify_one(self, work: UnitOfWork, start: verbs.Start) -> JobRecord | None:
        ref = JobRef(start.queue, start.id)
        if start.key in self.void and not self._waits_on_message(work.jobs[ref], start.gen):
            del self.void[start.key]
            self._ambiguous.pop(start.key, None)
            return None
        job = work.jobs[ref] or self._learn_unless_ended(work, start)
        if job is None or not self._is_newest(self.placed.get(ref), start.gen) or self._is_second(start):
            return None
        if not start.again:  # otherwise the holder has the first message, and may still run the job
            self._take_back(work, job, start)
        if job.state is not JobState.WAITING:
            return None
        self._choose(start)
        return view(job, work.now_ms)

    def _learn_unless_ended(self, work: UnitOfWork, start: verbs.Start) -> JobRecord | None:
        """``_learn``, except for messages of a job that has ended. Only other programs may reuse an id."""
        ended = start.header is not None and start.key in self.gone
        return None if ended else self._learn(work, start)

    def _choose(self, start: verbs.Start) -> None:
        """Make the message of ``start`` the one that counts for its job."""
        placed = self.placed.get(JobRef(start.queue, start.id))
        if placed is not None and (placed.where, placed.gen) == ("queue", start.gen):
            placed.copy = start.copy

    def _is_second(self, start: verbs.Start) -> bool:
        """Whether another message of the same generation already counts."""
        placed = self.placed.get(JobRef(start.queue, start.id))
        if placed is None or placed.gen != start.gen or placed.copy is None or start.copy is None:
            return False
        return placed.copy != start.copy

    def _expire(self, work: UnitOfWork, request: verbs.Expire) -> Verb[None]:
        yield Reads(jobs=_refs(work, request.starts))
        for start in request.starts:
            job = work.jobs[JobRef(start.queue, start.id)] or self._learn(work, start)
            if job is not None and job.state is JobState.WAITING:
                self.has_left(job)  # the worker has its message
                leases.end_late(work, job)

    # --- requests ----------------------------------------------------------------------------------------

    def get_rules(self, request: verbs.GetRules, now_ms: int) -> verbs.Rules:
        """The rules that a worker needs before its first claim."""
        paused = [queue.name for queue in self.queues.values() if queue.row.paused]
        return verbs.Rules(paused, list(self.void), {name: self.due_ms(name) for name in self.queues})

    def _promote_for(self, work: UnitOfWork, request: verbs.PromoteFor) -> Verb[int | None]:
        queues = [rq.ClaimQueue(name, 0, 0) for name in request.queues]
        claim = rq.Claim(worker="", queues=queues, limit=0, claim_id="")
        return (yield from claiming.claim(work, claim)).next_due_in_ms

    def due_ms(self, queue: str) -> int | None:
        """When the first scheduled or retrying job of a queue is due, or None."""
        first = self.look(queue).next_due()
        return None if first is None else first.due_ms

    def next_due_in(self, now_ms: int) -> int | None:
        """The ms until the next job of any queue is due, or None."""
        due = [job.due_ms or 0 for queue in self.queues.values() if (job := queue.next_due())]
        return max(min(due) - now_ms, 0) if due else None

    def _recover_lost(self, work: UnitOfWork, request: rq.Recover) -> Verb[rq.Recovered]:
        """Recover expired leases. Each job gets a new message, which replaces the one of its worker."""
        result = yield from leases.recover(work, request)
        for ref in result.recovered:
            placed = self.placed.get(ref)
            if placed is not None:
                placed.mark = None
        return result

    def trust_leases(self, now_ms: int) -> None:
        """Restart all leases from ``now_ms``: they could not be renewed while there was no coordinator."""
        held = []
        for job in self.active.values():
            left_ms = (job.lease_until_ms or 0) - now_ms
            lease_ms = max(job.options.lease_ms or _LEASE_MS, left_ms)
            held.append(rq.LeaseRef(job.queue, job.id, job.token or "", lease_ms))
        self.apply(rq.Extend(leases=held), now_ms)

    def _poison(self, work: UnitOfWork, request: verbs.Poison) -> Verb[None]:
        yield from self.bury(work, poison(request.queue, request.body, request.problem, work.now_ms))


def _refs(work: UnitOfWork, starts: list[verbs.Start]) -> list[JobRef]:
    """The jobs of ``starts`` that are not loaded yet."""
    refs = dict.fromkeys(JobRef(start.queue, start.id) for start in starts)
    return [ref for ref in refs if ref not in work.jobs]
