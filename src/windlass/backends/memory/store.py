"""The reference store: a small, deterministic state machine over dictionaries.

``apply`` carries out one request at one instant. Time, randomness and ids come in with the request, so the
same requests always give the same answers; property tests compare every other backend with this one. What
a change does to a job is in ``core.transitions``; this module finds the jobs and keeps the indexes.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from itertools import islice
from typing import Any, TypeVar, cast

import msgspec

from windlass.backend import flows as fl
from windlass.backend import requests as rq
from windlass.backend import streams as sm
from windlass.backends.memory.expiring import Expiring
from windlass.backends.memory.finished import Finished
from windlass.backends.memory.flows import Flows
from windlass.backends.memory.groups import Groups
from windlass.backends.memory.journal import NO_JOURNAL, Journal, Table
from windlass.backends.memory.keys import Keyring
from windlass.backends.memory.limits import Gatekeeper
from windlass.backends.memory.line import Line
from windlass.backends.memory.metrics import MemoryMetrics
from windlass.backends.memory.schedules import Jobs, MemorySchedules
from windlass.backends.memory.streams import Streams
from windlass.core import transitions
from windlass.core.job import (
    ARCHIVER_KEPT_MS,
    EVENTS_KEPT,
    HISTORY_HELD,
    HISTORY_KEPT,
    HISTORY_KEPT_MS,
    LOGS_KEPT,
    ArchiverInfo,
    AttemptRecord,
    Command,
    CounterRow,
    Event,
    EventType,
    JobRecord,
    JobRef,
    NewJob,
    QueueInfo,
    WorkerInfo,
)
from windlass.core.limits import NO_QUEUE_LIMITS, queue_room
from windlass.core.outcome import AddOutcome, CancelResult, Changed, Extended, Outcome, Settled
from windlass.core.patterns import matches
from windlass.core.states import FINISHED, TIMED, JobState
from windlass.core.transitions import Note, Scribe
from windlass.core.unique import KeyEntry
from windlass.errors import HistoryTrimmedError

R = TypeVar("R")

#: Most due jobs that one claim promotes; the bound on the work of any verb.
STEP = 1_000
WORKER_KEPT_MS = 300_000


class StoredQueue:
    """One queue: its jobs in order of their adding, what is ready, what is due, its limits, its two logs."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.paused = False
        #: False after it was obliterated, until something is added again.
        self.known = True
        self.jobs: dict[str, JobRecord] = {}
        #: The state that each job was last filed under, and how many are in each.
        self._states: dict[str, JobState] = {}
        self.counts: Counter[JobState] = Counter()
        self.finished = Finished()
        self.line = Line()
        # The heap keeps stale entries; an entry counts only while it matches its record.
        self.due: list[tuple[int, int, str]] = []
        self.expiring = Expiring()
        self.active = 0
        self.limits = NO_QUEUE_LIMITS
        #: Start times within the queue's own rate, oldest first.
        self.starts: list[int] = []
        self.hold_until_ms = 0
        self.groups = Groups()
        self.keys: dict[str, KeyEntry] = {}
        self.events: deque[Event] = deque(maxlen=EVENTS_KEPT)
        self.last_event = 0
        self.history: deque[tuple[int, AttemptRecord]] = deque()
        self.last_history = 0

    def index(self, job: JobRecord) -> JobState | None:
        """Enter ``job`` where its state says it can be found; returns the state that it was filed under."""
        state = job.state
        before, self._states[job.id] = self._states.get(job.id), state
        if before is not state:
            self.counts[state] += 1
            if before is not None:
                self.counts[before] -= 1
        if before is not None or state in FINISHED:
            self.finished.put(job)
        self.line.put(job)
        self.expiring.put(job)
        if state in TIMED and job.due_ms is not None:
            heapq.heappush(self.due, (job.due_ms, job.seq, job.id))
        return before

    def drop(self, job: JobRecord) -> JobState | None:
        """Take a record out, and out of the indexes; returns the state that it was filed under."""
        del self.jobs[job.id]
        self.finished.remove(job.id)
        self.line.remove(job.id)
        self.expiring.remove(job.id)
        before = self._states.pop(job.id, None)
        if before is not None:
            self.counts[before] -= 1
        return before

    def forget(self) -> None:
        """Forget all settings: an empty queue that was obliterated."""
        self.paused, self.known = False, False
        self.events.clear()
        self.line = Line()
        self.limits, self.starts, self.hold_until_ms = NO_QUEUE_LIMITS, [], 0
        self.groups = Groups()
        self.keys.clear()

    def next_ready(self) -> JobRecord | None:
        """The job that is first in line, left in place."""
        job_id = self.line.head()
        return None if job_id is None else self.jobs[job_id]

    def room(self, now_ms: int) -> tuple[int, int | None]:
        """How many jobs may start now by the queue's own limits; see ``queue_room``."""
        return queue_room(self.limits, self.starts, self.active, self.hold_until_ms, now_ms)

    def has_parked(self) -> bool:
        return any(group.usage.parked for group in self.groups)

    def next_due(self) -> JobRecord | None:
        """The job that is due first, left in place."""
        while self.due:
            due_ms, seq, job_id = self.due[0]
            job = self.jobs.get(job_id)
            if job and job.state in TIMED and (job.due_ms, job.seq) == (due_ms, seq):
                return job
            heapq.heappop(self.due)
        return None

    def waiting(self) -> Iterator[JobRecord]:
        return (job for job in self.jobs.values() if job.state is JobState.WAITING)


class MemoryStore:
    """All queues of one namespace. ``journal`` hears of every change."""

    def __init__(self, journal: Journal = NO_JOURNAL) -> None:
        self.journal = journal
        self._queues: dict[str, StoredQueue] = {}
        self._active: dict[JobRef, JobRecord] = {}
        self._kept_ids: dict[JobRef, int] = {}
        self._logs: dict[JobRef, deque[str]] = {}
        self._counters: Counter[tuple[str, str, str]] = Counter()
        self._workers: dict[str, WorkerInfo] = {}
        self._archivers: dict[str, ArchiverInfo] = {}
        self._leaders: dict[str, tuple[str, int]] = {}
        self._flows = Flows(
            journal,
            self._find,
            self._kept_ids,
            lambda job: self.file(job, self._scribe),
            lambda new, now_ms: self._keys.answered_by(self.look(new.queue), new, now_ms),
            lambda new, coming: self.look(new.queue).groups.refuses(new, coming) is not None,
        )
        self._streams = Streams()
        self._last_place = 0
        self._topics: set[str] = set()
        self._scribe = Scribe(0, self._fresh_place)
        self.gates = Gatekeeper(self)
        self._keys = Keyring(self)
        self._verbs: dict[type[Any], Callable[[Any, Scribe], Any]] = {
            rq.Add: self._add,
            rq.Claim: self._claim,
            rq.Settle: self._settle,
            rq.Extend: self._extend,
            rq.Reconcile: self._reconcile,
            rq.Promote: self._promote,
            rq.Recover: self._recover,
            rq.Prune: self._prune,
            rq.Elect: self._elect,
            rq.Resign: self._resign,
            rq.Beat: self._beat,
            rq.CancelJobs: self._cancel,
            rq.RemoveJobs: self._remove,
            rq.RetryJobs: self._retry,
            rq.ChangeJob: self._change,
            rq.Report: self._report,
            rq.PauseQueue: self._pause,
            rq.Purge: self._purge,
            rq.SetResultTtl: self._set_result_ttl,
            rq.GetJobs: self._get,
            rq.ListJobs: self._list,
            rq.CountJobs: self._count,
            rq.ListQueues: self._list_queues,
            rq.GetLogs: self._get_logs,
            rq.ReadEvents: self._read_events,
            rq.ReadHistory: self._read_history,
            rq.ReadCounters: self._read_counters,
            rq.ListWorkers: self._list_workers,
            rq.Archive: self._archive,
            rq.ListArchivers: self._list_archivers,
            rq.CommandWorker: self._command,
            fl.GetDependencies: self._get_dependencies,
            fl.Relay: self._relay,
            fl.Signal: self._signal,
            sm.AppendStream: self._append_stream,
            sm.ReadStream: self._read_stream,
            **self.gates.verbs,
            **self._keys.verbs,
        }
        self._schedules = MemorySchedules(
            journal, Jobs(self._find, self._add_one, self._make_known, self._tell)
        )
        self._metrics = MemoryMetrics(journal, self._history_ranges)
        self._verbs |= self._schedules.verbs() | self._metrics.verbs()

    def apply(self, request: rq.Request[R], now_ms: int) -> tuple[R, set[str]]:
        """Carry out ``request`` at ``now_ms``; returns its answer and the topics to tell listeners."""
        self._topics = set()
        self.gates.begin()
        self._scribe = scribe = Scribe(now_ms, self._fresh_place)
        answer = self._verbs[type(request)](request, scribe)
        self._flows.tell(scribe)
        self._write_down(scribe)
        return cast("R", answer), self._topics

    # --- shared steps ----------------------------------------------------------------------------

    def _fresh_place(self) -> int:
        self._last_place += 1
        return self._last_place

    def queue(self, name: str) -> StoredQueue:
        found = self._queues.get(name)
        if found is None:
            found = self._queues[name] = StoredQueue(name)
            self.journal.row(Table.QUEUE, name)
        return found

    def look(self, name: str) -> StoredQueue:
        """The queue, or an empty one that is not kept: for those who only read."""
        return self._queues.get(name) or StoredQueue(name)

    def known(self, name: str) -> StoredQueue:
        """The queue, which people see from now on."""
        queue = self.queue(name)
        if not queue.known:
            queue.known = True
            self.journal.row(Table.QUEUE, name)
        return queue

    def _make_known(self, name: str) -> None:
        self.known(name)

    def _tell(self, topic: str) -> None:
        self._topics.add(topic)

    def _history_ranges(self) -> dict[str, tuple[int, int]]:
        """The newest and the oldest record of each queue's history."""
        return {
            name: (queue.last_history, queue.last_history - len(queue.history) + 1)
            for name, queue in self._queues.items()
        }

    def _find(self, ref: JobRef) -> JobRecord | None:
        queue = self._queues.get(ref.queue)
        return queue.jobs.get(ref.id) if queue else None

    def file(self, job: JobRecord, scribe: Scribe) -> None:
        """Put a changed record where its state belongs; its group may have to park it, or have room now."""
        queue = self.queue(job.queue)
        group = job.options.group
        if group is not None:
            self.gates.check(queue, job, scribe)
        self.book(queue, job)
        if group is not None:
            self.gates.advance(queue, queue.groups.get(group), scribe)

    def book(self, queue: StoredQueue, job: JobRecord) -> None:
        """Enter a record in the indexes as what it is, and say who may care."""
        self.journal.moved(job)
        was_grouped = queue.line.grouped
        self.enter(queue, job)
        if queue.line.grouped is not was_grouped:
            self.journal.row(Table.QUEUE, queue.name)
        if job.options.unique is not None:
            self._keys.settle(queue, job)
        if job.state is JobState.WAITING or job.state in TIMED:
            self._topics.add(f"ready:{job.queue}")
        elif job.state in FINISHED:
            self._topics.add(f"done:{job.queue}")
            if job.linked:
                self._flows.ended(job)

    def enter(self, queue: StoredQueue, job: JobRecord) -> None:
        """Enter a record in the indexes; nothing follows from that."""
        before = queue.index(job)
        if job.options.group is not None:
            queue.groups.get(job.options.group).book(job)
        if before is JobState.ACTIVE or job.state is JobState.ACTIVE:
            self._count_active(queue, job, job.state is JobState.ACTIVE)

    def _count_active(self, queue: StoredQueue, job: JobRecord, active: bool) -> None:
        before = self._active.pop(job.ref, None) is not None
        if active:
            self._active[job.ref] = job
        queue.active += active - before
        if before and not active and queue.limits.concurrency is not None:
            self.wake(queue)  # there is room for one more

    def wake(self, queue: StoredQueue) -> None:
        """Say that jobs of a queue may be claimable."""
        self._topics.add(f"ready:{queue.name}")

    def _drop(self, job: JobRecord, scribe: Scribe) -> None:
        """Delete a record with all that is its own; an id that was promised to be kept stays known."""
        queue = self.queue(job.queue)
        self.journal.gone(job)
        if job.linked and job.state not in FINISHED:
            self._flows.ended(job)
        self.leave(queue, job)
        self._keys.settle(queue, job, removed=True)
        if transitions.kept_until(job) > scribe.now_ms:
            self._kept_ids[job.ref] = transitions.kept_until(job)
            self.journal.row(Table.KEPT_ID, *job.ref)
        group = queue.groups.find(job.options.group) if job.options.group is not None else None
        if group is not None and group.role(job.id) is not None:
            group.forget(job.id)
            self.gates.advance(queue, group, scribe)

    def leave(self, queue: StoredQueue, job: JobRecord) -> None:
        """Take a record out of the indexes, with all that is its own; its group still counts it."""
        before = queue.drop(job)
        if job.linked:
            self._flows.forget(job.ref)
        self._streams.forget(job.ref)
        if before is JobState.ACTIVE:
            self._count_active(queue, job, False)
        self._logs.pop(job.ref, None)

    def _write_down(self, scribe: Scribe) -> None:
        for name, kind, job_id, task, data in scribe.notes:
            queue = self.queue(name)
            queue.last_event += 1
            event = Event(queue.last_event, scribe.now_ms, kind, job_id, task, data)
            queue.events.append(event)
            self.journal.happened(name, event)
            self._topics.add(f"event:{name}")
        for record in scribe.history:
            queue = self.queue(record.queue)
            queue.last_history += 1
            queue.history.append((queue.last_history, record))
            self.journal.ended(record.queue, queue.last_history, record)
            self._count_one(record.queue, record.task, record.outcome.value)

    def _count_one(self, queue: str, task: str, outcome: str) -> None:
        self._counters[queue, task, outcome] += 1
        self.journal.row(Table.COUNTER, queue, task, outcome)

    # --- add ---------------------------------------------------------------------------------------

    def _add(self, request: rq.Add, scribe: Scribe) -> list[rq.Added]:
        if any(new.depends_on or new.parent for new in request.jobs):
            return self._add_flow(request.jobs, scribe)
        return [self._add_one(new, scribe) for new in request.jobs]

    def _add_flow(self, jobs: list[NewJob], scribe: Scribe) -> list[rq.Added]:
        """All jobs first, then all edges; a flow that cannot be is refused before anything is changed."""
        fresh, known = self._flows.sort(jobs, scribe.now_ms)
        answers = [self._add_one(new, scribe) for new in jobs]
        self._flows.link(fresh, known, scribe)
        for new, answer in zip(jobs, answers, strict=True):
            job = self._find(JobRef(new.queue, new.id))
            if job is not None and answer.record is None:
                answer.state, answer.due_ms = job.state, job.due_ms
        return answers

    def _add_one(self, new: NewJob, scribe: Scribe) -> rq.Added:
        ref, now_ms = JobRef(new.queue, new.id), scribe.now_ms
        old = self._find(ref)
        if old is not None:
            answer = self._answer_known(old, new, scribe)
            if answer is not None:
                return answer
        elif self._kept_ids.get(ref, 0) > now_ms:
            scribe.notes.append(Note(new.queue, EventType.DEDUPLICATED, new.id, new.task))
            return rq.Added(AddOutcome.DUPLICATE, None)
        queue = self.queue(new.queue)
        is_unique = new.options.unique is not None
        answer = self._keys.answer(queue, new, scribe) if is_unique else None
        if answer is not None:
            return answer
        if new.options.group is not None:
            refusal = queue.groups.refuses(new)
            if refusal is not None:
                return rq.Added(refusal, None)
        if old is not None:
            transitions.remove(old, scribe)
            self._drop(old, scribe)
        before = self._keys.runs_before(queue, new, now_ms) if is_unique else None
        if before is not None:
            new = msgspec.structs.replace(new, depends_on=[*new.depends_on, before])
        job = transitions.create(new, scribe, after_ms=old.enqueued_ms if old else 0)
        queue.jobs[new.id] = job
        if not queue.known:
            self.known(new.queue)
        self.journal.made(job)
        if is_unique:
            self._keys.take(queue, job, now_ms)
        self._count_one(new.queue, new.task, "enqueued")
        self.file(job, scribe)
        if before is not None:
            self._flows.follow(job, before)
        return rq.Added(AddOutcome.QUEUED, job.state, job.enqueued_ms, job.due_ms)

    def _answer_known(self, old: JobRecord, new: NewJob, scribe: Scribe) -> rq.Added | None:
        """The answer that an existing record gives; None when it makes way for the new job."""
        outcome = transitions.answer_known(old, new, scribe.now_ms)
        if outcome is None:
            return None
        if outcome is AddOutcome.QUEUED:
            return rq.Added(outcome, old.state, old.enqueued_ms, old.due_ms)
        scribe.note(old, EventType.DEDUPLICATED)
        view = self.view(old, scribe.now_ms)
        return rq.Added(outcome, old.state, old.enqueued_ms, old.due_ms, view)

    # --- claim, settle, extend -----------------------------------------------------------------------

    def _claim(self, request: rq.Claim, scribe: Scribe) -> rq.Claimed:
        queues = [(self._queues[item.name], item) for item in request.queues if item.name in self._queues]
        self.gates.claiming = True
        budget = STEP
        for queue, _ in queues:
            budget -= self._promote_queue(queue, budget, scribe)
        for queue, _ in queues:
            budget -= self.gates.advance_timed(queue, budget, scribe)
        jobs: list[JobRecord] = []
        taken: Counter[str] = Counter()
        for bound in ("share", "cap"):
            for queue, item in queues:
                room = min(getattr(item, bound) - taken[queue.name], request.limit - len(jobs))
                picked = self._pick(queue, room, request, scribe, len(jobs))
                taken[queue.name] += len(picked)
                jobs += picked
        for queue, _ in queues:
            if taken[queue.name] and queue.next_ready() is None and not queue.has_parked():
                scribe.notes.append(Note(queue.name, EventType.DRAINED))
        return rq.Claimed(
            [self.view(job, scribe.now_ms) for job in jobs],
            scribe.now_ms,
            self._next_due_in(scribe, [q for q, _ in queues]),
        )

    def _pick(
        self, queue: StoredQueue, room: int, request: rq.Claim, scribe: Scribe, first: int
    ) -> list[JobRecord]:
        picked: list[JobRecord] = []
        passed = 0
        room = min(room, queue.room(scribe.now_ms)[0])
        while len(picked) < room and not queue.paused and passed < STEP:
            job = queue.next_ready()
            if job is None:
                break
            if transitions.is_expired(job, scribe.now_ms):
                transitions.expire(job, scribe)
                passed += 1
            elif not self.gates.may_start(queue, job, scribe):
                passed += 1
            else:
                token = f"{request.claim_id}.{first + len(picked)}"
                transitions.lease(job, scribe, token=token, worker=request.worker, lease_ms=request.lease_ms)
                self.gates.started(queue, job, scribe.now_ms)
                picked.append(job)
            self.file(job, scribe)
        return picked

    def _settle(self, request: rq.Settle, scribe: Scribe) -> rq.SettleResult:
        items = []
        for end in request.items:
            job = self._find(JobRef(end.queue, end.id))
            status = transitions.check_token(job, end.token)
            if status is Settled.OK and job is not None:
                transitions.settle(job, self._flows.weigh(job, end), scribe)
                self.file(job, scribe)
                if end.outcome is Outcome.WAIT and job.state is JobState.BLOCKED:
                    self._flows.review(job, scribe)
                if end.hold_ms and job.options.group is not None:
                    queue = self.queue(end.queue)
                    self.gates.hold_group(queue, queue.groups.get(job.options.group), end.hold_ms, scribe)
            items.append(status)
        self._flows.tell(scribe)  # so that what is unblocked here can be claimed here
        left = self._flows.left
        claimed = self._claim(request.claim, scribe) if request.claim else None
        return rq.SettleResult(items, claimed, relay=left)

    def _extend(self, request: rq.Extend, scribe: Scribe) -> list[Extended]:
        answers = []
        for lease in request.leases:
            job = self._find(JobRef(lease.queue, lease.id))
            answers.append(transitions.extend(job, lease.token, lease.lease_ms, scribe.now_ms))
            if job is not None and answers[-1] is not Extended.LOST:
                self.journal.moved(job)
        return answers

    def _reconcile(self, request: rq.Reconcile, scribe: Scribe) -> int:
        held = set(request.held)
        lost = [
            job for job in self._active.values() if job.worker == request.worker and job.token not in held
        ]
        for job in sorted(lost, key=lambda job: job.seq):
            transitions.give_back(job, scribe)
            self.file(job, scribe)
        return len(lost)

    # --- duties --------------------------------------------------------------------------------------

    def _promote(self, request: rq.Promote, scribe: Scribe) -> rq.Promoted:
        count = 0
        heads = [head for queue in self._queues.values() if (head := _due_head(queue, scribe.now_ms))]
        heapq.heapify(heads)
        while heads and count < request.limit:
            _, _, name = heapq.heappop(heads)
            job = self._queues[name].next_due()
            assert job is not None, "it was the head of its queue"
            transitions.promote(job, scribe)
            self.file(job, scribe)
            count += 1
            head = _due_head(self._queues[name], scribe.now_ms)
            if head is not None:
                heapq.heappush(heads, head)
        for name in sorted(self._queues):
            count += self.gates.advance_timed(self._queues[name], request.limit - count, scribe)
        return rq.Promoted(count, self._next_due_in(scribe, self._queues.values()))

    def _promote_queue(self, queue: StoredQueue, limit: int, scribe: Scribe) -> int:
        count = 0
        while count < limit:
            job = queue.next_due()
            if job is None or job.due_ms is None or job.due_ms > scribe.now_ms:
                break
            transitions.promote(job, scribe)
            self.file(job, scribe)
            count += 1
        return count

    def _next_due_in(self, scribe: Scribe, queues: Iterable[StoredQueue]) -> int | None:
        first: list[int] = []
        for queue in queues:
            job = queue.next_due()
            times = (job.due_ms if job else None, self.gates.next_ms(queue, scribe.now_ms))
            first += [at_ms for at_ms in times if at_ms is not None]
        return max(min(first) - scribe.now_ms, 0) if first else None

    def set_back(self, from_ms: int, now_ms: int) -> None:
        """The store's time goes back: what ends by itself keeps the time that it had left. Due times stay."""
        by_ms = from_ms - now_ms
        for job in self._active.values():
            if job.lease_until_ms is not None and job.lease_until_ms > from_ms:
                job.lease_until_ms -= by_ms
                self.journal.moved(job)
        for role, (holder, until_ms) in self._leaders.items():
            if until_ms > from_ms:
                self._leaders[role] = (holder, until_ms - by_ms)
                self.journal.row(Table.LEADER, role)
        for worker in self._workers.values():
            if worker.beat_ms > now_ms:
                worker.beat_ms, worker.started_ms = now_ms, min(worker.started_ms, now_ms)
                self.journal.row(Table.WORKER, worker.id)
        for queue in self._queues.values():
            self._keys.set_back(queue, from_ms, by_ms)
            self.gates.set_back(queue, from_ms, now_ms)
            self._count_one(queue.name, "", "clock_set_back")

    def _recover(self, request: rq.Recover, scribe: Scribe) -> rq.Recovered:
        expired = [
            job
            for job in self._active.values()
            if job.lease_until_ms is not None and job.lease_until_ms <= scribe.now_ms
        ]
        expired.sort(key=lambda job: (job.lease_until_ms or 0, job.seq))
        result = rq.Recovered([], [])
        for job in expired[: request.limit]:
            alive = transitions.recover(job, scribe)
            (result.recovered if alive else result.failed).append(job.ref)
            self.file(job, scribe)
        result.expired = self._expire_passed(request.limit, scribe)
        return result

    def _expire_passed(self, limit: int, scribe: Scribe) -> list[JobRef]:
        """End what is pending past its time, the earliest first."""
        ended: list[JobRef] = []
        while len(ended) < limit:
            heads = [(*head, name) for name, queue in self._queues.items() if (head := queue.expiring.head())]
            expires_ms, _, job_id, name = min(heads, default=(scribe.now_ms + 1, 0, "", ""))
            if expires_ms > scribe.now_ms:
                break
            job = self._queues[name].jobs[job_id]
            if not transitions.is_expired(job, scribe.now_ms):  # it ran under an earlier release
                self._queues[name].expiring.remove(job_id)
                continue
            transitions.expire(job, scribe)
            self.file(job, scribe)
            ended.append(job.ref)
        return ended

    def _prune(self, request: rq.Prune, scribe: Scribe) -> rq.Pruned:
        now_ms = scribe.now_ms
        old: list[JobRecord] = []
        for queue in self._queues.values():
            room = request.limit + 1 - len(old)
            entries = queue.finished.past_keep(queue.jobs, now_ms, room) if room > 0 else []
            old += [queue.jobs[job_id] for _, _, job_id in entries]
        for job in old[: request.limit]:
            self._drop(job, scribe)
        gone_ids = [ref for ref, until in self._kept_ids.items() if until <= now_ms]
        for ref in gone_ids:
            del self._kept_ids[ref]
            self.journal.row(Table.KEPT_ID, *ref)
        keys = 0
        for queue in self._queues.values():
            keys += self._keys.prune(queue, now_ms)
            for group in queue.groups.prune(now_ms):
                self.journal.row(Table.GROUP, queue.name, group)
        gone_workers = [w.id for w in self._workers.values() if w.beat_ms <= now_ms - WORKER_KEPT_MS]
        for worker_id in gone_workers:
            del self._workers[worker_id]
            self.journal.row(Table.WORKER, worker_id)
        archivers = self._list_archivers(rq.ListArchivers(), scribe)
        history = sum(self._trim_history(queue, archivers, now_ms) for queue in self._queues.values())
        metrics = self._metrics.prune(now_ms, request.limit)
        return rq.Pruned(
            jobs=min(len(old), request.limit),
            ids=len(gone_ids),
            keys=keys,
            history=history,
            workers=len(gone_workers),
            metrics=metrics,
            more=len(old) > request.limit or metrics == request.limit,
        )

    def _trim_history(self, queue: StoredQueue, archivers: list[ArchiverInfo], now_ms: int) -> int:
        """Drop what is old or too much; what a live archiver has not copied goes only over the hard bound."""
        copied = min((info.cursors.get(queue.name, 0) for info in archivers), default=queue.last_history)
        rolled_up = self._metrics.holds_from(queue.name, now_ms)
        copied = copied if rolled_up is None else min(copied, rolled_up)
        count = 0
        while queue.history:
            at, record = queue.history[0]
            too_much = len(queue.history) > HISTORY_KEPT
            too_old = record.finished_ms <= now_ms - HISTORY_KEPT_MS
            if at <= copied:
                if not (too_much or too_old):
                    break
            elif len(queue.history) <= HISTORY_HELD:
                break
            else:
                self._count_one(queue.name, "", "history_dropped")
            queue.history.popleft()
            count += 1
        if count:
            self.journal.trimmed(queue.name)
        return count

    def _archive(self, request: rq.Archive, scribe: Scribe) -> None:
        known = self._archivers.setdefault(request.name, ArchiverInfo(name=request.name, cursors={}))
        for queue, at in request.cursors.items():
            known.cursors[queue] = max(known.cursors.get(queue, 0), at)
        known.seen_ms = scribe.now_ms
        self.journal.row(Table.ARCHIVER, request.name)

    def _list_archivers(self, request: rq.ListArchivers, scribe: Scribe) -> list[ArchiverInfo]:
        live = [a for a in self._archivers.values() if a.seen_ms > scribe.now_ms - ARCHIVER_KEPT_MS]
        return [
            ArchiverInfo(name=a.name, cursors=dict(a.cursors), seen_ms=a.seen_ms)
            for a in sorted(live, key=lambda info: info.name)
        ]

    def _elect(self, request: rq.Elect, scribe: Scribe) -> bool:
        holder, until_ms = self._leaders.get(request.role, ("", 0))
        if holder != request.holder and until_ms > scribe.now_ms:
            return False
        self._leaders[request.role] = (request.holder, scribe.now_ms + request.ttl_ms)
        self.journal.row(Table.LEADER, request.role)
        return True

    def _resign(self, request: rq.Resign, scribe: Scribe) -> bool:
        holder, until_ms = self._leaders.get(request.role, ("", 0))
        if holder != request.holder or until_ms <= scribe.now_ms:
            return False
        del self._leaders[request.role]
        self.journal.row(Table.LEADER, request.role)
        return True

    def _beat(self, request: rq.Beat, scribe: Scribe) -> Command | None:
        self.journal.row(Table.WORKER, request.worker.id)
        if request.gone:
            self._workers.pop(request.worker.id, None)
            return None
        worker = copy(request.worker)
        worker.beat_ms = scribe.now_ms
        known = self._workers.get(worker.id)
        worker.started_ms = known.started_ms if known else scribe.now_ms
        worker.command = known.command if known else None
        self._workers[worker.id] = worker
        return worker.command

    def _command(self, request: rq.CommandWorker, scribe: Scribe) -> bool:
        worker = self._workers.get(request.worker)
        if worker is None:
            return False
        worker.command = Command(action=request.action, id=request.id)
        self.journal.row(Table.WORKER, worker.id)
        self._topics.add(f"worker:{worker.id}")
        return True

    # --- changes ---------------------------------------------------------------------------------------

    def _cancel(self, request: rq.CancelJobs, scribe: Scribe) -> list[CancelResult]:
        answers = []
        for ref in request.refs:
            job = self._find(ref)
            outcome = transitions.cancel(job, request.reason, scribe, dead=request.dead)
            if job is not None and outcome is CancelResult.CANCELLED:
                self.file(job, scribe)
            if job is not None and outcome is CancelResult.CANCELLING:
                self.journal.moved(job)
                self._topics.add(f"worker:{job.worker}")
            answers.append(outcome)
        return answers

    def _remove(self, request: rq.RemoveJobs, scribe: Scribe) -> list[rq.ChangeResult]:
        answers = []
        for ref in request.refs:
            job = self._find(ref)
            if job is None:
                answers.append(rq.ChangeResult(Changed.NOT_FOUND))
            elif job.state is JobState.ACTIVE and not request.force:
                answers.append(rq.ChangeResult(Changed.ILLEGAL, job.state))
            else:
                transitions.remove(job, scribe)
                self._drop(job, scribe)
                self._topics.add(f"done:{ref.queue}")
                answers.append(rq.ChangeResult(Changed.OK, job.state))
        return answers

    def _retry(self, request: rq.RetryJobs, scribe: Scribe) -> list[rq.ChangeResult]:
        return [
            self._change_one(ref, lambda job: self._retry_one(job, scribe), scribe) for ref in request.refs
        ]

    def _retry_one(self, job: JobRecord, scribe: Scribe) -> Changed:
        finished = job.state in FINISHED
        if finished:
            self._flows.look_again(job.ref)
        status = transitions.retry(job, scribe, blocked=self._flows.has_open(job.ref))
        if finished:
            self._keys.take_again(self.queue(job.queue), job, scribe.now_ms)
        return status

    def _change(self, request: rq.ChangeJob, scribe: Scribe) -> rq.ChangeResult:
        return self._change_one(
            request.ref,
            lambda job: transitions.change(
                job,
                scribe,
                token=request.token,
                priority=request.priority,
                delay_ms=request.delay_ms,
                payload=request.payload,
                ordered=request.priority is not None and self.gates.is_ordered(job),
            ),
            scribe,
        )

    def _change_one(
        self, ref: JobRef, step: Callable[[JobRecord], Changed], scribe: Scribe
    ) -> rq.ChangeResult:
        job = self._find(ref)
        if job is None:
            return rq.ChangeResult(Changed.NOT_FOUND)
        payload, options = job.payload, job.options
        status = step(job)
        if job.payload is not payload or job.options is not options:
            self.journal.made(job)
        if status is Changed.OK:
            self.file(job, scribe)
        return rq.ChangeResult(status, job.state)

    def _report(self, request: rq.Report, scribe: Scribe) -> rq.ChangeResult:
        job = self._find(request.ref)
        if job is None:
            return rq.ChangeResult(Changed.NOT_FOUND)
        if request.progress is not None:
            if (refused := transitions.refuses_report(job, request.token)) is not None:
                return rq.ChangeResult(refused, job.state)
            job.progress = request.progress
            self.journal.moved(job)
            scribe.note(job, EventType.PROGRESS, progress=transitions.progress_text(job))
        if request.logs:
            lines = self._logs.setdefault(job.ref, deque(maxlen=LOGS_KEPT))
            lines.extend(request.logs)
            self.journal.logged(job, request.logs)
        return rq.ChangeResult(Changed.OK, job.state)

    def _pause(self, request: rq.PauseQueue, scribe: Scribe) -> bool:
        known = self._queues.get(request.queue)
        if (known is not None and known.paused) is request.paused:
            return False
        queue = self.queue(request.queue)
        queue.paused, queue.known = request.paused, True
        self.journal.row(Table.QUEUE, queue.name)
        event = EventType.PAUSED if request.paused else EventType.RESUMED
        scribe.notes.append(Note(queue.name, event))
        self._topics.add(f"ready:{queue.name}")
        return True

    def _purge(self, request: rq.Purge, scribe: Scribe) -> rq.Purged:
        queue = self._queues.get(request.queue)
        if queue is None:
            return rq.Purged(0, [])
        before_ms = scribe.now_ms - request.grace_ms
        found = [
            job
            for job in queue.jobs.values()
            if job.state in request.states
            and _state_since(job) <= before_ms
            and (request.force or job.state is not JobState.ACTIVE)
        ]
        found.sort(key=lambda job: (_state_since(job), job.seq))
        for job in found[: request.limit]:
            transitions.remove(job, scribe)
            self._drop(job, scribe)
        if found:
            self._topics.add(f"done:{queue.name}")
        if request.forget and not queue.jobs:
            self._forget_queue(queue)
            self._schedules.forget_queue(queue.name)
        return rq.Purged(min(len(found), request.limit), [job.id for job in found[: request.limit]])

    def _forget_queue(self, queue: StoredQueue) -> None:
        journal, name = self.journal, queue.name
        journal.row(Table.QUEUE, name)
        journal.refitted(name, None)
        journal.forgot_events(name, queue.last_event)
        for group in queue.groups:
            journal.row(Table.GROUP, name, group.name)
        for key in queue.keys:
            journal.row(Table.KEY, name, key)
        queue.forget()

    def _set_result_ttl(self, request: rq.SetResultTtl, scribe: Scribe) -> rq.ChangeResult:
        return self._change_one(
            request.ref, lambda job: transitions.set_result_ttl(job, request.ttl_ms, scribe), scribe
        )

    # --- flows and live output --------------------------------------------------------------------------

    def _get_dependencies(self, request: fl.GetDependencies, scribe: Scribe) -> list[fl.Dependencies]:
        return [self._flows.of(ref, values=request.values, limit=request.limit) for ref in request.refs]

    def _relay(self, request: fl.Relay, scribe: Scribe) -> fl.Relayed:
        return fl.Relayed(self._flows.relay(request.limit, scribe), self._flows.pending)

    def _signal(self, request: fl.Signal, scribe: Scribe) -> rq.ChangeResult:
        return self._change_one(
            request.ref,
            lambda job: transitions.signal(job, request.name, request.data, request.codec, scribe),
            scribe,
        )

    def _append_stream(self, request: sm.AppendStream, scribe: Scribe) -> rq.ChangeResult:
        job = self._find(request.ref)
        if job is None:
            return rq.ChangeResult(Changed.NOT_FOUND)
        if not transitions.holds(job, request.token):
            return rq.ChangeResult(Changed.LOST, job.state)
        head, new = self._streams.append(job.ref, job.deliveries, request.first, request.chunks)
        self.journal.streamed(job, head, new)
        self._topics.add(f"stream:{job.queue}")
        return rq.ChangeResult(Changed.OK, job.state)

    def _read_stream(self, request: sm.ReadStream, scribe: Scribe) -> sm.StreamPage:
        job = self._find(request.ref)
        head, chunks = self._streams.read(request.ref, request.after, request.limit)
        state, codec = (job.state, job.result_codec) if job else (None, "json")
        return sm.StreamPage(chunks, head.last, head.oldest, state, codec)

    # --- inspection --------------------------------------------------------------------------------------

    def view(self, job: JobRecord, now_ms: int, *, late: bool = False) -> JobRecord:
        """A copy for the caller, without a result that is past its time (unless ``late``)."""
        view = copy(job)
        view.errors = list(job.errors)
        view.turn = max(job.turn, 0)
        if not late and view.result_until_ms is not None and view.result_until_ms <= now_ms:
            view.result = None
        return view

    def _get(self, request: rq.GetJobs, scribe: Scribe) -> list[JobRecord | None]:
        found = [self._find(ref) for ref in request.refs]
        return [self.view(job, scribe.now_ms, late=request.late) if job else None for job in found]

    def _list(self, request: rq.ListJobs, scribe: Scribe) -> rq.Page:
        queue = self._queues.get(request.queue)
        jobs = list(queue.jobs.values()) if queue else []
        if request.newest_first:
            jobs.reverse()
        page: list[JobRecord] = []
        for job in jobs:
            if not _after_cursor(job, request) or not _matches(job, request):
                continue
            if len(page) == request.limit:
                return rq.Page(page, str(page[-1].seq))
            page.append(self.view(job, scribe.now_ms))
        return rq.Page(page)

    def _count(self, request: rq.CountJobs, scribe: Scribe) -> dict[JobState, int]:
        queue = self._queues.get(request.queue)
        return {state: queue.counts[state] if queue else 0 for state in JobState}

    def _list_queues(self, request: rq.ListQueues, scribe: Scribe) -> list[QueueInfo]:
        infos = []
        for name in sorted(self._queues):
            queue = self._queues[name]
            if not queue.known:
                continue
            counts = self._count(rq.CountJobs(queue=name), scribe)
            oldest = min((job.ready_ms for job in queue.waiting()), default=None)
            infos.append(
                QueueInfo(
                    name=name,
                    paused=queue.paused,
                    counts={state.value: count for state, count in counts.items()},
                    oldest_ready_ms=oldest,
                )
            )
        return infos

    def _get_logs(self, request: rq.GetLogs, scribe: Scribe) -> rq.LogPage:
        lines = list(self._logs.get(request.ref, ()))
        return rq.LogPage(lines[request.start : request.start + request.limit], len(lines))

    def _read_events(self, request: rq.ReadEvents, scribe: Scribe) -> rq.EventPage:
        queue = self._queues.get(request.queue)
        if queue is None:
            return rq.EventPage([], 0, 1)
        oldest = queue.last_event - len(queue.events) + 1
        start = max(request.after + 1 - oldest, 0)
        events = list(islice(queue.events, start, start + request.limit))
        return rq.EventPage(events, queue.last_event, oldest)

    def _read_history(self, request: rq.ReadHistory, scribe: Scribe) -> rq.HistoryPage:
        queue = self._queues.get(request.queue)
        if queue is None:
            return rq.HistoryPage([], request.after, 0, 1)
        oldest = queue.last_history - len(queue.history) + 1
        if request.after + 1 < oldest:
            raise HistoryTrimmedError("history", request.queue, request.after, oldest)
        start = max(request.after + 1 - oldest, 0)
        rows = list(islice(queue.history, start, start + request.limit))
        last = rows[-1][0] if rows else request.after
        return rq.HistoryPage([record for _, record in rows], last, queue.last_history, oldest)

    def _read_counters(self, request: rq.ReadCounters, scribe: Scribe) -> list[CounterRow]:
        return [
            CounterRow(queue, task, outcome, count)
            for (queue, task, outcome), count in sorted(self._counters.items())
            if request.queue in (None, queue)
        ]

    def _list_workers(self, request: rq.ListWorkers, scribe: Scribe) -> list[WorkerInfo]:
        alive = [w for w in self._workers.values() if w.beat_ms > scribe.now_ms - request.stale_ms]
        return [copy(worker) for worker in sorted(alive, key=lambda worker: worker.id)]


def _due_head(queue: StoredQueue, now_ms: int) -> tuple[int, int, str] | None:
    """The job of a queue that is due first, if its time has come: when, its number, its queue."""
    job = queue.next_due()
    if job is None or job.due_ms is None or job.due_ms > now_ms:
        return None
    return job.due_ms, job.seq, queue.name


def _state_since(job: JobRecord) -> int:
    return job.finished_ms if job.finished_ms is not None else job.enqueued_ms


def _after_cursor(job: JobRecord, request: rq.ListJobs) -> bool:
    if request.cursor is None:
        return True
    last = int(request.cursor)
    return job.seq < last if request.newest_first else job.seq > last


def _matches(job: JobRecord, request: rq.ListJobs) -> bool:
    return (
        (not request.states or job.state in request.states)
        and (request.task is None or matches(job.task, request.task))
        and (request.tag is None or request.tag in job.options.tags)
        and (
            request.error_class is None
            or (bool(job.errors) and job.errors[-1].error_class == request.error_class)
        )
    )
