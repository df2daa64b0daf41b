"""The tables and indexes of the memory store, and how effects change them. The engine makes the decisions."""

from __future__ import annotations

from bisect import insort
from collections import Counter, deque
from collections.abc import Callable
from copy import copy
from typing import Any

from windlass.backends.memory.edges import Edges
from windlass.backends.memory.finished import Finished
from windlass.backends.memory.groups import StoredGroups
from windlass.backends.memory.order import Order
from windlass.backends.memory.streams import StoredStreams
from windlass.backends.memory.stubs import Stubs
from windlass.backends.memory.waiting_jobs import WaitingJobs
from windlass.core.job import (
    EVENTS_KEPT,
    LOGS_KEPT,
    ArchiverInfo,
    AttemptRecord,
    Event,
    JobRecord,
    JobRef,
    LogLine,
    WorkerInfo,
)
from windlass.core.limit_rules import Usage
from windlass.core.rollups import MARKS_KEPT, Mark, MetricsRow, Step
from windlass.core.schedule_rules import ScheduleRecord
from windlass.core.states import FINISHED, PENDING, TIMED, JobState
from windlass.core.unique_rules import KeyEntry
from windlass.engine.effects import Cursor, Effects, GroupRow, QueueRow, Table

_WAITING, _ACTIVE = JobState.WAITING, JobState.ACTIVE


class StoredQueue:
    """One queue: its jobs in the order in which they were added, indexes, limits, events and history."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.row = QueueRow()
        self.jobs: dict[str, JobRecord] = {}
        #: The state under which each job is indexed, and the number of jobs in each state.
        self._states: dict[str, JobState] = {}
        self.counts: dict[JobState, int] = dict.fromkeys(JobState, 0)
        self.finished = Finished()
        self.line = WaitingJobs()
        #: Timed jobs by (due_ms, seq), and pending jobs that can expire by (expires_ms, seq).
        self.due: Order[JobRecord] = Order()
        self.expiring: Order[JobRecord] = Order()
        #: Start times within the queue's own rate, oldest first.
        self.starts: list[int] = []
        self.groups = StoredGroups()
        #: The groups of jobs with a unique key. A later add may move such a job to another group.
        self._groups_of: dict[str, str] = {}
        self.keys: dict[str, KeyEntry] = {}
        self.events: deque[Event] = deque(maxlen=EVENTS_KEPT)
        self.last_event = 0
        self.history: deque[tuple[int, AttemptRecord]] = deque()
        self.last_history = 0

    def index(self, job: JobRecord) -> JobState | None:
        """Update the indexes for the present state of ``job``; returns the state that it had in them."""
        state, job_id = job.state, job.id
        before, self._states[job_id] = self._states.get(job_id), state
        if before is not state:
            self.counts[state] += 1
            if before is not None:
                self.counts[before] -= 1
        if before in FINISHED:
            self.finished.remove(job_id)
        if state in FINISHED:
            self.finished.put(job)
        if state is _WAITING or before is _WAITING:
            self.line.put(job)
        if job.expires_ms is not None and state in PENDING:
            self.expiring.put((job.expires_ms, job.seq), job_id, job)
        elif self.expiring.counted:
            self.expiring.remove(job_id)
        if job.due_ms is not None and state in TIMED:
            self.due.put((job.due_ms, job.seq), job_id, job)
        elif self.due.counted:
            self.due.remove(job_id)
        if job.options.unique is not None:
            self._leave_group(job)
        if job.options.group is not None:
            group = self.groups.get(job.options.group)
            group.leave(job_id)
            group.enter(job)
        return before

    def _leave_group(self, job: JobRecord) -> None:
        """Remove a job from its old group, if a later add under its unique key moved it to another."""
        group, before = job.options.group, self._groups_of.get(job.id)
        if before is not None and before != group:
            self.groups.get(before).leave(job.id)
            del self._groups_of[job.id]
        if group is not None:
            self._groups_of[job.id] = group

    def drop(self, job: JobRecord) -> JobState:
        """Remove a record, also from the indexes; returns the state that it had in them."""
        del self.jobs[job.id]
        self.finished.remove(job.id)
        self.line.remove(job.id)
        self.expiring.remove(job.id)
        self.due.remove(job.id)
        if job.options.group is not None:
            self.groups.get(job.options.group).leave(job.id)
        self._groups_of.pop(job.id, None)
        before = self._states.pop(job.id)
        self.counts[before] -= 1
        return before

    def next_due(self) -> JobRecord | None:
        """The job that is due first."""
        return self.due.head()


class State:
    """All queues and other tables of one namespace."""

    def __init__(self) -> None:
        self.queues: dict[str, StoredQueue] = {}
        self.active: dict[tuple[str, str], JobRecord] = {}
        self.kept_ids: dict[tuple[str, str], int] = {}
        self.logs: dict[JobRef, deque[LogLine]] = {}
        self.counters: Counter[tuple[str, str, str]] = Counter()
        self.workers: dict[tuple[str], WorkerInfo] = {}
        self.archivers: dict[tuple[str], ArchiverInfo] = {}
        self.leaders: dict[tuple[str], tuple[str, int]] = {}
        self.schedules: dict[tuple[str, str], ScheduleRecord] = {}
        self.cursors: dict[tuple[str], Cursor] = {}
        self.rollups: dict[tuple[str, Step], dict[tuple[int, str], MetricsRow]] = {}
        self.marks: list[tuple[int, str, Mark]] = []
        self.edges = Edges()
        self.streams = StoredStreams()
        self.stubs = Stubs()
        #: The tables that are dictionaries by key. The others have a function each in ``_put`` and ``_ROWS``.
        self.tables: dict[Table, dict[Any, Any]] = {
            Table.KEPT_ID: self.kept_ids,
            Table.WORKER: self.workers,
            Table.ARCHIVER: self.archivers,
            Table.LEADER: self.leaders,
            Table.SCHEDULE: self.schedules,
            Table.COUNTER: self.counters,
            Table.CURSOR: self.cursors,
        }
        self._put: dict[Table, Callable[[Any, Any], None]] = {
            Table.QUEUE: self._put_queue,
            Table.GROUP: lambda key, row: self.queue(key[0]).groups.put(key[1], row),
            Table.KEY: lambda key, row: _set(self.queue(key[0]).keys, key[1], row),
            Table.ROLLUP: lambda key, row: _set(self.rollups.setdefault(key[:2], {}), key[2:], row),
            Table.STUB: lambda key, row: self.stubs.put(JobRef(*key), row),
        }

    # --- reading ----------------------------------------------------------------------------------

    def find(self, ref: JobRef) -> JobRecord | None:
        queue = self.queues.get(ref.queue)
        return queue.jobs.get(ref.id) if queue else None

    def look(self, name: str) -> StoredQueue:
        """The queue, or an empty one that is not stored."""
        return self.queues.get(name) or StoredQueue(name)

    def row(self, table: Table, key: tuple[Any, ...]) -> Any:
        """The present value of a row; None if it does not exist."""
        rows = self.tables.get(table)
        return _ROWS[table](self, key) if rows is None else rows.get(key)

    # --- changing ---------------------------------------------------------------------------------

    def apply_effects(self, effects: Effects) -> dict[str, list[Event]]:
        """Apply effects to the tables; returns the new events with their ids, by queue."""
        for job in effects.gone:
            stored = self.find(job.ref)
            if stored is job:
                self.remove_job(self.queues[job.queue], job)
        for job, _ in effects.changed():
            self.put_job(job)
        for (table, key), row in effects.rows.items():
            self.put_row(table, key, row)
        if effects.relayed or not effects.plain:
            self._keep_parts(effects)
        return self._keep_logs(effects)

    def _keep_parts(self, effects: Effects) -> None:
        for starter, starts in effects.starts.items():
            self.started(*starter).starts = starts.times
        for edge in effects.edges.values():
            self.edges.keep(edge)
        for _ in range(effects.relayed):
            self.edges.left_ends.popleft()
        self.edges.left_ends.extend(effects.ends)
        for job, lines in effects.logs:
            self.logs.setdefault(job.ref, deque(maxlen=LOGS_KEPT)).extend(lines)
        for job, head, chunks in effects.chunks:
            self.streams.append(job.ref, head, chunks)
        for mark in effects.marks:
            self.put_mark(mark)
        for name, upto in effects.forgotten.items():
            self.forget_events(name, upto)
        for name, oldest in effects.trims.items():
            self.trim(name, oldest)

    def _keep_logs(self, effects: Effects) -> dict[str, list[Event]]:
        at_ms = effects.now_ms
        noted: dict[str, list[Event]] = {}
        queue: StoredQueue | None = None
        for note in effects.pending_events:
            queue = self.queue(note.queue)
            first, kind, task, data = queue.last_event + 1, note.type, note.task, note.data
            events = [
                Event(number, at_ms, kind, job_id, task, data)
                for number, job_id in enumerate(note.job_ids, first)
            ]
            queue.last_event += len(events)
            queue.events.extend(events)
            noted.setdefault(note.queue, []).extend(events)
        for record in effects.history:
            if queue is None or queue.name != record.queue:
                queue = self.queue(record.queue)
            queue.last_history += 1
            queue.history.append((queue.last_history, record))
        counters = self.counters
        for counter, by in effects.counts.items():
            counters[counter] = counters.get(counter, 0) + by
        return noted

    def queue(self, name: str) -> StoredQueue:
        """The queue of that name. Creates it if needed."""
        found = self.queues.get(name)
        if found is None:
            found = self.queues[name] = StoredQueue(name)
        return found

    def put_job(self, job: JobRecord) -> None:
        """Add or replace a record, and update the indexes."""
        queue = self.queues.get(job.queue) or self.queue(job.queue)
        queue.jobs[job.id] = job
        before = queue.index(job)
        if job.state is _ACTIVE:
            self.active[job.queue, job.id] = job
        elif before is _ACTIVE:
            del self.active[job.queue, job.id]

    def remove_job(self, queue: StoredQueue, job: JobRecord) -> None:
        """Remove a record with its edges to children, live output and log lines."""
        ref = job.ref
        if queue.drop(job) is _ACTIVE:
            del self.active[ref]
        if job.linked:
            self.edges.forget(ref)
        self.streams.forget(ref)
        self.logs.pop(ref, None)

    def put_row(self, table: Table, key: tuple[Any, ...], row: Any) -> None:
        """Set a row of a table; None removes it."""
        rows = self.tables.get(table)
        if rows is None:
            self._put[table](key, row)
        else:
            _set(rows, key, row)

    def _put_queue(self, key: tuple[str], row: QueueRow | None) -> None:
        if row is None:
            self.queues.pop(key[0], None)
            return
        queue = self.queue(key[0])
        queue.row = copy(row)
        if row.grouped:
            queue.line.count_turns()

    def started(self, queue: str, group: str | None) -> StoredQueue | Usage:
        """What has the ``starts`` of a group, or of a queue (None). Creates it if needed."""
        stored = self.queue(queue)
        return stored if group is None else stored.groups.get(group).usage

    def forget_events(self, queue: str, upto: int) -> None:
        """Delete the events of a queue up to id ``upto``."""
        events = self.queue(queue).events
        while events and events[0].id <= upto:
            events.popleft()

    def trim(self, queue: str, oldest: int) -> None:
        """Delete the history of a queue before record ``oldest``."""
        history = self.queue(queue).history
        while history and history[0][0] < oldest:
            history.popleft()

    def put_mark(self, mark: Mark) -> None:
        """Add a mark, and drop the oldest marks beyond the limit."""
        insort(self.marks, (mark.at_ms, mark.id, mark))
        del self.marks[:-MARKS_KEPT]


def _set(table: dict[Any, Any], key: Any, row: Any) -> None:
    if row is None:
        table.pop(key, None)
    else:
        table[key] = row


def _group_row(state: State, key: tuple[Any, ...]) -> GroupRow | None:
    group = state.look(key[0]).groups.find(key[1])
    return None if group is None else group.row


#: How to read a row of the tables that are not in ``State.tables``.
_ROWS: dict[Table, Callable[[State, tuple[Any, ...]], Any]] = {
    Table.QUEUE: lambda state, key: state.queues[key[0]].row if key[0] in state.queues else None,
    Table.GROUP: _group_row,
    Table.KEY: lambda state, key: state.look(key[0]).keys.get(key[1]),
    Table.ROLLUP: lambda state, key: state.rollups.get(key[:2], {}).get(key[2:]),
    Table.STUB: lambda state, key: state.stubs.find(JobRef(*key)),
}
