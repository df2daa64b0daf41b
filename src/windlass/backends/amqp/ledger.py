"""The state that the log tells: the reference store, which also says what the broker must be made to hold.

The memory store decides what every request means; this adds the verbs that only a broker's client has, and
keeps for each job where its message is (``Placed``). After every entry of the log ``plan`` compares the two:

* a job that waits has one message in its queue, of the newest generation; older ones are *void*;
* a job that is scheduled, retrying or dead has one message in ``windlass.kept`` until that ends;
* anything else has none.

The same log gives the same generations, so that what is published twice after a crash can be told.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import msgspec

from windlass.backend import requests as rq
from windlass.backends.amqp import verbs
from windlass.backends.amqp.elsewhere import Elsewhere, Placed
from windlass.backends.amqp.messages import Incoming, MessageError, poison, read_message
from windlass.core import transitions
from windlass.core.job import ArchiverInfo, CounterRow, EventType, JobRecord, JobRef
from windlass.core.outcome import Outcome, Settled
from windlass.core.schedules import ScheduleRecord
from windlass.core.states import FINISHED, JobState
from windlass.core.transitions import Note, Scribe

#: What is granted to leases of unknown length when a new coordinator begins.
_LEASE_MS = 30_000
_BEGUN_KEPT = 100_000
KEPT = frozenset({JobState.SCHEDULED, JobState.RETRYING, JobState.FAILED})


class Plan(msgspec.Struct):
    """What the broker must be made to hold after an entry of the log."""

    #: Jobs to publish to their queues, with their generations.
    publish: list[tuple[JobRecord, int]] = []
    #: Records to keep, with their generations.
    keep: list[tuple[JobRecord, int]] = []
    #: Kept records that have served: reference and generation.
    drop: list[tuple[JobRef, int]] = []
    #: Messages in queues that count no more.
    void: list[tuple[str, str, int]] = []
    #: Tokens of attempts that ended otherwise than by their worker.
    lost: list[str] = []


class Counts(msgspec.Struct):
    """What a mark remembers of the fold: it cannot be read off the records that are left."""

    offset: int = -1
    gen: int = 0
    place: int = 0
    counters: list[CounterRow] = []
    events: dict[str, int] = {}
    history: dict[str, int] = {}
    paused: list[str] = []
    cursors: dict[str, int] = {}
    void: list[tuple[str, str, int]] = []
    #: Not a fold of what is left: a log forgets who put them. None in marks of a time that did not note them.
    schedules: list[ScheduleRecord] | None = None
    archivers: list[ArchiverInfo] | None = None
    #: Ids that stay taken after their jobs are gone, until when.
    taken_ids: list[tuple[str, str, int]] = []


class Ledger(Elsewhere):
    """All that is known of the jobs of one namespace."""

    def __init__(self) -> None:
        super().__init__()
        self.void: dict[tuple[str, str, int], None] = {}
        self.gen = 0
        #: Jobs that changed since the last plan; None for those that are gone.
        self._touched: dict[JobRef, JobRecord | None] = {}
        #: Tokens of starts that we know of, the newest.
        self._begun: OrderedDict[str, None] = OrderedDict()
        #: The tokens of running jobs, as of the last plan, and those that their workers ended since.
        self._running: dict[JobRef, str | None] = {}
        self._closed: set[str] = set()
        #: Messages of jobs that have another.
        self._doubled: list[tuple[str, str, int]] = []
        #: Jobs whose message somebody else published, with its generation.
        self._published: dict[JobRef, int] = {}
        self._verbs |= {
            verbs.Born: self._born,
            verbs.Started: self._started,
            verbs.Ended: self._ended,
            verbs.Close: self._close,
            verbs.Doubt: self._doubt,
            verbs.Expire: self._expire,
            verbs.GetRules: self._get_rules,
            verbs.PromoteFor: self._promote_for,
            verbs.Poison: self._poison,
            rq.Recover: self._recover_lost,
            rq.Promote: self._promote_all,
        }

    # --- what changed ------------------------------------------------------------------------------------

    def file(self, job: JobRecord, scribe: Scribe) -> None:
        """As in the reference, for jobs without what a broker refuses: groups, unique keys, edges."""
        queue, ref, state = self.queue(job.queue), job.ref, job.state
        queue.index(job)
        if self._active.pop(ref, None) is not None:
            queue.active -= 1
        if state is JobState.ACTIVE:
            self._active[ref] = job
            queue.active += 1
        elif state in FINISHED:
            self._topics.add(f"done:{ref.queue}")
        else:
            self._topics.add(f"ready:{ref.queue}")
        self._touched[ref] = job

    def _drop(self, job: JobRecord, scribe: Scribe) -> None:
        super()._drop(job, scribe)
        self._touched[job.ref] = None

    def plan(self) -> Plan:
        """What the changes since the last plan ask of the broker."""
        plan, self._doubled = Plan(void=self._doubled), []
        touched, self._touched = self._touched, {}
        published, self._published = self._published, {}
        for ref, job in touched.items():
            self._plan_one(ref, job, published.get(ref), plan)
            self._note_token(ref, job, plan)
        self._closed.clear()
        return plan

    def _note_token(self, ref: JobRef, job: JobRecord | None, plan: Plan) -> None:
        """Remember who runs a job; whoever ran it before without ending it has lost it."""
        before = self._running.pop(ref, None)
        if job is not None and job.state is JobState.ACTIVE:
            self._running[ref] = job.token
            if before == job.token:
                return
        if before is not None and before not in self._closed:
            plan.lost.append(before)

    def _plan_one(self, ref: JobRef, job: JobRecord | None, published: int | None, plan: Plan) -> None:
        before = self.placed.get(ref)
        if job is not None and job.state is JobState.ACTIVE:
            if before is None or before.where != "queue":
                before = self.placed[ref] = Placed("queue", published or 0, job.state, _mark(job))
            before.state = job.state
            return
        if job is not None and job.state is JobState.WAITING:
            mark = _mark(job)
            if published is not None:
                self.placed[ref] = Placed("queue", published, job.state, mark)
                return
            if before is not None and before.where == "queue" and before.mark == mark:
                before.state = job.state  # given back: the broker has it at its old place
                return
            self._leave(ref, before, plan)
            self.gen += 1
            self.placed[ref] = Placed("queue", self.gen, job.state, mark)
            plan.publish.append((job, self.gen))
            return
        self._leave(ref, before, plan)
        if job is not None and job.state in KEPT:
            self.gen += 1
            self.placed[ref] = Placed("kept", self.gen, job.state, None)
            plan.keep.append((job, self.gen))
        else:
            self.placed.pop(ref, None)

    def _leave(self, ref: JobRef, before: Placed | None, plan: Plan) -> None:
        """A job's message is where it no longer belongs."""
        if before is None:
            return
        if before.where == "kept":
            plan.drop.append((ref, before.gen))
        elif before.state is JobState.WAITING:
            void = (ref.queue, ref.id, before.gen)
            self.void[void] = None
            plan.void.append(void)

    # --- facts -------------------------------------------------------------------------------------------

    def _born(self, request: verbs.Born, scribe: Scribe) -> None:
        for new in request.add.jobs:
            ref = JobRef(new.queue, new.id)
            old = self._find(ref)
            if old is not None and old.request_id == new.request_id:  # told again, with another message
                self.void[new.queue, new.id, 0] = None
                self._doubled.append((new.queue, new.id, 0))
                continue
            self._add_one(new, scribe)
            self._published[ref] = 0

    def _started(self, request: verbs.Started, scribe: Scribe) -> None:
        self._begin(request.starts, scribe)

    def _begin(self, starts: list[verbs.Start], scribe: Scribe) -> None:
        for start in starts:
            self._start(start, scribe)
        for name in dict.fromkeys(start.queue for start in starts):
            if self.queue(name).next_ready() is None:
                scribe.notes.append(Note(name, EventType.DRAINED))

    def _start(self, start: verbs.Start, scribe: Scribe) -> JobRecord | None:
        """The job of a start, active under its token; None when that start counts no more."""
        ref = JobRef(start.queue, start.id)
        job = self._find(ref)
        if job is None:
            job = self._learn(start, scribe)
            if job is None:
                return None
        placed = self.placed.get(ref)
        if job.state is JobState.ACTIVE and job.token != start.token and self._is_newest(placed, start.gen):
            transitions.recover(job, scribe)
            self.file(job, scribe)
        if job.state is not JobState.WAITING or not self._is_newest(placed, start.gen):
            return job if transitions.holds(job, start.token) else None
        read_ms, scribe.now_ms = scribe.now_ms, start.at_ms
        transitions.lease(job, scribe, token=start.token, worker=start.worker, lease_ms=start.lease_ms)
        scribe.now_ms = read_ms
        self.file(job, scribe)
        self._begun[start.token] = None
        if len(self._begun) > _BEGUN_KEPT:
            self._begun.popitem(last=False)
        return job

    def _is_newest(self, placed: Placed | None, gen: int) -> bool:
        return placed is None or placed.where != "queue" or placed.gen <= gen

    def _learn(self, start: verbs.Start, scribe: Scribe) -> JobRecord | None:
        """Take in a job that somebody else added, from its message."""
        if start.body is None:
            return None
        try:
            found: Incoming = read_message(
                start.queue, start.body, start.header, start.priority, scribe.now_ms
            )
        except MessageError:
            return None
        job = found.job
        if found.foreign or not job.seq:
            job.seq = job.place = scribe.fresh_place()
        queue = self.queue(job.queue)
        queue.jobs[job.id], queue.known = job, True
        if found.foreign:
            self._counters[job.queue, job.task, "enqueued"] += 1
            scribe.note(job, EventType.ENQUEUED)
        self.file(job, scribe)
        self.placed[job.ref] = Placed("queue", start.gen, job.state, _mark(job))
        self._published[job.ref] = start.gen
        return job

    def _ended(self, request: verbs.Ended, scribe: Scribe) -> None:
        self._close(verbs.Close(items=request.items, starts=request.starts), scribe)
        self._begin(request.began, scribe)

    def _close(self, request: verbs.Close, scribe: Scribe) -> verbs.Closing:
        known = {start.token: start for start in request.starts}
        items, requeue = [], []
        for end in request.items:
            ref = JobRef(end.queue, end.id)
            job = self._look_up(ref, scribe.now_ms)
            status = transitions.check_token(job, end.token)
            start = known.get(end.token)
            if status in (Settled.LOST, Settled.GONE) and start is not None and end.token not in self._begun:
                self._start(start, scribe)  # its start was never told, or the log has forgotten it
                job = self._find(ref)
                status = transitions.check_token(job, end.token)
            if status is Settled.OK and job is not None:
                self._closed.add(end.token)
                mark = None if end.outcome is Outcome.COMPLETE else _mark(job)
                transitions.settle(job, end, scribe)
                self.file(job, scribe)
                self._let_go(job, scribe)
                requeue.append(job.state is JobState.WAITING and _mark(job) == mark)
            else:  # perhaps the answer got lost: what went back to its place must go there now
                requeue.append(start is not None and self._stands_on(job, start.gen))
            items.append(status)
        return verbs.Closing(items, requeue)

    def _stands_on(self, job: JobRecord | None, gen: int) -> bool:
        """Whether ``job`` waits by the very message of generation ``gen``."""
        if job is None or job.state is not JobState.WAITING:
            return False
        placed = self.placed.get(job.ref)
        return placed is not None and placed.where == "queue" and placed.gen == gen

    def _doubt(self, request: verbs.Doubt, scribe: Scribe) -> list[JobRecord | None]:
        return [self._doubt_one(start, scribe) for start in request.starts]

    def _doubt_one(self, start: verbs.Start, scribe: Scribe) -> JobRecord | None:
        ref = JobRef(start.queue, start.id)
        void = (start.queue, start.id, start.gen)
        if void in self.void:
            del self.void[void]
            return None
        job = self._find(ref) or self._learn(start, scribe)
        if job is None or not self._is_newest(self.placed.get(ref), start.gen):
            return None
        if job.state is JobState.ACTIVE and job.token != start.token:
            transitions.recover(job, scribe)
            self.file(job, scribe)
        if job.state is not JobState.WAITING:
            return None
        return self.view(job, scribe.now_ms)

    def _expire(self, request: verbs.Expire, scribe: Scribe) -> None:
        for start in request.starts:
            job = self._find(JobRef(start.queue, start.id)) or self._learn(start, scribe)
            if job is not None and job.state is JobState.WAITING:
                placed = self.placed.get(job.ref)
                if placed is not None:
                    placed.state = JobState.ACTIVE  # its message is in the worker's hands
                transitions.expire(job, scribe)
                self.file(job, scribe)

    # --- requests ----------------------------------------------------------------------------------------

    def _get_rules(self, request: verbs.GetRules, scribe: Scribe) -> verbs.Rules:
        queues = self._queues
        paused = [queue.name for queue in queues.values() if queue.paused]
        return verbs.Rules(paused, list(self.void), {name: self.due_ms(name) for name in queues})

    def _promote_for(self, request: verbs.PromoteFor, scribe: Scribe) -> int | None:
        queues = [self._queues[name] for name in request.queues if name in self._queues]
        budget = 1_000
        for queue in queues:
            budget -= self._promote_queue(queue, budget, scribe)
        return self._next_due_in(scribe, queues)

    def _promote_all(self, request: rq.Promote, scribe: Scribe) -> rq.Promoted:
        count = 0
        while count < request.limit:
            due = [job for queue in self._queues.values() if (job := queue.next_due()) is not None]
            first = min(due, key=lambda job: (job.due_ms or 0, job.seq), default=None)
            if first is None or (first.due_ms or 0) > scribe.now_ms:
                break
            transitions.promote(first, scribe)
            self.file(first, scribe)
            count += 1
        return rq.Promoted(count, self.next_due_in(scribe.now_ms))

    def due_ms(self, queue: str) -> int | None:
        """When the first job of a queue is due."""
        first = self._queues[queue].next_due() if queue in self._queues else None
        return None if first is None else first.due_ms

    def next_due_in(self, now_ms: int) -> int | None:
        """How long until the next job of any queue is due."""
        return self._next_due_in(Scribe(now_ms, self._fresh_place), self._queues.values())

    def _recover_lost(self, request: rq.Recover, scribe: Scribe) -> rq.Recovered:
        """Take back what a silent worker still holds: a new message takes the place of the one it has."""
        result = self._recover(request, scribe)
        for ref in result.recovered:
            placed = self.placed.get(ref)
            if placed is not None:
                placed.mark = None
        return result

    def trust_leases(self, now_ms: int) -> None:
        """Nobody could renew a lease while there was no coordinator: all count from now."""
        for job in self._active.values():
            if job.lease_until_ms is not None and job.started_ms is not None:
                lease_ms = job.options.lease_ms or _LEASE_MS
                job.lease_until_ms = max(job.lease_until_ms, now_ms + lease_ms)

    def _poison(self, request: verbs.Poison, scribe: Scribe) -> None:
        self._bury(poison(request.queue, request.body, request.problem, scribe.now_ms), scribe)

    # --- taking over -------------------------------------------------------------------------------------

    def adopt(self, job: JobRecord, gen: int, now_ms: int) -> bool:
        """Take in a kept record that the log does not tell of any more; False when the log knows better."""
        placed = self.placed.get(job.ref)
        if placed is not None and placed.gen >= gen:
            return placed.gen == gen
        scribe = Scribe(now_ms, self._fresh_place)
        queue = self.queue(job.queue)
        queue.jobs[job.id], queue.known = job, True
        self.gen, self._last_place = max(self.gen, gen), max(self._last_place, job.seq, job.place)
        self.file(job, scribe)
        self._touched.pop(job.ref, None)
        if placed is not None and placed.where == "queue" and placed.state is JobState.WAITING:
            self.void[job.queue, job.id, placed.gen] = None
        self.placed[job.ref] = Placed("kept", gen, job.state, None)
        return True

    def counts(self, offset: int) -> Counts:
        """What a mark must remember."""
        return Counts(
            offset=offset,
            gen=self.gen,
            place=self._last_place,
            counters=[CounterRow(*key, total) for key, total in self._counters.items()],
            events={q.name: q.last_event for q in self._queues.values()},
            history={q.name: q.last_history for q in self._queues.values()},
            paused=[q.name for q in self._queues.values() if q.paused],
            cursors=dict(self.cursors),
            void=list(self.void),
            schedules=list(self._schedules.records.values()),
            archivers=list(self._archivers.values()),
            taken_ids=[(ref.queue, ref.id, until_ms) for ref, until_ms in self._kept_ids.items()],
        )

    def set_counts(self, counts: Counts) -> None:
        """What was counted up to a mark is as the mark says, whatever the log still tells."""
        self.gen = max(self.gen, counts.gen)
        self._last_place = max(self._last_place, counts.place)
        self._counters.clear()
        for row in counts.counters:
            self._counters[row.queue, row.task, row.outcome] = row.total
        for name, last in counts.events.items():
            queue = self.queue(name)
            shift = last - queue.last_event
            queue.last_event = last
            moved = [msgspec.structs.replace(event, id=event.id + shift) for event in queue.events]
            queue.events.clear()
            queue.events.extend(moved)
        for name, last in counts.history.items():
            queue = self.queue(name)
            shift = last - queue.last_history
            queue.last_history = last
            rows = [(at + shift, row) for at, row in queue.history]
            queue.history.clear()
            queue.history.extend(rows)
        for name in counts.paused:
            self.queue(name).paused = True
        for kind, offset in counts.cursors.items():
            self.cursors[kind] = max(self.cursors.get(kind, -1), offset)
        self.void.update(dict.fromkeys(tuple(void) for void in counts.void))  # type: ignore[misc]
        for queue_name, job_id, until_ms in counts.taken_ids:
            self._kept_ids.setdefault(JobRef(queue_name, job_id), until_ms)
        if counts.schedules is not None:
            self._schedules.records = {(one.queue, one.name): one for one in counts.schedules}
            for one in counts.schedules:
                self._make_known(one.queue)
        if counts.archivers is not None:
            self._archivers = {one.name: one for one in counts.archivers}


def _mark(job: JobRecord) -> Any:
    """What of a job decides whether its message in the queue is still right."""
    return (job.place, job.priority, job.manual_retries, job.payload, job.enqueued_ms)
