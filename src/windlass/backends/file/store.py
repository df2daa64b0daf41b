"""The state machine of the memory store, whose changes can be written down, applied elsewhere and dumped."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from windlass.backends.file import effects as fx
from windlass.backends.file.journal import FileJournal
from windlass.backends.memory.groups import Group
from windlass.backends.memory.journal import Table
from windlass.backends.memory.metrics import Cursor
from windlass.backends.memory.store import MemoryStore, StoredQueue
from windlass.core import damage, flows
from windlass.core.job import LOGS_KEPT, ArchiverInfo, JobRecord, JobRef, WorkerInfo
from windlass.core.metrics import MetricsRow
from windlass.core.schedules import ScheduleRecord
from windlass.core.states import FINISHED, JobState
from windlass.core.unique import KeyEntry

#: What the values of each table are.
ROWS: dict[Table, Any] = {
    Table.QUEUE: fx.QueueRow,
    Table.GROUP: fx.GroupRow,
    Table.KEY: KeyEntry,
    Table.KEPT_ID: int,
    Table.WORKER: WorkerInfo,
    Table.ARCHIVER: ArchiverInfo,
    Table.LEADER: tuple[str, int],
    Table.SCHEDULE: ScheduleRecord,
    Table.COUNTER: int,
    Table.CURSOR: Cursor,
    Table.ROLLUP: MetricsRow,
    Table.STUB: fx.JobRow,
}
#: What is known of a job whose newest record cannot be read.
_KEPT = (
    *("task", "priority", "seq", "place", "turn", "options", "request_id", "enqueued_ms", "ready_ms"),
    *("attempts", "deliveries", "stalls", "manual_retries", "linked"),
)
_decoders = {table: msgspec.msgpack.Decoder(kind) for table, kind in ROWS.items()}


class FileStore(MemoryStore):
    """The state of one directory, as far as this process has read its log."""

    journal: FileJournal

    def __init__(self) -> None:
        super().__init__(FileJournal())
        #: The last time in the log.
        self.now_ms = 0
        self._apply: dict[type[Any], Callable[[Any], None]] = {
            fx.PutJob: self._put_job,
            fx.MoveJob: self._move_job,
            fx.DropJob: self._drop_job,
            fx.PutRow: self._put_row,
            fx.DropRow: self._drop_row,
            fx.AddStarts: self._add_starts,
            fx.SetStarts: self._set_starts,
            fx.AddLogs: self._add_logs,
            fx.AddChunks: self._add_chunks,
            fx.PutEdge: lambda effect: self._flows.keep_edge(effect.edge),
            fx.OrderEdges: lambda effect: self._flows.order(effect.child, effect.dependents),
            fx.AddEnds: self._add_ends,
            fx.DropEnds: self._drop_ends,
            fx.AddEvents: self._add_events,
            fx.ForgetEvents: self._forget_events,
            fx.AddHistory: self._add_history,
            fx.TrimHistory: self._trim,
            fx.SetNumbers: self._set_numbers,
            fx.AddMark: lambda effect: self._metrics.keep_mark(effect.mark),
            fx.Unread: self._pass_over,
        }
        self._put: dict[int, Callable[[Any, Any], None]] = {
            Table.QUEUE: self._put_queue,
            Table.GROUP: self._put_group,
            Table.KEY: lambda key, value: self._bare(key[0]).keys.__setitem__(key[1], value),
            Table.KEPT_ID: lambda key, value: self._kept_ids.__setitem__(JobRef(*key), value),
            Table.WORKER: lambda key, value: self._workers.__setitem__(key[0], value),
            Table.ARCHIVER: lambda key, value: self._archivers.__setitem__(key[0], value),
            Table.LEADER: lambda key, value: self._leaders.__setitem__(key[0], value),
            Table.SCHEDULE: lambda key, value: self._schedules.records.__setitem__(key, value),
            Table.COUNTER: lambda key, value: self._counters.__setitem__(key, value),
            Table.CURSOR: lambda key, value: self._metrics.cursors.__setitem__(key[0], value),
            Table.ROLLUP: lambda key, value: self._metrics.rows_of(*key[:2]).__setitem__(key[2:], value),
            Table.STUB: self._put_stub,
        }
        self._drop_key: dict[int, Callable[[Any], Any]] = {
            Table.QUEUE: lambda key: self._queues.pop(key[0], None),
            Table.GROUP: self._drop_group,
            Table.KEY: lambda key: self._bare(key[0]).keys.pop(key[1], None),
            Table.KEPT_ID: lambda key: self._kept_ids.pop(JobRef(*key), None),
            Table.WORKER: lambda key: self._workers.pop(key[0], None),
            Table.ARCHIVER: lambda key: self._archivers.pop(key[0], None),
            Table.LEADER: lambda key: self._leaders.pop(key[0], None),
            Table.SCHEDULE: lambda key: self._schedules.records.pop(key, None),
            Table.COUNTER: lambda key: self._counters.pop(key, None),
            Table.CURSOR: lambda key: self._metrics.cursors.pop(key[0], None),
            Table.ROLLUP: lambda key: self._metrics.rows_of(*key[:2]).pop(key[2:], None),
            Table.STUB: lambda key: self._stubs.remove(JobRef(*key)),
        }

    # --- out ------------------------------------------------------------------------------------------

    def take_step(self) -> fx.Written:
        """What the requests since the last call changed."""
        return fx.Written(self.now_ms, self._last_place, self.journal.take(self))

    def take_place(self) -> int:
        """The last place in line that was given away."""
        return self._last_place

    def row(self, table: Table, key: tuple[Any, ...]) -> Any:  # noqa: C901 - one case per table
        """The value of an entry as it is now; None when it is not there."""
        match table:
            case Table.QUEUE:
                return self._queue_row(self._queues[key[0]])
            case Table.GROUP:
                group = self._queues[key[0]].groups.find(key[1])
                return None if group is None else _group_row(group)
            case Table.KEY:
                return self._queues[key[0]].keys.get(key[1])
            case Table.KEPT_ID:
                return self._kept_ids.get(JobRef(*key))
            case Table.WORKER:
                return self._workers.get(key[0])
            case Table.ARCHIVER:
                return self._archivers.get(key[0])
            case Table.LEADER:
                return self._leaders.get(key[0])
            case Table.SCHEDULE:
                return self._schedules.records.get((key[0], key[1]))
            case Table.COUNTER:
                return self._counters[key[0], key[1], key[2]]
            case Table.CURSOR:
                return self._metrics.cursors.get(key[0])
            case Table.ROLLUP:
                return self._metrics.rows_of(key[0], key[1]).get((key[2], key[3]))
            case Table.STUB:
                return self._stub_row(JobRef(key[0], key[1]))

    def _stub_row(self, ref: JobRef) -> Any:
        found = self._stubs.find(ref, 0)
        return None if found is None else fx.whole_of(found)

    def start_times(self, queue: str, group: str | None) -> list[int]:
        """The start times that count, oldest first."""
        stored = self._queues[queue]
        if group is None:
            return stored.starts
        found = stored.groups.find(group)
        return found.usage.starts if found is not None else []

    def oldest_history(self, queue: str) -> int:
        stored = self._queues[queue]
        return stored.history[0][0] if stored.history else stored.last_history + 1

    @staticmethod
    def _queue_row(queue: StoredQueue) -> fx.QueueRow:
        return fx.QueueRow(
            queue.paused,
            queue.known,
            queue.limits,
            queue.hold_until_ms,
            queue.groups.every,
            queue.line.grouped,
        )

    # --- in -------------------------------------------------------------------------------------------

    def follow(self, step: fx.Step) -> None:
        """Apply the effects of a step that was decided elsewhere."""
        self.now_ms = step.now_ms or self.now_ms
        self._last_place = max(self._last_place, step.last_place)
        apply = self._apply
        for effect in step.effects:
            apply[type(effect)](effect)

    def _bare(self, name: str) -> StoredQueue:
        """The queue; a new one is not told to the journal."""
        found = self._queues.get(name)
        if found is None:
            found = self._queues[name] = StoredQueue(name)
        return found

    def _put_job(self, effect: fx.PutJob) -> None:
        job = fx.to_record(effect.row)
        queue = self._bare(job.queue)
        old = queue.jobs.get(job.id)
        if old is None:
            self._flows.forget(job.ref)  # a snapshot that is ahead may have brought its edges before it
        elif old.seq != job.seq:
            if old.seq > job.seq:
                return
            self._leave_whole(queue, old)
        queue.jobs[job.id] = job
        self._stubs.remove(job.ref)
        self.enter(queue, job)

    def _move_job(self, effect: fx.MoveJob) -> None:
        queue = self._bare(effect.queue)
        job = queue.jobs.get(effect.id)
        if job is None or job.seq != effect.seq or damage.is_bad(job):
            return
        fx.move(job, effect.moving)
        self.enter(queue, job)

    def _pass_over(self, effect: fx.Unread) -> None:
        """A record that cannot be read: its job has failed, with those bytes. Every process decides alike."""
        names = effect.names()
        if names is None:
            damage.tell(f"an entry of {len(effect.raw)} bytes of the log", effect.why)
            return
        name, job_id, seq = names
        queue = self._bare(name)
        queue.known = True
        old = queue.jobs.get(job_id)
        if old is not None and seq is not None and seq < old.seq:
            return
        if old is not None and seq is not None and seq > old.seq:
            self._leave_whole(queue, old)
            old = None
        seq = self._last_place if seq is None else seq
        known = {} if old is None else {field: getattr(old, field) for field in _KEPT}
        job = damage.stand_in(name, job_id, effect.raw, effect.why, **({"seq": seq, "place": seq} | known))
        job.state, job.finished_ms = JobState.FAILED, self.now_ms
        queue.jobs[job_id] = job
        self.enter(queue, job)
        if job.options.group is not None:  # it may have made room: the next claim looks
            queue.groups.wait_until(queue.groups.get(job.options.group), self.now_ms)
        if job.linked and old is not None and old.state not in FINISHED:  # a relay tells who waits for it
            self._flows.left_ends.append(flows.end_of(job))
            self.journal.ends += 1

    def _drop_job(self, effect: fx.DropJob) -> None:
        queue = self._bare(effect.queue)
        job = queue.jobs.get(effect.id)
        if job is None:
            self._flows.forget(JobRef(effect.queue, effect.id))
        elif job.seq == effect.seq:
            self._leave_whole(queue, job)

    def _leave_whole(self, queue: StoredQueue, job: JobRecord) -> None:
        self.leave(queue, job)
        self.journal.logs.pop(job.ref, None)
        if job.options.group is not None:
            queue.groups.get(job.options.group).forget(job.id)

    def _put_row(self, effect: fx.PutRow) -> None:
        what = f"an entry of the table {effect.table} ({', '.join(map(str, effect.key))})"
        value = damage.read_or_none(effect, lambda put: _decoders[Table(put.table)].decode(put.value), what)
        if value is not None:
            self._put[effect.table](effect.key, value)

    def _put_stub(self, _: Any, row: fx.JobRow) -> None:
        self._stubs.put(fx.to_record(row))

    def _drop_row(self, effect: fx.DropRow) -> None:
        self._drop_key[effect.table](effect.key)

    def _put_queue(self, key: tuple[str], row: fx.QueueRow) -> None:
        queue = self._bare(key[0])
        queue.paused, queue.known = row.paused, row.known
        queue.limits, queue.hold_until_ms = row.limits, row.hold_until_ms
        queue.groups.every = row.every_group
        queue.line.grouped = row.grouped

    def _put_group(self, key: tuple[str, str], row: fx.GroupRow) -> None:
        groups = self._bare(key[0]).groups
        group = groups.get(key[1])
        group.own = row.own
        usage = group.usage
        usage.paused, usage.hold_until_ms = row.paused, row.hold_until_ms
        usage.level, usage.level_ms = row.level, row.level_ms
        groups.wait_until(group, row.next_ms)

    def _drop_group(self, key: tuple[str, str]) -> None:
        """What was said of a group goes; jobs that it has (in a snapshot that is ahead) still count."""
        queue = self._bare(key[0])
        group = queue.groups.find(key[1])
        self.journal.starts.pop(key, None)
        if group is None:
            return
        if group.usage.size == 0:
            queue.groups.remove(key[1])
            return
        self._put_group(key, _group_row(Group(key[1])))
        group.usage.starts = []

    def _add_starts(self, effect: fx.AddStarts) -> None:
        key = (effect.queue, effect.group)
        new = effect.number + len(effect.times) - 1 - self.journal.starts.get(key, 0)
        if new > 0:
            times = self._starts_to_change(*key)
            times += effect.times[-new:]
            del times[: max(len(times) - effect.kept, 0)]
            self.journal.starts[key] = effect.number + len(effect.times) - 1

    def _set_starts(self, effect: fx.SetStarts) -> None:
        key = (effect.queue, effect.group)
        if effect.number >= self.journal.starts.get(key, 0):
            self._starts_to_change(*key)[:] = effect.times
            self.journal.starts[key] = effect.number

    def _starts_to_change(self, queue: str, group: str | None) -> list[int]:
        stored = self._bare(queue)
        return stored.starts if group is None else stored.groups.get(group).usage.starts

    def _add_logs(self, effect: fx.AddLogs) -> None:
        ref = JobRef(effect.queue, effect.id)
        job = self._find(ref)
        new = effect.number + len(effect.lines) - 1 - self.journal.logs.get(ref, 0)
        if job is not None and job.seq == effect.seq and new > 0:
            self._logs.setdefault(ref, deque(maxlen=LOGS_KEPT)).extend(effect.lines[-new:])
            self.journal.logs[ref] = effect.number + len(effect.lines) - 1

    def _add_chunks(self, effect: fx.AddChunks) -> None:
        ref = JobRef(effect.queue, effect.id)
        job = self._find(ref)
        if job is not None and job.seq == effect.seq:
            self._streams.keep(ref, effect.head, effect.chunks)

    def _add_ends(self, effect: fx.AddEnds) -> None:
        new = effect.number + len(effect.ends) - 1 - self.journal.ends
        if new > 0:
            self._flows.left_ends.extend(effect.ends[-new:])
            self.journal.ends += new

    def _drop_ends(self, effect: fx.DropEnds) -> None:
        while self.journal.told_ends < effect.told:
            self.journal.told_ends += 1
            if self._flows.left_ends:
                self._flows.left_ends.popleft()

    def _add_events(self, effect: fx.AddEvents) -> None:
        queue = self._bare(effect.queue)
        last = queue.last_event
        queue.events.extend(event for event in effect.events if event.id > last)
        queue.last_event = max(last, effect.events[-1].id)

    def _forget_events(self, effect: fx.ForgetEvents) -> None:
        queue = self._bare(effect.queue)
        while queue.events and queue.events[0].id <= effect.upto:
            queue.events.popleft()
        queue.last_event = max(queue.last_event, effect.upto)

    def _add_history(self, effect: fx.AddHistory) -> None:
        queue = self._bare(effect.queue)
        for number, record in enumerate(effect.records, effect.number):
            if number > queue.last_history:
                queue.history.append((number, record))
                queue.last_history = number

    def _trim(self, effect: fx.TrimHistory) -> None:
        history = self._bare(effect.queue).history
        while history and history[0][0] < effect.oldest:
            history.popleft()

    def _set_numbers(self, effect: fx.SetNumbers) -> None:
        queue = self._bare(effect.queue)
        queue.last_event = max(queue.last_event, effect.last_event)
        queue.last_history = max(queue.last_history, effect.last_history)


def _group_row(group: Group) -> fx.GroupRow:
    usage = group.usage
    return fx.GroupRow(
        group.own, usage.paused, usage.hold_until_ms, usage.level, usage.level_ms, group.next_ms
    )
