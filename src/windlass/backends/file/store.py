"""A memory store that records its changes as effects, and applies effects of other processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from windlass.backends.file import effects as fx
from windlass.backends.file.journal import Journal
from windlass.backends.memory.state import StoredQueue
from windlass.backends.memory.store import MemoryStore
from windlass.core import bad_records, flow_rules
from windlass.core.job import LOGS_KEPT, ArchiverInfo, JobRecord, JobRef, LogLine, WorkerInfo
from windlass.core.rollups import MetricsRow
from windlass.core.schedule_rules import ScheduleRecord
from windlass.core.states import FINISHED, JobState
from windlass.core.unique_rules import KeyEntry
from windlass.engine.effects import Cursor, Effects, GroupRow, QueueRow, Table
from windlass.engine.reads import Verb
from windlass.engine.unit_of_work import UnitOfWork

#: The type of the values of each table.
ROWS: dict[Table, Any] = {
    Table.QUEUE: QueueRow,
    Table.GROUP: GroupRow,
    Table.KEY: KeyEntry,
    Table.KEPT_ID: int,
    Table.WORKER: WorkerInfo,
    Table.ARCHIVER: ArchiverInfo,
    Table.LEADER: tuple[str, int],
    Table.SCHEDULE: ScheduleRecord,
    Table.COUNTER: int,
    Table.CURSOR: Cursor,
    Table.ROLLUP: MetricsRow,
    Table.STUB: JobRecord,
}
#: Fields that a job keeps from its last readable record when its newest record cannot be read.
_KEPT = (
    *("task", "priority", "seq", "place", "turn", "options", "request_id", "enqueued_ms", "ready_ms"),
    *("attempts", "deliveries", "stalls", "manual_retries", "linked"),
)
_decoders = {table: msgspec.msgpack.Decoder(kind) for table, kind in ROWS.items()}


class FileStore(MemoryStore):
    """The state of one directory, as far as this process has read its log."""

    def __init__(self) -> None:
        super().__init__()
        self.journal = Journal()
        #: The newest time in the log.
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
            fx.PutEdge: lambda effect: self.edges.keep(effect.edge),
            fx.OrderEdges: lambda effect: self.edges.order(effect.child, effect.dependents),
            fx.AddEnds: self._add_ends,
            fx.DropEnds: self._drop_ends,
            fx.AddEvents: self._add_events,
            fx.ForgetEvents: self._forget_events,
            fx.AddHistory: self._add_history,
            fx.TrimHistory: lambda effect: self.trim(effect.queue, effect.oldest),
            fx.SetNumbers: self._set_numbers,
            fx.PutMark: lambda effect: self.put_mark(effect.mark),
            fx.Unread: self._put_bad_record,
        }

    # --- recording changes ----------------------------------------------------------------------------

    def _run(self, verb: Verb[Any], work: UnitOfWork) -> Any:
        try:
            return super()._run(verb, work)
        except Exception:
            if work.effects:
                self.journal.changes += 1  # it may have changed a record, so the session must reload
            raise

    def write(self, effects: Effects) -> None:
        """Apply the effects of a request, and add them to the journal."""
        self.journal.add(self, effects, self.apply_effects(effects))

    def take_step(self) -> fx.LogStep[Any]:
        """Return the changes of all requests since the last call."""
        return fx.LogStep(self.now_ms, self.last_place, self.journal.take(self))

    # --- applying effects -----------------------------------------------------------------------------

    def follow(self, step: fx.LogStep[Any]) -> None:
        """Apply the effects of a step from the log."""
        self.now_ms = step.now_ms or self.now_ms
        self.last_place = max(self.last_place, step.last_place)
        apply = self._apply
        for effect in step.effects:
            apply[type(effect)](effect)

    def _put_job(self, effect: fx.PutJob) -> None:
        job = fx.to_record(effect.row)
        queue = self.queue(job.queue)
        old = queue.jobs.get(job.id)
        if old is None:
            self.edges.forget(job.ref)  # a snapshot may contain edges of a job that is added by a later step
        elif old.seq != job.seq:
            if old.seq > job.seq:
                return
            self._drop_record(queue, old)
        self.put_job(job)

    def _move_job(self, effect: fx.MoveJob) -> None:
        queue = self.queue(effect.queue)
        job = queue.jobs.get(effect.id)
        if job is None or job.seq != effect.seq or bad_records.is_bad(job):
            return
        fx.move(job, effect.moving)
        self.put_job(job)

    def _put_bad_record(self, effect: fx.Unread) -> None:
        """Store a failed job with the bytes of a record that cannot be read.

        Every process that reads the log must get the same result, so this depends on the log alone.
        """
        names = effect.names()
        if names is None:
            bad_records.log_once(f"an entry of {len(effect.raw)} bytes of the log", effect.why)
            return
        name, job_id, seq = names
        queue = self.queue(name)
        queue.row.known = True
        old = queue.jobs.get(job_id)
        if old is not None and seq is not None and seq < old.seq:
            return
        if old is not None and seq is not None and seq > old.seq:
            self._drop_record(queue, old)
            old = None
        seq = self.last_place if seq is None else seq
        known = {} if old is None else {field: getattr(old, field) for field in _KEPT}
        job = bad_records.stand_in(
            name, job_id, effect.raw, effect.why, **({"seq": seq, "place": seq} | known)
        )
        job.state, job.finished_ms = JobState.FAILED, self.now_ms
        self.put_job(job)
        if job.options.group is not None:  # its group may have room now: let the next claim check
            row = queue.groups.get(job.options.group).row
            queue.groups.put(job.options.group, msgspec.structs.replace(row, next_ms=self.now_ms))
        if job.linked and old is not None and old.state not in FINISHED:  # notify its dependents by ``Relay``
            self.edges.left_ends.append(flow_rules.end_of(job))
            self.journal.ends += 1

    def _drop_job(self, effect: fx.DropJob) -> None:
        queue = self.queue(effect.queue)
        job = queue.jobs.get(effect.id)
        if job is None:
            self.edges.forget(JobRef(effect.queue, effect.id))
        elif job.seq == effect.seq:
            self._drop_record(queue, job)

    def _drop_record(self, queue: StoredQueue, job: JobRecord) -> None:
        """Remove a record, and the count of its log lines."""
        self.remove_job(queue, job)
        self.journal.logs.pop(job.ref, None)

    def _put_row(self, effect: fx.PutRow) -> None:
        what = f"an entry of the table {effect.table} ({', '.join(map(str, effect.key))})"
        value = bad_records.read_or_none(
            effect, lambda put: _decoders[Table(put.table)].decode(put.value), what
        )
        if value is not None:
            self.put_row(Table(effect.table), effect.key, value)

    def _drop_row(self, effect: fx.DropRow) -> None:
        if effect.table == Table.GROUP:
            self.journal.starts.pop((str(effect.key[0]), str(effect.key[1])), None)
        self.put_row(Table(effect.table), effect.key, None)

    def _add_starts(self, effect: fx.AddStarts) -> None:
        key = (effect.queue, effect.group)
        new = effect.number + len(effect.times) - 1 - self.journal.starts.get(key, 0)
        if new > 0:
            times = self.started(*key).starts
            times += effect.times[-new:]
            del times[: max(len(times) - effect.kept, 0)]
            self.journal.starts[key] = effect.number + len(effect.times) - 1

    def _set_starts(self, effect: fx.SetStarts) -> None:
        key = (effect.queue, effect.group)
        if effect.number >= self.journal.starts.get(key, 0):
            self.started(*key).starts = effect.times
            self.journal.starts[key] = effect.number

    def _add_logs(self, effect: fx.AddLogs) -> None:
        ref = JobRef(effect.queue, effect.id)
        job = self.find(ref)
        new = effect.number + len(effect.lines) - 1 - self.journal.logs.get(ref, 0)
        if job is not None and job.seq == effect.seq and new > 0:
            lines = [LogLine(line) if isinstance(line, str) else line for line in effect.lines[-new:]]
            self.logs.setdefault(ref, deque(maxlen=LOGS_KEPT)).extend(lines)
            self.journal.logs[ref] = effect.number + len(effect.lines) - 1

    def _add_chunks(self, effect: fx.AddChunks) -> None:
        ref = JobRef(effect.queue, effect.id)
        job = self.find(ref)
        if job is not None and job.seq == effect.seq:
            self.streams.keep(ref, effect.head, effect.chunks)

    def _add_ends(self, effect: fx.AddEnds) -> None:
        new = effect.number + len(effect.ends) - 1 - self.journal.ends
        if new > 0:
            self.edges.left_ends.extend(effect.ends[-new:])
            self.journal.ends += new

    def _drop_ends(self, effect: fx.DropEnds) -> None:
        while self.journal.relayed_ends < effect.relayed:
            self.journal.relayed_ends += 1
            if self.edges.left_ends:
                self.edges.left_ends.popleft()

    def _add_events(self, effect: fx.AddEvents) -> None:
        queue = self.queue(effect.queue)
        last = queue.last_event
        queue.events.extend(event for event in effect.events if event.id > last)
        queue.last_event = max(last, effect.events[-1].id)

    def _forget_events(self, effect: fx.ForgetEvents) -> None:
        self.forget_events(effect.queue, effect.upto)
        queue = self.queue(effect.queue)
        queue.last_event = max(queue.last_event, effect.upto)

    def _add_history(self, effect: fx.AddHistory) -> None:
        queue = self.queue(effect.queue)
        for number, record in enumerate(effect.records, effect.number):
            if number > queue.last_history:
                queue.history.append((number, record))
                queue.last_history = number

    def _set_numbers(self, effect: fx.SetNumbers) -> None:
        queue = self.queue(effect.queue)
        queue.last_event = max(queue.last_event, effect.last_event)
        queue.last_history = max(queue.last_history, effect.last_history)
