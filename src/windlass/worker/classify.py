"""Turn a handler's outcome into a settlement, with the delay of a retry. Pure except for the random jitter.

Errors are application code: their text, class, attributes and chain may contain or raise anything. Their
texts are cleaned and truncated here, once. An error while classifying counts as a failed attempt.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import random
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from windlass.core.backoff import MAX_DELAY_MS, BackoffStrategy, backoff_ms, default_ms
from windlass.core.job import ErrorInfo, JobRecord, error_info
from windlass.core.outcome import Outcome, Settlement
from windlass.core.text import clean_text, printable
from windlass.core.tracebacks import format_error, name_of
from windlass.errors import (
    Cancel,
    JobFailedError,
    JobSignal,
    MaxRetriesError,
    RateLimitError,
    RemoteError,
    ResultError,
    Retry,
    Snooze,
    Suspend,
    UnrecoverableError,
    UnsupportedByBackendError,
    WaitForChildren,
)
from windlass.jobs.job import Job

#: A job whose task this worker does not know is released once after each of these delays before it fails: a
#: rolling deploy sends new task names to old workers.
UNKNOWN_TASK_DELAYS_MS = (5_000, 30_000, 120_000, 600_000)
#: Leading frames in these directories are left out of tracebacks: Windlass, asyncio and threads.
_MACHINERY = (
    f"{Path(__file__).resolve().parents[1]}{os.sep}",  # the separator excludes ``windlass_x``
    *(str(Path(str(module.__file__)).resolve().parent) for module in (asyncio, concurrent.futures)),
)


def end(
    job: JobRecord,
    outcome: Outcome,
    *,
    error: ErrorInfo | None = None,
    reason: object = "",
    delay_ms: int = 0,
    hold_ms: int = 0,
    signal: str = "",
    uses_attempt: bool = True,
    miss: bool = False,
) -> Settlement:
    """Build a settlement of ``job``'s current attempt, with texts and numbers that every store accepts."""
    return Settlement(
        queue=job.queue,
        id=job.id,
        token=job.token or "",
        outcome=outcome,
        error=error,
        reason=clean_text(reason),
        delay_ms=_bounded(delay_ms),
        hold_ms=_bounded(hold_ms),
        signal=clean_text(signal),
        uses_attempt=uses_attempt,
        miss=miss,
    )


def _bounded(ms: int) -> int:
    return min(max(int(ms), 0), MAX_DELAY_MS)


def classify(
    job: JobRecord,
    error: BaseException,
    *,
    discarded: bool = False,
    strategies: Mapping[str, BackoffStrategy] | None = None,
    rng: random.Random,
) -> Settlement:
    """Return the settlement of an attempt that raised ``error``. Never raises."""
    try:
        if issubclass(type(error), WaitForChildren):
            return _waits(job, error, strategies or {}, rng)
        return _signalled(job, error) or _failed(job, error, discarded, strategies or {}, rng)
    except BaseException as fault:  # the error's own code raised: count the attempt as failed
        return broken(job, error, fault)


def broken(job: JobRecord, error: BaseException, fault: BaseException | None = None) -> Settlement:
    """Return the settlement of an attempt that could not be classified because of ``fault``.

    The job is retried with the default backoff while attempts are left. ``error``, which the handler raised,
    is kept. No application code is called except to format its message.
    """
    info = describe(error, job.options.backtrace)
    if fault is not None and fault is not error:
        note = f"{info.traceback}\nClassifying this error failed: {name_of(fault)}: {clean_text(fault)}"
        info = error_info(info.error_class, info.message, note.lstrip())
    failures = job.attempts + 1
    if failures >= job.options.max_attempts:
        return end(job, Outcome.FAIL, error=info, reason="attempts")
    return end(job, Outcome.RETRY, error=info, delay_ms=default_ms(failures))


def _signalled(job: JobRecord, error: BaseException) -> Settlement | None:
    """Return the settlement for a ``JobSignal``; None for other errors.

    ``type(error)`` decides, because an application can override ``__class__``.
    """
    kind = type(error)
    if not issubclass(kind, JobSignal):
        return None
    assert isinstance(error, JobSignal)
    if isinstance(error, RateLimitError):
        return _rate_limited(job, error.delay_ms)
    if isinstance(error, Snooze):
        return end(job, Outcome.SNOOZE, delay_ms=error.delay_ms, reason="snoozed")
    if isinstance(error, Cancel):
        return end(job, Outcome.CANCEL, reason="" if error.reason is None else error.reason)
    if isinstance(error, Suspend):
        return end(job, Outcome.SUSPEND, signal=error.signal, delay_ms=error.delay_ms)
    return None


def _waits(
    job: JobRecord, error: BaseException, strategies: Mapping[str, BackoffStrategy], rng: random.Random
) -> Settlement:
    """Block the job until its children have ended. The delay applies if it has no children."""
    failures = job.attempts + 1
    if failures >= job.options.max_attempts:
        return end(job, Outcome.WAIT, reason="attempts")
    delay_ms = backoff_ms(job.options.backoff, failures, error, strategies, rng)
    return end(job, Outcome.WAIT, delay_ms=delay_ms or 0)


def _failed(
    job: JobRecord,
    error: BaseException,
    discarded: bool,
    strategies: Mapping[str, BackoffStrategy],
    rng: random.Random,
) -> Settlement:
    kind = type(error)
    info = describe(error, job.options.backtrace)
    if issubclass(kind, ResultError):
        return end(job, Outcome.FAIL, error=info, reason="result")
    if issubclass(kind, (UnrecoverableError, UnsupportedByBackendError)) or (
        getattr(error, "unrecoverable", False) is True
    ):
        return end(job, Outcome.FAIL, error=info, reason="unrecoverable")
    if discarded:
        return end(job, Outcome.FAIL, error=info, reason="discarded")
    failures = job.attempts + 1
    if failures >= job.options.max_attempts:
        return end(job, Outcome.FAIL, error=info, reason="attempts")
    if issubclass(kind, Retry):
        assert isinstance(error, Retry)
        return end(job, Outcome.RETRY, error=info, delay_ms=error.delay_ms)
    delay_ms = backoff_ms(job.options.backoff, failures, error, strategies, rng)
    if delay_ms is None:
        return end(job, Outcome.FAIL, error=info, reason="gave_up")
    return end(job, Outcome.RETRY, error=info, delay_ms=delay_ms)


def _rate_limited(job: JobRecord, delay_ms: int) -> Settlement:
    """Run the job again later. If it has a group, the group waits too and this job goes first."""
    if job.options.group is not None and delay_ms:
        return end(job, Outcome.RELEASE, hold_ms=delay_ms, reason="rate_limited")
    return end(job, Outcome.SNOOZE, delay_ms=delay_ms, reason="rate_limited")


def unknown_task(job: JobRecord) -> Settlement:
    """Release a job that has no handler here. After the last delay it fails."""
    if job.misses < len(UNKNOWN_TASK_DELAYS_MS):
        delay_ms = UNKNOWN_TASK_DELAYS_MS[job.misses]
        return end(job, Outcome.RELEASE, delay_ms=delay_ms, reason="unknown_task", miss=True)
    message = f"no worker of queue {job.queue!r} has a handler for task {job.task!r}"
    info = error_info("UnknownTask", message)
    return end(job, Outcome.FAIL, error=info, reason="unknown_task", uses_attempt=False)


def bad_payload(job: JobRecord, error: Exception) -> Settlement:
    """Fail a job whose payload cannot be decoded. Its bytes are kept for inspection."""
    info = error_info(
        "BadPayload", f"the stored payload cannot be decoded as {job.codec}: {message_of(error)}"
    )
    return end(job, Outcome.FAIL, error=info, reason="bad_payload", uses_attempt=False)


def as_error(settlement: Settlement) -> JobFailedError:
    """Return an error for callbacks about a failure that no handler raised."""
    info = settlement.error or ErrorInfo()
    return JobFailedError(settlement.id, settlement.reason, info.error_class, info.message)


def exhausted(job: Job[Any], settlement: Settlement, error: BaseException) -> MaxRetriesError:
    """Return the error that callbacks get when no attempt is left. Its cause is ``error``, the last one."""
    info = settlement.error or ErrorInfo()
    facts = (info.error_class, info.message, info.traceback)
    spent = MaxRetriesError(job.id, job.attempts + 1, *facts, payload=job.payload)
    spent.__cause__ = error
    return spent


def describe(error: BaseException, lines: int) -> ErrorInfo:
    """Return class, message and the last ``lines`` of the traceback of an error. Never raises.

    Only ``RemoteError`` may name another class and traceback than its own.
    """
    name, trace = name_of(error), ""
    try:
        if issubclass(type(error), RemoteError):
            assert isinstance(error, RemoteError)
            name, trace = str(error.error_class), str(error.remote_traceback)
        if lines and not trace:
            trace = format_error(error, users_frames(error))
    except BaseException as fault:
        trace = f"(the traceback cannot be read: {name_of(fault)})"
    return error_info(name, error, "\n".join(trace.splitlines()[-lines:]) if lines else "")


def message_of(error: BaseException) -> str:
    """Return the message of an error on one line, with a fallback if ``str`` raises."""
    return printable(clean_text(error))


def users_frames(error: BaseException) -> TracebackType | None:
    """Return the traceback of ``error`` without the leading frames of Windlass and asyncio."""
    trace = error.__traceback__
    frame = trace
    while frame is not None and frame.tb_frame.f_code.co_filename.startswith(_MACHINERY):
        frame = frame.tb_next
    return frame or trace
