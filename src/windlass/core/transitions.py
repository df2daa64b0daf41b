"""Every change that a job can go through, as a function on its record.

Pure and deterministic: time and fresh places come in with the ``ChangeRecorder``, which also records the
event of each change and the history of each attempt. The engine runs it for all stores but Valkey, whose Lua
is the second writing of these rules: ``docs/internals/decisions.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import methodcaller

import msgspec

from windlass.core.bad_records import BAD_RECORD
from windlass.core.job import (
    ERRORS_KEPT,
    SIGNALS_KEPT,
    AttemptOutcome,
    AttemptRecord,
    ErrorInfo,
    EventType,
    JobRecord,
    NewJob,
    SignalValue,
    attempt_record,
)
from windlass.core.option_values import Keep, UniqueMode
from windlass.core.outcome import AddOutcome, CancelResult, Changed, Extended, Outcome, Settled, Settlement
from windlass.core.retention import result_until
from windlass.core.states import DUE_LATER, FINISHED, PENDING, JobState
from windlass.errors import ConfigError

EventData = dict[str, str | int | None]
NO_DATA: EventData = {}

STALLED_CLASS = "JobStalled"
EXPIRED_CLASS = "JobExpired"
EXPIRES_IN_MESSAGE = "not started before its expires_in passed"
EXPIRES_TOTAL_MESSAGE = "its expires_total passed"
KILLED_CLASS = "JobKilled"
COST_CLASS = "CostExceedsCapacity"
#: The turn of a job that has a new place in line: its store gives it one when it lets it wait.
NO_TURN = -1

# What every job goes through, by a name of this module: members of an enum are slow to find.
_ACTIVE, _COMPLETED = JobState.ACTIVE, JobState.COMPLETED
_ENQUEUED, _STARTED, _DONE = EventType.ENQUEUED, EventType.STARTED, EventType.COMPLETED
_OK, _COMPLETE = Settled.OK, AttemptOutcome.COMPLETED
_NO_IDS: list[str] = []
#: ``copy.copy`` without the search for a way to copy.
copy: Callable[[JobRecord], JobRecord] = methodcaller("__copy__")


class PendingEvent(msgspec.Struct, gc=False):
    """An event before it has its id: of one job, or of several jobs of a task one after the other."""

    queue: str
    type: EventType
    #: "": it is about no job.
    job_ids: list[str]
    task: str = ""
    data: EventData = NO_DATA


class ChangeRecorder:
    """The moment of a change, and what the change writes besides the job itself."""

    __slots__ = ("fresh_place", "history", "now_ms", "pending_events")

    def __init__(self, now_ms: int, fresh_place: Callable[[], int]) -> None:
        self.now_ms: int = now_ms
        self.fresh_place: Callable[[], int] = fresh_place
        self.pending_events: list[PendingEvent] = []
        self.history: list[AttemptRecord] = []

    def record_event(self, job: JobRecord, event: EventType, **data: str | int | None) -> None:
        """Record that ``event`` happened to ``job``."""
        self.note_of(job.queue, event, job.id, job.task, data)

    def note_of(
        self, queue: str, event: EventType, job_id: str = "", task: str = "", data: EventData = NO_DATA
    ) -> None:
        """``record_event`` without a record, or about no job."""
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
    """The record of a job that is added now. ``after_ms``: add time of the job it replaces, if any."""
    return create_all([new], recorder, after_ms=after_ms)[0]


def create_all(news: list[NewJob], recorder: ChangeRecorder, *, after_ms: int = 0) -> list[JobRecord]:
    """``create`` for jobs in this order.

    With ``depends_on`` a job is born blocked: the store then links its edges and reviews them.
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
        # A copy and the rest one by one: that takes half the time of as many names in a call.
        job = copy(model)
        job.errors, job.signals = [], {}
        job.id, job.request_id = new.id, new.request_id
        job.payload, job.codec = new.payload, new.codec
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
    """When a new job is due and until when it may wait."""
    job.expires_ms = first_deadline(new, now_ms)
    due_ms = _first_due(new, now_ms)
    if due_ms > now_ms:
        job.state = JobState.SCHEDULED
        job.due_ms = job.ready_ms = due_ms


def _begin_later(job: JobRecord, recorder: ChangeRecorder, *, blocked: bool) -> None:
    """A new job waits for others, or for its time."""
    if blocked:
        job.state = JobState.BLOCKED
        recorder.record_event(job, EventType.BLOCKED)
    else:
        recorder.record_event(job, EventType.SCHEDULED, run_at_ms=job.due_ms)


def _first_due(new: NewJob, now_ms: int) -> int:
    """When a job that is added now is due."""
    unique = new.options.unique
    if unique is not None and _is_debounced(new):
        return now_ms + (unique.ttl_ms or 0)
    return new.run_at_ms if new.run_at_ms is not None else now_ms + new.delay_ms


def _is_debounced(new: NewJob) -> bool:
    return new.options.unique is not None and new.options.unique.mode is UniqueMode.DEBOUNCE


def first_deadline(new: NewJob, now_ms: int) -> int | None:
    """Until when a job that is added now may wait to be started (None: forever)."""
    first_ms, total_ms = new.expires_in_ms, new.options.expires_total_ms
    if first_ms is None:
        return None if total_ms is None else now_ms + total_ms
    return now_ms + (first_ms if total_ms is None else min(first_ms, total_ms))


def answers_cached(job: JobRecord, now_ms: int) -> bool:
    """Whether adding this id again is answered by the finished job's result."""
    return (
        job.state is JobState.COMPLETED and job.result_until_ms is not None and job.result_until_ms > now_ms
    )


def kept_until(job: JobRecord) -> int:
    """Until when the id answers ``duplicate`` whatever became of the job (0: no such promise)."""
    return 0 if job.options.keep_id_ms is None else job.enqueued_ms + job.options.keep_id_ms


def blocks_id(job: JobRecord, now_ms: int) -> bool:
    """Whether adding this id again is a duplicate."""
    return job.state not in FINISHED or kept_until(job) > now_ms


def new_place(job: JobRecord, recorder: ChangeRecorder) -> int:
    """A place at the back of the line of its priority; for a ``lifo`` job at the very front."""
    place = recorder.fresh_place()
    return -place if job.options.lifo else place


def answer_known(old: JobRecord, new: NewJob, now_ms: int) -> AddOutcome | None:
    """What adding an id that is there answers; None: the old record makes way for the new job.

    ``queued`` means that it is the same request again.
    """
    if new.request_id and new.request_id == old.request_id:
        return AddOutcome.QUEUED
    if blocks_id(old, now_ms):
        return AddOutcome.DUPLICATE
    return AddOutcome.CACHED if answers_cached(old, now_ms) else None


def promote(job: JobRecord, recorder: ChangeRecorder) -> None:
    """A due (or hurried) job becomes waiting, at the back of its priority."""
    job.state = JobState.WAITING
    job.ready_ms = min(job.due_ms, recorder.now_ms) if job.due_ms is not None else recorder.now_ms
    job.due_ms = None
    _join_line(job, recorder)
    recorder.record_event(job, EventType.PROMOTED)


def _join_line(job: JobRecord, recorder: ChangeRecorder) -> None:
    """A new place in line, and with it a new turn."""
    job.place = new_place(job, recorder)
    job.turn = NO_TURN


def park(job: JobRecord, recorder: ChangeRecorder) -> None:
    """A waiting job whose group has no room goes to the group's own line, at its place."""
    job.state = JobState.PARKED
    recorder.record_event(job, EventType.PARKED)


def let_in(job: JobRecord, recorder: ChangeRecorder) -> None:
    """The group of a parked job has room: it waits for its turn."""
    job.state = JobState.WAITING
    job.turn = NO_TURN
    recorder.record_event(job, EventType.PROMOTED)


def refuse_cost(job: JobRecord, recorder: ChangeRecorder) -> None:
    """End a job that costs more than its group's bucket can ever hold."""
    message = f"its cost of {job.options.cost} is more than the bucket of group '{job.options.group}' holds"
    error = ErrorInfo(recorder.now_ms, 0, COST_CLASS, message, "", COST_CLASS)
    job.errors = [*job.errors, error][-ERRORS_KEPT:]
    recorder.history.append(attempt_record(job, AttemptOutcome.FAILED, recorder.now_ms, error=error))
    finish(job, JobState.FAILED, recorder, reason="cost_exceeds_capacity")
    recorder.record_event(
        job, EventType.FAILED, reason="cost_exceeds_capacity", error_class=COST_CLASS, message=message
    )


def not_taken(job: JobRecord, new: NewJob, *, full: bool) -> tuple[str, ...]:
    """What a pending job will not take of a later add: what it has used already, because it ran.

    It takes no new dependencies, and not the group of the later add if that is ``full``.
    """
    ran, found = job.deliveries > 0, []
    if new.depends_on:
        found.append("depends_on")
    if (ran or full) and new.options.group != job.options.group:
        found.append("group")
    if ran and not _is_debounced(new) and (new.run_at_ms is not None or new.delay_ms):
        found.append("delay" if new.run_at_ms is None else "run_at")
    if ran and new.expires_in_ms is not None:
        found.append("expires_in")
    return tuple(found)


def replace(job: JobRecord, new: NewJob, recorder: ChangeRecorder, left: tuple[str, ...]) -> None:
    """A pending job takes all that a later add says, but what is ``left`` (see ``not_taken``).

    It keeps its place in line, unless priority, ``lifo`` or group are others now. One that is suspended goes
    on waiting for its signal.
    """
    before, options = job.options, new.options
    if "group" in left:
        options = msgspec.structs.replace(options, group=before.group, cost=before.cost)
    moves = options.group != before.group
    joins = moves or (new.priority, options.lifo) != (job.priority, before.lifo)
    job.task, job.payload, job.codec = new.task, new.payload, new.codec
    job.options, job.priority = options, new.priority
    recorder.record_event(job, EventType.CHANGED, what="replaced")
    if moves and job.state is JobState.PARKED:
        let_in(job, recorder)  # the new group decides
    if joins:
        _join_line(job, recorder)
    _replace_times(job, new, recorder)


def _replace_times(job: JobRecord, new: NewJob, recorder: ChangeRecorder) -> None:
    now_ms, ran = recorder.now_ms, job.deliveries > 0
    job.expires_ms = first_deadline(msgspec.structs.replace(new, expires_in_ms=None) if ran else new, now_ms)
    debounced = _is_debounced(new)
    if job.state is JobState.SUSPENDED or (ran and not debounced):
        return
    due_ms = _first_due(new, now_ms)
    if debounced or job.due_ms != (due_ms if due_ms > now_ms else None):
        _change_delay(job, due_ms - now_ms, recorder)


def is_expired(job: JobRecord, now_ms: int) -> bool:
    """Whether a job is past its time: its ``expires_in`` if it never ran, its ``expires_total`` if it did.

    Records of earlier releases keep the time of ``expires_in`` after they ran; it means nothing then.
    """
    if job.expires_ms is None or job.expires_ms > now_ms or job.state not in PENDING:
        return False
    return job.deliveries == 0 or job.options.expires_total_ms is not None


def expire(job: JobRecord, recorder: ChangeRecorder) -> None:
    """End a job that was not started (again) in time."""
    passed = EXPIRES_TOTAL_MESSAGE if job.deliveries else EXPIRES_IN_MESSAGE
    error = ErrorInfo(recorder.now_ms, 0, EXPIRED_CLASS, passed)
    recorder.history.append(attempt_record(job, AttemptOutcome.EXPIRED, recorder.now_ms, error=error))
    finish(job, JobState.FAILED, recorder, reason="expired")
    recorder.record_event(job, EventType.FAILED, reason="expired", error_class=EXPIRED_CLASS)


def set_aside(job: JobRecord, recorder: ChangeRecorder) -> None:
    """End a job whose record cannot be read (see ``core.bad_records``); what is left of it is its payload."""
    error = msgspec.structs.replace(job.errors[-1], at_ms=recorder.now_ms)
    job.errors = [error]
    recorder.history.append(attempt_record(job, AttemptOutcome.FAILED, recorder.now_ms, error=error))
    _drop_lease(job, settled=False)  # no worker settled anything: a late settlement is lost
    finish(job, JobState.FAILED, recorder, reason=BAD_RECORD)
    recorder.record_event(
        job, EventType.FAILED, reason=BAD_RECORD, error_class=error.error_class, message=error.message
    )


def lease(job: JobRecord, recorder: ChangeRecorder, *, token: str, worker: str, lease_ms: int) -> None:
    """A waiting job starts: it belongs to ``worker`` until the lease runs out."""
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
        job.started_ms = now_ms
        if job.expires_ms is not None:
            job.expires_ms = later_deadline(job)
        job.deliveries += 1
        job.progress = None
        job.lease_until_ms = now_ms + (job.options.lease_ms or lease_ms)
        if job.task != task or job.attempts != attempts:
            task, attempts = job.task, job.attempts
            data: EventData = {"attempt": attempts + 1, "worker": worker}
            ids = recorder.run_of(job.queue, _STARTED, task, data)
        ids.append(job.id)


def later_deadline(job: JobRecord) -> int | None:
    """What is left of the deadline of a job that is about to start: ``expires_in`` has served."""
    if job.deliveries or job.expires_ms is None:
        return job.expires_ms
    total_ms = job.options.expires_total_ms
    return None if total_ms is None else job.enqueued_ms + total_ms


def holds(job: JobRecord, token: str) -> bool:
    """Whether ``token`` is the job's newest lease."""
    return job.state is _ACTIVE and job.token == token


def check_token(job: JobRecord | None, token: str) -> Settled:
    """What a settlement under ``token`` is answered."""
    if job is None:
        return Settled.GONE
    if holds(job, token):
        return _OK
    return Settled.ALREADY if job.settled_token == token else Settled.LOST


def settle(job: JobRecord, end: Settlement, recorder: ChangeRecorder) -> None:
    """End the attempt of an active job. The caller checked the token."""
    outcome = end.outcome
    if end.filled is not None:
        job.options = end.filled.over(job.options)
    if job.cancel_reason is not None and outcome not in (Outcome.COMPLETE, Outcome.FAIL):
        outcome = Outcome.CANCEL
    _ENDS[outcome](job, end, recorder)


def _record(
    job: JobRecord,
    outcome: AttemptOutcome,
    end: Settlement,
    recorder: ChangeRecorder,
    error: ErrorInfo | None = None,
) -> None:
    recorder.history.append(
        attempt_record(
            job, outcome, recorder.now_ms, duration_ms=end.duration_ms, error=error, facts=end.facts
        )
    )


def _complete(job: JobRecord, end: Settlement, recorder: ChangeRecorder) -> None:
    complete_all([(job, end)], recorder)


def complete_all(ended: Iterable[tuple[JobRecord, Settlement]], recorder: ChangeRecorder) -> None:
    """Jobs complete, each by its settlement, in this order. The caller checked the tokens."""
    now_ms, history = recorder.now_ms, recorder.history
    queue, task, options, until_ms = None, None, None, 0
    ids: list[str] = []
    for job, end in ended:
        history.append(attempt_record(job, _COMPLETE, now_ms, duration_ms=end.duration_ms, facts=end.facts))
        if job.options is not options:
            options = job.options
            until_ms = result_until(options, now_ms)
        job.result, job.result_until_ms = end.result, until_ms
        finish(job, _COMPLETED, recorder)
        if job.task != task or job.queue != queue:
            queue, task = job.queue, job.task
            ids = recorder.run_of(queue, _DONE, task)
        ids.append(job.id)


def _fail(job: JobRecord, end: Settlement, recorder: ChangeRecorder) -> None:
    error = _keep_error(job, end, recorder)
    _record(job, AttemptOutcome.FAILED, end, recorder, end.error or error)
    job.attempts += end.uses_attempt
    finish(job, JobState.FAILED, recorder, reason=end.reason)
    recorder.record_event(
        job, EventType.FAILED, reason=end.reason, error_class=error.error_class, message=error.message[:500]
    )


def _retry(job: JobRecord, end: Settlement, recorder: ChangeRecorder) -> None:
    error = _keep_error(job, end, recorder)
    _record(job, AttemptOutcome.RETRYING, end, recorder, end.error or error)
    job.attempts += 1
    _put_back(job, JobState.RETRYING, end.delay_ms, recorder)
    recorder.record_event(
        job,
        EventType.RETRYING,
        attempt=job.attempts,
        error_class=error.error_class,
        message=error.message[:500],
        run_at_ms=job.due_ms,
    )


def _snooze(job: JobRecord, end: Settlement, recorder: ChangeRecorder) -> None:
    _record(job, AttemptOutcome.SNOOZED, end, recorder)
    _put_back(job, JobState.SCHEDULED, end.delay_ms, recorder)
    if job.due_ms is None:
        recorder.record_event(job, EventType.RELEASED, reason=end.reason or "snoozed")
    else:
        recorder.record_event(job, EventType.SCHEDULED, reason=end.reason or "snoozed", run_at_ms=job.due_ms)


def _release(job: JobRecord, end: Settlement, recorder: ChangeRecorder) -> None:
    _record(job, AttemptOutcome.RELEASED, end, recorder)
    job.misses += end.miss
    place, turn, ready_ms = job.place, job.turn, job.ready_ms
    _put_back(job, JobState.SCHEDULED, end.delay_ms, recorder)
    if job.due_ms is None:
        job.place, job.turn, job.ready_ms = place, turn, ready_ms
    recorder.record_event(job, EventType.RELEASED, reason=end.reason, run_at_ms=job.due_ms)


def _cancel(job: JobRecord, end: Settlement, recorder: ChangeRecorder) -> None:
    reason = end.reason if job.cancel_reason is None else job.cancel_reason
    _record(job, AttemptOutcome.CANCELLED, end, recorder)
    finish(job, JobState.CANCELLED, recorder, reason=reason)
    recorder.record_event(job, EventType.CANCELLED, reason=reason)


def _wait(job: JobRecord, end: Settlement, recorder: ChangeRecorder) -> None:
    """Blocked for now; the store reviews its edges at once (``core.flow_rules.review``)."""
    _record(job, AttemptOutcome.SNOOZED, end, recorder)
    _drop_lease(job)
    job.state = JobState.BLOCKED
    recorder.record_event(job, EventType.BLOCKED)


def _suspend(job: JobRecord, end: Settlement, recorder: ChangeRecorder) -> None:
    _record(job, AttemptOutcome.SNOOZED, end, recorder)
    job.awaits = end.signal
    if end.signal in job.signals:
        _put_back(job, JobState.WAITING, 0, recorder)
        recorder.record_event(job, EventType.RELEASED, reason="signalled")
        return
    _drop_lease(job)
    job.state = JobState.SUSPENDED
    job.due_ms = recorder.now_ms + end.delay_ms if end.delay_ms > 0 else None
    recorder.record_event(job, EventType.SUSPENDED, reason=end.signal, run_at_ms=job.due_ms)


_ENDS: dict[Outcome, Callable[[JobRecord, Settlement, ChangeRecorder], None]] = {
    Outcome.COMPLETE: _complete,
    Outcome.FAIL: _fail,
    Outcome.RETRY: _retry,
    Outcome.SNOOZE: _snooze,
    Outcome.RELEASE: _release,
    Outcome.CANCEL: _cancel,
    Outcome.WAIT: _wait,
    Outcome.SUSPEND: _suspend,
}


def _keep_error(job: JobRecord, end: Settlement, recorder: ChangeRecorder) -> ErrorInfo:
    given = end.error or ErrorInfo()
    error = ErrorInfo(
        recorder.now_ms,
        job.attempts + 1,
        given.error_class,
        given.message,
        given.traceback,
        given.fingerprint,
    )
    job.errors = [*job.errors, error][-ERRORS_KEPT:]
    return error


def _drop_lease(job: JobRecord, *, settled: bool = True) -> None:
    if settled:
        job.settled_token = job.token
    job.token = None
    job.lease_until_ms = None


def finish(job: JobRecord, state: JobState, recorder: ChangeRecorder, reason: str = "") -> None:
    """The part that every end has. The caller writes the event and the history."""
    if job.token is not None:
        _drop_lease(job)
    job.state = state
    job.due_ms = job.expires_ms = None
    job.finished_ms = recorder.now_ms
    job.reason = reason


def _put_back(job: JobRecord, state: JobState, delay_ms: int, recorder: ChangeRecorder) -> None:
    _drop_lease(job)
    if delay_ms > 0:
        job.state = state
        job.due_ms = job.ready_ms = recorder.now_ms + delay_ms
    else:
        job.state = JobState.WAITING
        job.ready_ms = recorder.now_ms
        _join_line(job, recorder)


def extend(job: JobRecord | None, token: str, lease_ms: int, now_ms: int) -> Extended:
    """Renew a lease; only the newest token may."""
    if job is None or not holds(job, token):
        return Extended.LOST
    job.lease_until_ms = now_ms + lease_ms
    return Extended.OK if job.cancel_reason is None else Extended.CANCELLING


def give_back(job: JobRecord, recorder: ChangeRecorder) -> None:
    """Release a lease that its worker does not know of: old place, nothing counted but the delivery.

    No worker settled anything: a late settlement under that token is lost.
    """
    settled_before = job.settled_token
    release = Settlement(
        queue=job.queue, id=job.id, token=job.token or "", outcome=Outcome.RELEASE, reason="reconciled"
    )
    settle(job, release, recorder)
    job.settled_token = settled_before


def recover(job: JobRecord, recorder: ChangeRecorder) -> bool:
    """Take back an expired lease; False when the job has now failed because that happened too often.

    It keeps its place in line, unless it has to rest first (option ``stall_delay``).
    """
    worker = job.worker
    job.stalls += 1
    if job.cancel_reason is not None:
        recorder.history.append(attempt_record(job, AttemptOutcome.CANCELLED, recorder.now_ms))
        _drop_lease(job, settled=False)
        finish(job, JobState.CANCELLED, recorder, reason=job.cancel_reason)
        recorder.record_event(job, EventType.CANCELLED, reason=job.reason)
        return True
    if job.stalls > job.options.max_stalls:
        return _fail_stalled(job, recorder, worker)
    recorder.history.append(attempt_record(job, AttemptOutcome.STALLED, recorder.now_ms))
    _drop_lease(job, settled=False)
    job.state = JobState.WAITING
    if job.options.stall_delay_ms > 0:
        job.state = JobState.RETRYING
        job.due_ms = job.ready_ms = recorder.now_ms + job.options.stall_delay_ms
    recorder.record_event(job, EventType.STALLED, worker=worker, stalls=job.stalls, run_at_ms=job.due_ms)
    return True


def _fail_stalled(job: JobRecord, recorder: ChangeRecorder, worker: str | None) -> bool:
    message = f"the worker went silent {job.stalls} times, last {worker}"
    error = ErrorInfo(recorder.now_ms, job.attempts + 1, STALLED_CLASS, message, "", STALLED_CLASS)
    job.errors = [*job.errors, error][-ERRORS_KEPT:]
    recorder.history.append(attempt_record(job, AttemptOutcome.FAILED, recorder.now_ms, error=error))
    _drop_lease(job, settled=False)  # the silent worker settled nothing: its late answer is lost
    finish(job, JobState.FAILED, recorder, reason="stalled")
    recorder.record_event(job, EventType.FAILED, reason="stalled", error_class=STALLED_CLASS, message=message)
    return False


def apply_report(
    job: JobRecord,
    recorder: ChangeRecorder,
    *,
    state: JobState,
    at_ms: int,
    attempts: int | None = None,
    error: ErrorInfo | None = None,
) -> None:
    """Another program ran the job (or scheduled it) and says what is next; it reports attempts by itself.

    ``at_ms``: when the job ended, or is due.
    """
    _drop_lease(job, settled=False)
    job.attempts = job.attempts if attempts is None else attempts
    if error is not None:
        job.errors = [*job.errors, error][-ERRORS_KEPT:]
    if state is JobState.COMPLETED:
        finish(job, state, recorder)
        recorder.record_event(job, EventType.COMPLETED)
    elif state is JobState.FAILED:
        finish(job, state, recorder, reason="attempts")
        job.finished_ms = at_ms
        recorder.record_event(
            job, EventType.FAILED, reason="attempts", error_class=error.error_class if error else ""
        )
    else:
        job.state = state
        job.due_ms = job.ready_ms = at_ms
        if state is JobState.RETRYING:
            recorder.record_event(job, EventType.RETRYING, attempt=job.attempts, run_at_ms=at_ms)
        else:
            recorder.record_event(job, EventType.SCHEDULED, run_at_ms=at_ms)


def cancel(
    job: JobRecord | None, reason: str, recorder: ChangeRecorder, *, dead: bool = False
) -> CancelResult:
    """Cancel a pending job now, ask the worker of an active one. ``dead``: a retrying one has failed."""
    if job is None:
        return CancelResult.NOT_FOUND
    if job.state in FINISHED:
        return CancelResult.FINISHED
    if job.state is JobState.ACTIVE:
        if job.cancel_reason is None:
            job.cancel_reason = reason
            recorder.record_event(job, EventType.CANCELLING, reason=reason)
        return CancelResult.CANCELLING
    if dead and job.state is JobState.RETRYING:
        error = ErrorInfo(recorder.now_ms, 0, KILLED_CLASS)
        recorder.history.append(attempt_record(job, AttemptOutcome.FAILED, recorder.now_ms, error=error))
        finish(job, JobState.FAILED, recorder, reason=reason)
        recorder.record_event(job, EventType.FAILED, reason=reason, error_class=KILLED_CLASS)
        return CancelResult.CANCELLED
    recorder.history.append(attempt_record(job, AttemptOutcome.CANCELLED, recorder.now_ms))
    finish(job, JobState.CANCELLED, recorder, reason=reason)
    recorder.record_event(job, EventType.CANCELLED, reason=reason)
    return CancelResult.CANCELLED


def remove(job: JobRecord, recorder: ChangeRecorder) -> None:
    """Record that a record goes; one that had not finished leaves its end in history."""
    if job.state not in FINISHED:
        recorder.history.append(attempt_record(job, AttemptOutcome.CANCELLED, recorder.now_ms))
    recorder.record_event(job, EventType.REMOVED, state=job.state.value)


def may_run_again(job: JobRecord) -> bool:
    """Whether a retry by hand puts this finished job back."""
    return job.state in FINISHED and job.reason != BAD_RECORD


def retry(job: JobRecord, recorder: ChangeRecorder, *, blocked: bool = False) -> Changed:
    """Put a finished job back with a fresh budget; hurry a retrying one. ``blocked``: it has open edges."""
    if job.state is JobState.RETRYING:
        promote(job, recorder)
        return Changed.OK
    if not may_run_again(job):
        return Changed.ILLEGAL
    job.state = JobState.BLOCKED if blocked else JobState.WAITING
    job.attempts = job.stalls = job.misses = 0
    job.manual_retries += 1
    job.finished_ms = job.cancel_reason = None
    total_ms = job.options.expires_total_ms
    job.expires_ms = None if total_ms is None else recorder.now_ms + total_ms
    job.result = job.result_until_ms = None
    job.reason = ""
    job.ready_ms = recorder.now_ms
    _join_line(job, recorder)
    recorder.record_event(job, EventType.BLOCKED if blocked else EventType.ENQUEUED, reason="retried")
    return Changed.OK


def change(
    job: JobRecord,
    recorder: ChangeRecorder,
    *,
    token: str | None,
    priority: int | None,
    delay_ms: int | None,
    payload: bytes | None,
    ordered: bool = False,
) -> Changed:
    """Change a pending job, or (payload only, with its token) an active one.

    ``ordered``: its group is, so that its priority cannot be changed.
    """
    if token is not None:
        if not holds(job, token):
            return Changed.LOST
        if priority is not None or delay_ms is not None:
            return Changed.ILLEGAL
    elif job.state not in PENDING or (delay_ms is not None and job.state is JobState.SUSPENDED):
        return Changed.ILLEGAL
    if ordered and priority is not None and priority != job.priority:
        return Changed.ORDERED
    if payload is not None:
        job.payload = payload
        recorder.record_event(job, EventType.CHANGED, what="data")
    if priority is not None and priority != job.priority:
        job.priority = priority
        _join_line(job, recorder)
        recorder.record_event(job, EventType.CHANGED, what="priority", priority=priority)
    return Changed.OK if delay_ms is None else _change_delay(job, delay_ms, recorder)


def _change_delay(job: JobRecord, delay_ms: int, recorder: ChangeRecorder) -> Changed:
    if job.state is JobState.BLOCKED:  # counts once nothing else holds it
        job.due_ms = recorder.now_ms + delay_ms if delay_ms > 0 else None
        recorder.record_event(job, EventType.CHANGED, what="delay")
        return Changed.OK
    if delay_ms <= 0:
        if job.state in DUE_LATER:
            promote(job, recorder)
        return Changed.OK
    if job.state in (JobState.WAITING, JobState.PARKED):
        job.state = JobState.SCHEDULED
    job.due_ms = job.ready_ms = recorder.now_ms + delay_ms
    recorder.record_event(job, EventType.SCHEDULED, run_at_ms=job.due_ms)
    return Changed.OK


def signal(job: JobRecord, name: str, data: bytes, codec: str, recorder: ChangeRecorder) -> Changed:
    """Keep a signal with the job; one that is suspended on it becomes waiting. The newest of a name stays."""
    if job.state in FINISHED:
        return Changed.ILLEGAL
    if name not in job.signals and len(job.signals) >= SIGNALS_KEPT:
        raise ConfigError("signal", f"one of at most {SIGNALS_KEPT} names per job", name)
    job.signals = {**job.signals, name: SignalValue(data, codec, recorder.now_ms)}
    if job.state is JobState.SUSPENDED and job.awaits == name:
        promote(job, recorder)
    else:
        recorder.record_event(job, EventType.CHANGED, what="signal")
    return Changed.OK


def refuses_report(job: JobRecord, token: str | None) -> Changed | None:
    """Why progress may not be reported under ``token``; without one, of a job that has ended."""
    if token is None:
        return Changed.ILLEGAL if job.state in FINISHED else None
    return None if holds(job, token) else Changed.LOST


def progress_text(job: JobRecord) -> str:
    """Progress for the event log: JSON as it is, other codecs as a note of their size."""
    data = job.progress or b""
    return data.decode() if job.result_codec == "json" and len(data) <= 1_000 else f"{len(data)} bytes"


def set_result_ttl(job: JobRecord, ttl_ms: int, recorder: ChangeRecorder) -> Changed:
    """Keep a completed job's result (and its record), or a failed job's errors, until ``ttl_ms`` from now.

    Errors are the record itself: it is not kept longer than that, and for ``GRACE_MS`` at least.
    """
    if job.state not in (JobState.COMPLETED, JobState.FAILED) or job.finished_ms is None:
        return Changed.ILLEGAL
    until_ms = recorder.now_ms + ttl_ms
    kept_ms = until_ms - job.finished_ms
    options = msgspec.structs.replace(job.options, result_ttl_ms=kept_ms)
    if job.state is JobState.COMPLETED:
        job.result_until_ms = until_ms
    else:
        options = msgspec.structs.replace(options, keep_failed=Keep(kept_ms, options.keep_failed.count))
    job.options = options
    return Changed.OK
