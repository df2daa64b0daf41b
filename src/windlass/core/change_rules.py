"""Changes of a job by callers: cancel, retry, delay, priority, data, signals, and an add that replaces it.

These are functions on a record without I/O, like those of ``core.transitions``, which they use.
"""

from __future__ import annotations

import msgspec

from windlass.core.bad_records import BAD_RECORD
from windlass.core.job import (
    SIGNALS_KEPT,
    AttemptOutcome,
    ErrorInfo,
    EventType,
    JobRecord,
    NewJob,
    SignalValue,
    attempt_record,
)
from windlass.core.option_values import Keep
from windlass.core.outcome import CancelResult, Changed
from windlass.core.queue_time import QueueTime, count
from windlass.core.states import DUE_LATER, FINISHED, PENDING, JobState
from windlass.core.transitions import (
    KILLED_CLASS,
    ChangeRecorder,
    finish,
    first_deadline,
    first_due,
    holds,
    is_debounced,
    join_line,
    let_in,
    promote,
)
from windlass.errors import ConfigError


def not_taken(job: JobRecord, new: NewJob, *, full: bool) -> tuple[str, ...]:
    """Names of the options of a later add that a pending job with the same unique key cannot take.

    A job that has run before keeps its group, due time and ``expires_in``. No job takes new dependencies, or
    a new group that is ``full``.
    """
    ran, found = job.deliveries > 0, []
    if new.depends_on:
        found.append("depends_on")
    if (ran or full) and new.options.group != job.options.group:
        found.append("group")
    if ran and not is_debounced(new) and (new.run_at_ms is not None or new.delay_ms):
        found.append("delay" if new.run_at_ms is None else "run_at")
    if ran and new.expires_in_ms is not None:
        found.append("expires_in")
    return tuple(found)


def replace(job: JobRecord, new: NewJob, recorder: ChangeRecorder, left: tuple[str, ...]) -> None:
    """Give a pending job the data and options of a later add, except those in ``left`` (see ``not_taken``).

    The job keeps its place in line unless its priority, ``lifo`` or group changes. A suspended job keeps
    waiting for its signal.
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
        join_line(job, recorder)
    _replace_times(job, new, recorder)


def _replace_times(job: JobRecord, new: NewJob, recorder: ChangeRecorder) -> None:
    now_ms, ran = recorder.now_ms, job.deliveries > 0
    job.expires_ms = first_deadline(msgspec.structs.replace(new, expires_in_ms=None) if ran else new, now_ms)
    debounced = is_debounced(new)
    if job.state is JobState.SUSPENDED or (ran and not debounced):
        return
    due_ms = first_due(new, now_ms)
    if debounced or job.due_ms != (due_ms if due_ms > now_ms else None):
        _change_delay(job, due_ms - now_ms, recorder)


def cancel(
    job: JobRecord | None, reason: str, recorder: ChangeRecorder, *, dead: bool = False
) -> CancelResult:
    """Cancel a pending job, or mark an active one as cancelling. ``dead``: a retrying job fails instead."""
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
        recorder.record_attempt(attempt_record(job, AttemptOutcome.FAILED, recorder.now_ms, error=error))
        finish(job, JobState.FAILED, recorder, reason=reason)
        recorder.record_event(job, EventType.FAILED, reason=reason, error_class=KILLED_CLASS)
        return CancelResult.CANCELLED
    recorder.record_attempt(attempt_record(job, AttemptOutcome.CANCELLED, recorder.now_ms))
    finish(job, JobState.CANCELLED, recorder, reason=reason)
    recorder.record_event(job, EventType.CANCELLED, reason=reason)
    return CancelResult.CANCELLED


def remove(job: JobRecord, recorder: ChangeRecorder) -> None:
    """Record the removal of a job. An unfinished job also gets a history record."""
    if job.state not in FINISHED:
        recorder.record_attempt(attempt_record(job, AttemptOutcome.CANCELLED, recorder.now_ms))
    recorder.record_event(job, EventType.REMOVED, state=job.state.value)


def may_run_again(job: JobRecord) -> bool:
    """Whether a caller may retry this finished job."""
    return job.state in FINISHED and job.reason != BAD_RECORD


def retry(job: JobRecord, recorder: ChangeRecorder, *, blocked: bool = False) -> Changed:
    """Requeue a finished job with its attempts reset, or make a retrying job waiting now.

    ``blocked``: the job has open edges and must wait for them again.
    """
    if job.state is JobState.RETRYING:
        promote(job, recorder)
        return Changed.OK
    if not may_run_again(job):
        return Changed.ILLEGAL
    job.state = JobState.BLOCKED if blocked else JobState.WAITING
    job.queue_time = QueueTime(recorder.now_ms) if blocked else None
    job.attempts = job.stalls = job.misses = 0
    job.manual_retries += 1
    job.finished_ms = job.cancel_reason = None
    total_ms = job.options.expires_total_ms
    job.expires_ms = None if total_ms is None else recorder.now_ms + total_ms
    job.result = job.result_until_ms = None
    job.reason = ""
    job.ready_ms = recorder.now_ms
    join_line(job, recorder)
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
    """Change a pending job, or with its token the payload of an active one.

    ``ordered``: the job's group is ordered, so its priority cannot be changed.
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
        join_line(job, recorder)
        recorder.record_event(job, EventType.CHANGED, what="priority", priority=priority)
    return Changed.OK if delay_ms is None else _change_delay(job, delay_ms, recorder)


def _change_delay(job: JobRecord, delay_ms: int, recorder: ChangeRecorder) -> Changed:
    if job.state is JobState.BLOCKED:  # the delay applies once the job is unblocked
        job.due_ms = recorder.now_ms + delay_ms if delay_ms > 0 else None
        recorder.record_event(job, EventType.CHANGED, what="delay")
        return Changed.OK
    if delay_ms <= 0:
        if job.state in DUE_LATER:
            promote(job, recorder)
        return Changed.OK
    count(job, recorder.now_ms)
    if job.state in (JobState.WAITING, JobState.PARKED):
        job.state = JobState.SCHEDULED
    job.due_ms = job.ready_ms = recorder.now_ms + delay_ms
    recorder.record_event(job, EventType.SCHEDULED, run_at_ms=job.due_ms)
    return Changed.OK


def too_many_signals(name: str) -> ConfigError:
    """The error for a signal to a job that has received as many different ones as it can keep."""
    message = f"signal {name!r} was refused: the job already has {SIGNALS_KEPT} different signals, the limit"
    return ConfigError("signal", message=message, got=name)


def signal(job: JobRecord, name: str, data: bytes, codec: str, recorder: ChangeRecorder) -> Changed:
    """Store a signal, replacing an older one of that name. A job that is suspended on it becomes waiting."""
    if job.state in FINISHED:
        return Changed.ILLEGAL
    if name not in job.signals and len(job.signals) >= SIGNALS_KEPT:
        raise too_many_signals(name)
    job.signals = {**job.signals, name: SignalValue(data, codec, recorder.now_ms)}
    if job.state is JobState.SUSPENDED and job.awaits == name:
        promote(job, recorder)
    else:
        recorder.record_event(job, EventType.CHANGED, what="signal")
    return Changed.OK


def refuses_report(job: JobRecord, token: str | None) -> Changed | None:
    """Why progress cannot be reported; None if it can.

    With a token: ``lost`` if it is not the current lease. Without one: ``illegal`` if the job has finished.
    """
    if token is None:
        return Changed.ILLEGAL if job.state in FINISHED else None
    return None if holds(job, token) else Changed.LOST


def progress_text(job: JobRecord) -> str:
    """Progress for the event log: JSON text, or for other codecs only the size."""
    data = job.progress or b""
    return data.decode() if job.result_codec == "json" and len(data) <= 1_000 else f"{len(data)} bytes"


def set_result_ttl(job: JobRecord, ttl_ms: int, recorder: ChangeRecorder) -> Changed:
    """Keep a completed job's result (and its record), or a failed job's record, until ``ttl_ms`` from now.

    The record of a failed job, which has the errors, is removed then, but not before ``GRACE_MS``.
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
