"""The reference store: a small, deterministic state machine over dictionaries.

``apply`` executes one request at a given time. Time, randomness and ids come with the request, so the same
requests always give the same answers; property tests compare every other backend with this one. The engine
makes the decisions. This store loads what the engine asks for, and applies its effects.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from copy import copy
from itertools import islice, takewhile
from typing import Any, TypeVar, cast

from windlass.backend import requests as rq
from windlass.backends.memory.inspection import SHOWS, Shows
from windlass.backends.memory.order import Entry, Order
from windlass.backends.memory.state import State, StoredQueue
from windlass.core import transitions
from windlass.core.job import WORKER_KEPT_MS, JobRecord, JobRef
from windlass.core.limit_rules import Role, Usage
from windlass.core.rollups import KEPT_MS
from windlass.core.states import JobState
from windlass.engine import timing
from windlass.engine.drive import run
from windlass.engine.effects import Effects, GroupRow, Table, copy_row
from windlass.engine.ordered import Ordered
from windlass.engine.reads import (
    STEP,
    EventSpan,
    LogSpan,
    MoreReads,
    PurgeReads,
    Reads,
    Verb,
    Verbs,
    state_since,
)
from windlass.engine.unit_of_work import HOLDING, GroupView, QueueView, UnitOfWork
from windlass.engine.verbs import VERBS

R = TypeVar("R")

_ACTIVE, _PARKED = JobState.ACTIVE, JobState.PARKED


class MemoryStore(State):
    """All queues of one namespace, as a port of the engine."""

    def __init__(self) -> None:
        super().__init__()
        self.last_place = 0
        self.verbs: Verbs = VERBS
        self.shows: Shows = SHOWS

    def apply(self, request: rq.Request[R], now_ms: int) -> tuple[R, set[str]]:
        """Execute ``request`` at ``now_ms``; returns its answer, and the topics whose listeners to wake."""
        show = self.shows.get(type(request))
        if show is not None:
            return cast("R", show(self, request, now_ms)), set()
        work = UnitOfWork(now_ms, self.fresh_place)
        answer: R = self._run(self.verbs[type(request)](work, request), work)
        return answer, work.effects.topics

    def _run(self, verb: Verb[Any], work: UnitOfWork) -> Any:
        return run(verb, self, work)

    def set_back(self, from_ms: int, now_ms: int) -> None:
        """Adjust stored times when the store's clock goes back: see ``engine.timing.set_back``."""
        work = UnitOfWork(now_ms, self.fresh_place)
        self._run(timing.set_back(work, from_ms), work)

    def fresh_place(self) -> int:
        """A new place behind all others."""
        self.last_place += 1
        return self.last_place

    def write(self, effects: Effects) -> None:
        """See ``engine.drive.Port``."""
        self.apply_effects(effects)

    # --- loading ----------------------------------------------------------------------------------

    def load(self, reads: Reads, work: UnitOfWork) -> None:
        """Load everything in ``reads`` into ``work``; see ``engine.reads.Reads``."""
        if reads.ids:
            self._load_jobs(reads.ids, work)
            if self.kept_ids:
                work.kept.update((ref, self.kept_ids[ref]) for ref in reads.ids if ref in self.kept_ids)
        if reads.jobs:
            self._load_jobs(reads.jobs, work)
        for name in reads.queues:
            self._load_queue(name, work)
        for queue, group in reads.groups:
            self._load_group(queue, group, work)
        for entry in reads.rows:
            work.rows[entry] = self.row(*entry)
        for name in reads.lines:
            if name not in work.lines:
                work.load_line(name, self.look(name).line)
        for name in reads.due:
            work.due[name] = Ordered(self.look(name).due)
        for name in reads.timed:
            work.timed[name] = Ordered(self.look(name).groups.timed)
        if isinstance(reads, MoreReads):
            self._load_flows(reads, work)
            self._load_found(reads, work)
            self._load_upkeep(reads, work)
            self._load_logs(reads, work)

    def _load_jobs(self, refs: Iterable[tuple[str, str]], work: UnitOfWork) -> None:
        found, any_stubs = work.jobs, bool(self.stubs)
        name: str | None = None
        jobs: dict[str, JobRecord] = {}
        for ref in refs:
            queue, job_id = ref
            if queue != name:
                name = queue
                self._load_queue(name, work)
                jobs = self.queues[name].jobs if name in self.queues else {}
            found[ref] = jobs.get(job_id)
            if any_stubs and (stub := self.stubs.find(JobRef(queue, job_id), work.now_ms)):
                work.stubs[ref] = stub

    def _load_queue(self, name: str, work: UnitOfWork) -> None:
        if name in work.queues:
            return
        stored = self.queues.get(name)
        if stored is None:
            work.queues[name] = QueueView(name)
            return
        counts = stored.counts
        row, starts = copy_row(stored.row), stored.starts[:]
        # Positional arguments, because this is a hot path and keyword arguments are slower.
        work.queues[name] = QueueView(name, row, starts, len(stored.jobs), counts[_ACTIVE], counts[_PARKED])

    def _load_group(self, queue: str, name: str, work: UnitOfWork) -> None:
        if (queue, name) in work.groups:
            return
        self._load_queue(queue, work)
        if queue not in work.lines:
            work.load_line(queue, self.look(queue).line)
        stored = self.look(queue).groups.find(name)
        if stored is None:
            nowhere: dict[Role, Ordered[int]] = {role: Ordered() for role in HOLDING}
            work.groups[queue, name] = GroupView(queue, name, GroupRow(), Usage(), Ordered(), nowhere)
            return
        usage = copy(stored.usage)
        usage.starts = list(usage.starts)
        places = {role: Ordered(order) for role, order in stored.places.items()}
        parked = Ordered(self._with_keys(stored.parked, work))
        work.groups[queue, name] = GroupView(queue, name, stored.row, usage, parked, places)

    def _with_keys(self, parked: Order[JobRecord], work: UnitOfWork) -> Iterator[Entry[JobRecord]]:
        """Yield parked jobs. The unique key of each is loaded only when the engine reaches the job."""
        for entry in parked:
            job = entry[2]
            if job.options.unique is not None:
                key = (Table.KEY, (job.queue, job.options.unique.key))
                if key not in work.rows:
                    work.rows[key] = self.row(*key)
            yield entry

    def _load_flows(self, reads: MoreReads, work: UnitOfWork) -> None:
        edges = self.edges
        for ref in reads.streams:
            work.streams[ref] = self.streams.heads.get(ref)
        for pair in reads.pairs:
            work.edges[pair] = edges.find(*pair)
        for ref in reads.waits:
            work.waits[ref] = edges.waits(ref)
        for ref in reads.unmet:
            work.unmet[ref] = edges.unmet(ref)
        if reads.reachable:
            work.graph = edges.reachable(reads.reachable)
        if reads.unsent is not None:
            work.unsent = edges.unsent(reads.unsent)
        if reads.outbox:
            work.outbox = list(islice(edges.left_ends, reads.outbox))

    def _load_found(self, reads: MoreReads, work: UnitOfWork) -> None:
        if reads.leased_by is not None:
            self._find_all(work, (job for job in self.active.values() if job.worker == reads.leased_by))
        if reads.expired:
            late = [job for job in self.active.values() if (job.lease_until_ms or 0) <= work.now_ms]
            late.sort(key=lambda job: (job.lease_until_ms or 0, job.seq))
            self._find_all(work, late[: reads.expired])
        if reads.overdue:
            work.overdue = self._overdue(work.now_ms, reads.overdue)
            for job in work.overdue:
                self._load_queue(job.queue, work)
        if reads.purge is not None:
            self._find_all(work, _purged(self.look(reads.purge.queue), reads.purge))
        if reads.past_keep:
            self._find_all(work, self._past_keep(work.now_ms, reads.past_keep))

    def _find_all(self, work: UnitOfWork, jobs: Iterable[JobRecord]) -> None:
        work.found = list(jobs)
        for job in work.found:
            self._load_queue(job.queue, work)

    def _overdue(self, now_ms: int, limit: int) -> list[JobRecord]:
        late = (
            ((*key, job_id, job.queue), job)
            for queue in self.queues.values()
            for key, job_id, job in takewhile(lambda entry: entry[0][0] <= now_ms, queue.expiring)
            if transitions.is_expired(job, now_ms)
        )
        return [job for _, job in heapq.nsmallest(limit, late)]

    def _past_keep(self, now_ms: int, limit: int) -> list[JobRecord]:
        old: list[JobRecord] = []
        for queue in self.queues.values():
            ids = queue.finished.past_keep(queue.jobs, now_ms, limit - len(old))
            old += [queue.jobs[job_id] for job_id in ids]
        return old

    def _load_upkeep(self, reads: MoreReads, work: UnitOfWork) -> None:
        if reads.every_queue:
            for name in self.queues:
                self._load_queue(name, work)
        if reads.next_groups is not None:
            self._load_next_groups(*reads.next_groups, work)
        if reads.ranked is not None:
            work.ranked = self._ranked(*reads.ranked)
        if reads.past_time:
            self._load_past(work, reads.past_time)
        if reads.settings_of is not None:
            self._load_settings(work, reads.settings_of)
        if reads.time_back is not None:
            self._load_ending(work)

    def _load_next_groups(self, queue: str, after: str, work: UnitOfWork) -> None:
        later = (group.name for group in self.look(queue).groups if group.name > after)
        work.next_groups = list(islice(later, STEP))
        for name in work.next_groups:
            self._load_group(queue, name, work)

    def _ranked(self, queue: str, name: str | None) -> list[str]:
        found = (
            group.name
            for group in self.look(queue).groups
            if group.usage.ranked and (group.name == name if name is not None else group.row.own is None)
        )
        return list(islice(found, 1))

    def _load_logs(self, reads: MoreReads, work: UnitOfWork) -> None:
        if reads.history is not None:
            self._load_history(work, reads.history)
        if reads.events_of is not None:
            queue = self.look(reads.events_of)
            newest = queue.last_event
            work.event_logs[queue.name] = EventSpan(newest - len(queue.events) + 1, newest)
        if reads.mark is not None:
            work.mark = next((mark for _, mark_id, mark in self.marks if mark_id == reads.mark), None)

    def _load_ending(self, work: UnitOfWork) -> None:
        """Load everything with a stored end time: leases, holds, keys, leaderships, heartbeats."""
        self._find_all(work, self.active.values())
        for name in self.queues:
            self._load_settings(work, name)
        self._load_tables(work, Table.LEADER, Table.WORKER)

    def _load_tables(self, work: UnitOfWork, *tables: Table) -> None:
        for table in tables:
            work.rows.update(((table, key), row) for key, row in self.tables[table].items())

    def _load_settings(self, work: UnitOfWork, name: str) -> None:
        self._load_queue(name, work)
        queue = self.look(name)
        for group in queue.groups:
            self._load_group(name, group.name, work)
        work.rows.update(((Table.KEY, (name, key)), entry) for key, entry in queue.keys.items())
        work.rows.update(((Table.STUB, tuple(ref)), None) for ref in self.stubs.refs() if ref.queue == name)
        mine = ((key, row) for key, row in self.schedules.items() if key[0] == name)
        work.rows.update(((Table.SCHEDULE, key), row) for key, row in mine)

    def _load_past(self, work: UnitOfWork, limit: int) -> None:
        now_ms, past = work.now_ms, work.past
        past.kept_ids = [ref for ref, until_ms in self.kept_ids.items() if until_ms <= now_ms][:limit]
        past.stubs = self.stubs.past(now_ms, limit)
        late = now_ms - WORKER_KEPT_MS
        past.workers = [key for key, worker in self.workers.items() if worker.beat_ms <= late][:limit]
        for name, queue in self.queues.items():
            past.keys += [(name, key) for key, entry in queue.keys.items() if not entry.is_live(now_ms)]
            for group in queue.groups:
                if group.row.own is None and not group.usage.size:
                    past.groups.append((name, group.name))
                    self._load_group(name, group.name, work)
        for (name, step), rows in self.rollups.items():
            past.rollups += [(name, step, *key) for key in rows if key[0] < now_ms - KEPT_MS[step]]

    def _load_history(self, work: UnitOfWork, since_ms: int) -> None:
        for name, queue in self.queues.items():
            young = (number for number, record in queue.history if record.finished_ms > since_ms)
            newest = queue.last_history
            span = LogSpan(newest - len(queue.history) + 1, newest, next(young, newest + 1))
            work.logs[name] = span
        self._load_tables(work, Table.ARCHIVER, Table.CURSOR)


def _purged(queue: StoredQueue, asked: PurgeReads) -> list[JobRecord]:
    found = [
        job
        for job in queue.jobs.values()
        if job.state in asked.states and state_since(job) <= asked.before_ms
    ]
    found.sort(key=lambda job: (state_since(job), job.seq))
    return found[: asked.limit]
