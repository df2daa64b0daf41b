"""How a job is created, waits, starts and ends, as functions on its record.

``core.settle_rules`` has the ends of attempts, ``core.change_rules`` the changes by callers. All of these
functions are deterministic and do no I/O. The ``ChangeRecorder`` provides the time and new places, and
collects the event of each change and the history record of each attempt. The engine calls these functions
for every store except Valkey, where Lua code implements the same rules: ``docs/internals/decisions.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from windlass.core.bad_records import BAD_RECORD
from windlass.core.job import (
    BRIEF_CHARS,
    ERRORS_KEPT,
    AlikeAttempts,
    AttemptOutcome,
    AttemptRecord,
    ErrorInfo,
    EventType,
    JobRecord,
    NewJob,
    OwnFields,
    attempt_record,
)
from windlass.core.option_values import UniqueMode
from windlass.core.outcome import AddOutcome, Extended, Settled
from windlass.core.queue_time import count, forget_stale
from windlass.core.states import FINISHED, PENDING, JobState

EventData = dict[str, str | int | None]
NO_DATA: EventData = {}

STALLED_CLASS = "JobStalled"
EXPIRED_CLASS = "JobExpired"
EXPIRES_IN_MESSAGE = "not started before its expires_in passed"
EXPIRES_TOTAL_MESSAGE = "its expires_total passed"
KILLED_CLASS = "JobKilled"
COST_CLASS = "CostExceedsCapacity"
#: The turn of a job that got a new place in line. It gets a turn when it is saved as waiting.
NO_TURN = -1

# Module names for members that every job needs, because looking up a member of an enum is slow.
_ACTIVE, _ENQUEUED, _STARTED, _OK = JobState.ACTIVE, EventType.ENQUEUED, EventType.STARTED, Settled.OK
_NO_IDS: list[str] = []
#: A faster ``copy.copy``: it calls ``__copy__`` directly.
copy: Callable[[JobRecord], JobRecord] = JobRecord.__copy__  # type: ignore[attr-defined]


class PendingEvent(msgspec.Struct, gc=False):
    """An event without its id yet. It can cover several consecutive jobs of one task."""

    queue: str
    type: EventType
    #: One event for each id. "": an event about the queue, not about a job.
    job_ids: list[str]
    task: str = ""
    data: EventData = NO_DATA


class ChangeRecorder:
    """The time of a change, and the events and history records that it writes."""

    __slots__ = ("attempts", "fresh_place", "now_ms", "pending_events")

    def __init__(self, now_ms: int, fresh_place: Callable[[], int]) -> None:
        self.now_ms: int = now_ms
        self.fresh_place: Callable[[], int] = fresh_place
        self.pending_events: list[PendingEvent] = []
        self.attempts: list[AlikeAttempts] = []

    def record_attempt(self, record: AttemptRecord) -> list[OwnFields]:
        """Add a history record. Append what differs in records that are alike to the returned list."""
        more: list[OwnFields] = []
        self.attempts.append(AlikeAttempts(record, more))
        return more

    def record_event(self, job: JobRecord, event: EventType, **data: str | int | None) -> None:
        """Record that ``event`` happened to ``job``."""
        self.note_of(job.queue, event, job.id, job.task, data)

    def note_of(
        self, queue: str, event: EventType, job_id: str = "", task: str = "", data: EventData = NO_DATA
    ) -> None:
        """``record_event`` for a job without a record, or for an event that is not about a job."""
        self.run_of(queue, event, task, data).append(job_id)

    def run_of(self, queue: str, event: EventType, task: str, data: EventData = NO_DATA) -> list[str]:
        """The list of ids to append to: consecutive events of one kind share one ``PendingEvent``."""
        notes = self.pending_events
        if notes:
            last = notes[-1]
            if last.type is event and last.task == task and last.queue == queue and last.data == data:
                return last.job_ids
        ids: list[str] = []
        notes.append(PendingEvent(queue, event, ids, task, data))
        return ids


def create(new: NewJob, recorder: ChangeRecorder, *, after_ms: int = 0) -> JobRecord:
    """The record of a job that is added now. ``after_ms``: when the job that it replaces was added."""
    return create_all([new], recorder, after_ms=after_ms)[0]


def create_all(news: list[NewJob], recorder: ChangeRecorder, *, after_ms: int = 0) -> list[JobRecord]:
    """``create`` for several jobs, in this order.

    A job with ``depends_on`` is created as blocked. The caller then creates its edges and reviews them.
    """
    now_ms = max(recorder.now_ms, after_ms + 1) if after_ms else recorder.now_ms
    made: list[JobRecord] = []
    queue, task, options, ids = None, None, None, _NO_IDS
    fresh_place = recorder.fresh_place
    for new in news:
        if new.options is not options or new.task != task or new.queue != queue:
            queue, task, options, ids = new.queue, new.task, new.options, _NO_IDS
            model = JobRecord(queue=queue, id="", task=task, payload=b"", options=options, turn=NO_TURN)
            model.enqueued_ms = model.ready_ms = now_ms
            timed = options.expires_total_ms is not None or options.unique is not None
        # Copying a model and setting the other fields takes half the time of a call with all fields.
        job = copy(model)
        job.id, job.request_id = new.id, new.request_id
        job.payload = new.payload
        if new.codec != job.codec:
            job.codec = new.codec
        if new.priority:
            job.priority = new.priority
        job.seq = seq = fresh_place()
        job.place = -seq if options.lifo else seq
        made.append(job)
        if timed or new.delay_ms or new.run_at_ms is not None or new.expires_in_ms is not None:
            _set_times(job, new, now_ms)
        if new.depends_on or new.parent is not None:
            job.linked = True
        if new.depends_on or job.due_ms is not None:
            _begin_later(job, recorder, blocked=bool(new.depends_on))
            ids = _NO_IDS
            continue
        if ids is _NO_IDS:
            ids = recorder.run_of(queue, _ENQUEUED, task)
        ids.append(job.id)
    return made


def _set_times(job: JobRecord, new: NewJob, now_ms: int) -> None:
    """Set the due time and the deadline of a new job."""
    job.expires_ms = first_deadline(new, now_ms)
    due_ms = first_due(new, now_ms)
    if due_ms > now_ms:
        job.state = JobState.SCHEDULED
        job.due_ms = job.ready_ms = due_ms


def _begin_later(job: JobRecord, recorder: ChangeRecorder, *, blocked: bool) -> None:
    """Record the event of a new job that is blocked or scheduled."""
    if blocked:
        job.state = JobState.BLOCKED
        recorder.record_event(job, EventType.BLOCKED)
    else:
        recorder.record_event(job, EventType.SCHEDULED, run_at_ms=job.due_ms)


def first_due(new: NewJob, now_ms: int) -> int:
    """When a job that is added now becomes due."""
    unique = new.options.unique
    if unique is not None and is_debounced(new):
        return now_ms + (unique.ttl_ms or 0)
    return new.run_at_ms if new.run_at_ms is not None else now_ms + new.delay_ms


def is_debounced(new: NewJob) -> bool:
    """Whether each add with the same unique key restarts the delay."""
    return new.options.unique is not None and new.options.unique.mode is UniqueMode.DEBOUNCE


def first_deadline(new: NewJob, now_ms: int) -> int | None:
    """The time by which a job that is added now must have started (None: no deadline)."""
    first_ms, total_ms = new.expires_in_ms, new.options.expires_total_ms
    if first_ms is None:
        return None if total_ms is None else now_ms + total_ms
    return now_ms + (first_ms if total_ms is None else min(first_ms, total_ms))


def kept_until(job: JobRecord) -> int:
    """Until when an add with this id answers ``duplicate``, even if the job is gone (0: no ``keep_id``)."""
    return 0 if job.options.keep_id_ms is None else job.enqueued_ms + job.options.keep_id_ms


def answer_known(old: JobRecord, new: NewJob, now_ms: int) -> AddOutcome | None:
    """The outcome of an add whose id has a record; None if the new job replaces the record.

    ``queued`` means that the same request was repeated.
    """
    if new.request_id and new.request_id == old.request_id:
        return AddOutcome.QUEUED
    if old.state not in FINISHED or kept_until(old) > now_ms:
        return AddOutcome.DUPLICATE
    has_result = old.state is JobState.COMPLETED and (old.result_until_ms or 0) > now_ms
    return AddOutcome.CACHED if has_result else None


def promote(job: JobRecord, recorder: ChangeRecorder) -> None:
    """Make a due job, or one that a caller promotes, waiting at the back of its priority."""
    count(job, recorder.now_ms)
    job.state = JobState.WAITING
    job.ready_ms = min(job.due_ms, recorder.now_ms) if job.due_ms is not None else recorder.now_ms
    job.due_ms = None
    join_line(job, recorder)
    recorder.record_event(job, EventType.PROMOTED)


def join_line(job: JobRecord, recorder: ChangeRecorder) -> None:
    """Give a job a place at the back of its priority (``lifo``: at the front). Its turn is set on saving."""
    place = recorder.fresh_place()
    job.place, job.turn = -place if job.options.lifo else place, NO_TURN


def park(job: JobRecord, recorder: ChangeRecorder) -> None:
    """Park a waiting job whose group has no room. It keeps its place in the group's own line."""
    count(job, recorder.now_ms)
    job.state = JobState.PARKED
    recorder.record_event(job, EventType.PARKED)


def let_in(job: JobRecord, recorder: ChangeRecorder) -> None:
    """Make a parked job waiting, because its group has room."""
    count(job, recorder.now_ms)
    job.state = JobState.WAITING
    job.turn = NO_TURN
    recorder.record_event(job, EventType.PROMOTED)


def refuse_cost(job: JobRecord, recorder: ChangeRecorder) -> None:
    """Fail a job that costs more than its group's bucket can ever hold."""
    message = f"its cost of {job.options.cost} is more than the bucket of group '{job.options.group}' holds"
    error = ErrorInfo(recorder.now_ms, 0, COST_CLASS, message, "", COST_CLASS)
    fail(job, recorder, error, reason="cost_exceeds_capacity")


def is_expired(job: JobRecord, now_ms: int) -> bool:
    """Whether a pending job is past its deadline. ``expires_in`` counts only before the first run.

    Records of earlier releases still have the deadline of ``expires_in`` after a run. It is ignored then.
    """
    if job.expires_ms is None or job.expires_ms > now_ms or job.state not in PENDING:
        return False
    return job.deliveries == 0 or job.options.expires_total_ms is not None


def expire(job: JobRecord, recorder: ChangeRecorder) -> None:
    """Fail a job that was not started (again) before its deadline."""
    passed = EXPIRES_TOTAL_MESSAGE if job.deliveries else EXPIRES_IN_MESSAGE
    error = ErrorInfo(recorder.now_ms, 0, EXPIRED_CLASS, passed)
    recorder.record_attempt(attempt_record(job, AttemptOutcome.EXPIRED, recorder.now_ms, error=error))
    finish(job, JobState.FAILED, recorder, reason="expired")
    recorder.record_event(job, EventType.FAILED, reason="expired", error_class=EXPIRED_CLASS)


def set_aside(job: JobRecord, recorder: ChangeRecorder) -> None:
    """Fail a job whose record cannot be read. Its payload is the stored record (see ``core.bad_records``)."""
    error = msgspec.structs.replace(job.errors[-1], at_ms=recorder.now_ms)
    job.errors = []
    fail(job, recorder, error, reason=BAD_RECORD)


def lease(job: JobRecord, recorder: ChangeRecorder, *, token: str, worker: str, lease_ms: int) -> None:
    """Start a waiting job: lease it to ``worker``."""
    lease_all([job], [token], recorder, worker=worker, lease_ms=lease_ms)


def lease_all(
    jobs: list[JobRecord], tokens: Iterable[str], recorder: ChangeRecorder, *, worker: str, lease_ms: int
) -> None:
    """``lease`` for jobs of one queue, in this order."""
    now_ms, task, attempts = recorder.now_ms, None, 0
    ids: list[str] = []
    for job, token in zip(jobs, tokens, strict=True):
        job.state = _ACTIVE
        job.token = token
        job.worker = worker
        if job.queue_time is not None:
            forget_stale(job)
        job.started_ms = now_ms
        if job.expires_ms is not None:
            job.expires_ms = later_deadline(job)
        job.deliveries += 1
        if job.progress is not None:
            job.progress = None
        job.lease_until_ms = now_ms + (job.options.lease_ms or lease_ms)
        if job.task != task or job.attempts != attempts:
            task, attempts = job.task, job.attempts
            data: EventData = {"attempt": attempts + 1, "worker": worker}
            ids = recorder.run_of(job.queue, _STARTED, task, data)
        ids.append(job.id)


def later_deadline(job: JobRecord) -> int | None:
    """The deadline after a start: only ``expires_total`` applies from then on.

    A retry by hand or a later add with its unique key may have restarted that time before the first start.
    """
    if job.deliveries or job.expires_ms is None:
        return job.expires_ms
    total_ms = job.options.expires_total_ms
    return None if total_ms is None else max(job.enqueued_ms + total_ms, job.expires_ms)


def holds(job: JobRecord, token: str) -> bool:
    """Whether ``token`` is the job's current lease."""
    return job.state is _ACTIVE and job.token == token


def check_token(job: JobRecord | None, token: str) -> Settled:
    """The answer to a settlement with ``token``. ``ok``: it may be applied."""
    if job is None:
        return Settled.GONE
    if holds(job, token):
        return _OK
    return Settled.ALREADY if job.settled_token == token else Settled.LOST


def drop_lease(job: JobRecord, *, settled: bool = True) -> None:
    """End the lease. ``settled``: the worker settled it, so repeating the settlement answers ``already``."""
    if settled:
        job.settled_token = job.token
    job.token = None
    job.lease_until_ms = None


def finish(job: JobRecord, state: JobState, recorder: ChangeRecorder, reason: str = "") -> None:
    """Move a job to a final state. The caller records the event and the history."""
    if job.token is not None:
        drop_lease(job)
    job.state = state
    # Setting a field takes three times as long as reading it, and most jobs need none of these changes.
    if job.due_ms is not None:
        job.due_ms = None
    if job.expires_ms is not None:
        job.expires_ms = None
    if job.reason != reason:
        job.reason = reason
    job.finished_ms = recorder.now_ms


def fail(job: JobRecord, recorder: ChangeRecorder, error: ErrorInfo, *, reason: str) -> None:
    """Fail a job that no worker settled. A late settlement with its token is answered ``lost``."""
    job.errors = [*job.errors, error][-ERRORS_KEPT:]
    recorder.record_attempt(attempt_record(job, AttemptOutcome.FAILED, recorder.now_ms, error=error))
    drop_lease(job, settled=False)
    finish(job, JobState.FAILED, recorder, reason=reason)
    recorder.record_event(job, EventType.FAILED, reason=reason, **error_data(error))


def error_data(error: ErrorInfo) -> EventData:
    """The fields of an event that describe an error."""
    return {"error_class": error.error_class, "message": error.message[:BRIEF_CHARS]}


def extend(job: JobRecord | None, token: str, lease_ms: int, now_ms: int) -> Extended:
    """Renew a lease. ``lost`` if ``token`` is not the current lease."""
    if job is None or not holds(job, token):
        return Extended.LOST
    job.lease_until_ms = now_ms + lease_ms
    return Extended.OK if job.cancel_reason is None else Extended.CANCELLING
