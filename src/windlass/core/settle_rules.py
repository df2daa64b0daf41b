"""How an attempt ends: by its settlement, because its lease is taken back, or as another program reports it.

These are functions on a record without I/O, like those of ``core.transitions``, which they use.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from windlass.core.job import (
    ERRORS_KEPT,
    AttemptOutcome,
    ErrorInfo,
    EventType,
    JobRecord,
    OwnFields,
    attempt_record,
    runs_alike,
)
from windlass.core.outcome import Outcome, Settlement
from windlass.core.queue_time import QueueTime
from windlass.core.retention import result_until
from windlass.core.states import JobState
from windlass.core.transitions import (
    STALLED_CLASS,
    ChangeRecorder,
    drop_lease,
    error_data,
    fail,
    finish,
    join_line,
)

# Module names for members that every job needs, because looking up a member of an enum is slow.
_COMPLETED, _DONE, _COMPLETE = JobState.COMPLETED, EventType.COMPLETED, AttemptOutcome.COMPLETED


def settle(job: JobRecord, end: Settlement, recorder: ChangeRecorder) -> None:
    """End the attempt of an active job. The caller has checked the token."""
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
    recorder.record_attempt(
        attempt_record(
            job, outcome, recorder.now_ms, duration_ms=end.duration_ms, error=error, facts=end.facts
        )
    )


def _complete(job: JobRecord, end: Settlement, recorder: ChangeRecorder) -> None:
    complete_all([job], [end], recorder)


def complete_all(jobs: list[JobRecord], ends: list[Settlement], recorder: ChangeRecorder) -> None:
    """Complete jobs, each with its settlement, in this order. The caller has checked the tokens."""
    now_ms, before, facts = recorder.now_ms, None, None
    queue, task, options, until_ms = None, None, None, 0
    ids: list[str] = []
    alike: list[OwnFields] = []
    for job, end in zip(jobs, ends, strict=True):
        if before is not None and end.facts is facts and runs_alike(job, before):
            alike.append((job.token or "", job.id, job.enqueued_ms, job.ready_ms, end.duration_ms))
        else:
            before, facts = job, end.facts
            alike = recorder.record_attempt(
                attempt_record(job, _COMPLETE, now_ms, end.duration_ms, None, facts)
            )
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
    recorder.record_event(job, EventType.FAILED, reason=end.reason, **error_data(error))


def _retry(job: JobRecord, end: Settlement, recorder: ChangeRecorder) -> None:
    error = _keep_error(job, end, recorder)
    _record(job, AttemptOutcome.RETRYING, end, recorder, end.error or error)
    job.attempts += 1
    _put_back(job, JobState.RETRYING, end.delay_ms, recorder)
    data = error_data(error)
    recorder.record_event(job, EventType.RETRYING, attempt=job.attempts, **data, run_at_ms=job.due_ms)


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
        job.queue_time = QueueTime(recorder.now_ms)
    recorder.record_event(job, EventType.RELEASED, reason=end.reason, run_at_ms=job.due_ms)


def _cancel(job: JobRecord, end: Settlement, recorder: ChangeRecorder) -> None:
    reason = end.reason if job.cancel_reason is None else job.cancel_reason
    _record(job, AttemptOutcome.CANCELLED, end, recorder)
    finish(job, JobState.CANCELLED, recorder, reason=reason)
    recorder.record_event(job, EventType.CANCELLED, reason=reason)


def _wait(job: JobRecord, end: Settlement, recorder: ChangeRecorder) -> None:
    """Block the job. The caller reviews its edges at once (``core.flow_rules.review``)."""
    _record(job, AttemptOutcome.SNOOZED, end, recorder)
    drop_lease(job)
    job.state, job.queue_time = JobState.BLOCKED, QueueTime(recorder.now_ms)
    recorder.record_event(job, EventType.BLOCKED)


def _suspend(job: JobRecord, end: Settlement, recorder: ChangeRecorder) -> None:
    _record(job, AttemptOutcome.SNOOZED, end, recorder)
    job.awaits = end.signal
    if end.signal in job.signals:
        _put_back(job, JobState.WAITING, 0, recorder)
        recorder.record_event(job, EventType.RELEASED, reason="signalled")
        return
    drop_lease(job)
    job.state, job.queue_time = JobState.SUSPENDED, QueueTime(recorder.now_ms)
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
    # ``brief`` is only for the history: the job keeps the whole message.
    error = replace(given, at_ms=recorder.now_ms, attempt=job.attempts + 1, brief=None)
    job.errors = [*job.errors, error][-ERRORS_KEPT:]
    return error


def _put_back(job: JobRecord, state: JobState, delay_ms: int, recorder: ChangeRecorder) -> None:
    drop_lease(job)
    if delay_ms > 0:
        job.state, job.queue_time = state, QueueTime(recorder.now_ms)
        job.due_ms = job.ready_ms = recorder.now_ms + delay_ms
    else:
        job.state, job.queue_time = JobState.WAITING, None
        job.ready_ms = recorder.now_ms
        join_line(job, recorder)


def give_back(job: JobRecord, recorder: ChangeRecorder) -> None:
    """Release a lease that its worker does not know. The job keeps its place, and no attempt is counted.

    No worker settled the attempt, so a late settlement with that token is answered ``lost``.
    """
    settled_before = job.settled_token
    release = Settlement(
        queue=job.queue, id=job.id, token=job.token or "", outcome=Outcome.RELEASE, reason="reconciled"
    )
    settle(job, release, recorder)
    job.settled_token = settled_before


def recover(job: JobRecord, recorder: ChangeRecorder) -> bool:
    """Take back an expired lease. False if the job has failed, because this happened too often.

    The job keeps its place in line, unless the option ``stall_delay`` delays it.
    """
    worker = job.worker
    job.stalls += 1
    if job.cancel_reason is not None:
        recorder.record_attempt(attempt_record(job, AttemptOutcome.CANCELLED, recorder.now_ms))
        drop_lease(job, settled=False)
        finish(job, JobState.CANCELLED, recorder, reason=job.cancel_reason)
        recorder.record_event(job, EventType.CANCELLED, reason=job.reason)
        return True
    if job.stalls > job.options.max_stalls:
        return _fail_stalled(job, recorder, worker)
    recorder.record_attempt(attempt_record(job, AttemptOutcome.STALLED, recorder.now_ms))
    drop_lease(job, settled=False)
    job.state, job.queue_time = JobState.WAITING, QueueTime(recorder.now_ms)
    if job.options.stall_delay_ms > 0:
        job.state = JobState.RETRYING
        job.due_ms = job.ready_ms = recorder.now_ms + job.options.stall_delay_ms
    recorder.record_event(job, EventType.STALLED, worker=worker, stalls=job.stalls, run_at_ms=job.due_ms)
    return True


def _fail_stalled(job: JobRecord, recorder: ChangeRecorder, worker: str | None) -> bool:
    message = f"the worker went silent {job.stalls} times, last {worker}"
    error = ErrorInfo(recorder.now_ms, job.attempts + 1, STALLED_CLASS, message, "", STALLED_CLASS)
    fail(job, recorder, error, reason="stalled")
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
    """Apply what another program reports about a job that it ran or scheduled.

    ``at_ms``: when the job ended or is due. ``attempts``: the number that the other program counted.
    """
    drop_lease(job, settled=False)
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
        job.state, job.queue_time = state, QueueTime(recorder.now_ms)
        job.due_ms = job.ready_ms = at_ms
        if state is JobState.RETRYING:
            recorder.record_event(job, EventType.RETRYING, attempt=job.attempts, run_at_ms=at_ms)
        else:
            recorder.record_event(job, EventType.SCHEDULED, run_at_ms=at_ms)
