"""From what a handler did to how its attempt ends. Pure but for the dice of the backoff."""

from __future__ import annotations

import asyncio
import concurrent.futures
import random
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import windlass
from windlass.core.backoff import Strategy, backoff_ms
from windlass.core.job import ErrorInfo, JobRecord, fingerprint
from windlass.core.outcome import Outcome, Settlement
from windlass.errors import (
    Cancel,
    JobFailedError,
    RateLimitError,
    ResultError,
    Retry,
    Snooze,
    Suspend,
    UnrecoverableError,
    UnsupportedByBackendError,
    WaitForChildren,
)

#: A job whose task nobody here knows is given back so often, at these distances, before it fails: a
#: rolling deploy sends new task names to old workers.
UNKNOWN_TASK_DELAYS_MS = (5_000, 30_000, 120_000, 600_000)
_MESSAGE_CHARS = 10_000
_TRACE_CHARS = 32_000
#: Files whose frames lead to a handler: ours, and what runs our tasks and threads.
_MACHINERY = tuple(
    str(Path(str(module.__file__)).resolve().parent) for module in (windlass, asyncio, concurrent.futures)
)


def end(job: JobRecord, outcome: Outcome, **fields: object) -> Settlement:
    """A settlement of ``job``'s current attempt."""
    settlement = Settlement(queue=job.queue, id=job.id, token=job.token or "", outcome=outcome)
    for name, value in fields.items():
        setattr(settlement, name, value)
    return settlement


def classify(
    job: JobRecord,
    error: BaseException,
    *,
    discarded: bool = False,
    strategies: Mapping[str, Strategy] | None = None,
    rng: random.Random,
) -> Settlement:
    """How an attempt ends that raised ``error``."""
    match error:
        case RateLimitError():
            return _rate_limited(job, error.delay_ms)
        case Snooze():
            return end(job, Outcome.SNOOZE, delay_ms=error.delay_ms, reason="snoozed")
        case Cancel():
            return end(job, Outcome.CANCEL, reason=error.reason)
        case WaitForChildren():
            return end(job, Outcome.WAIT)
        case Suspend():
            return end(job, Outcome.SUSPEND, signal=error.signal, delay_ms=error.delay_ms)
    info = describe(error, job.options.backtrace)
    if isinstance(error, ResultError):
        return end(job, Outcome.FAIL, error=info, reason="result")
    if isinstance(error, UnrecoverableError | UnsupportedByBackendError) or getattr(
        error, "unrecoverable", False
    ):
        return end(job, Outcome.FAIL, error=info, reason="unrecoverable")
    if discarded:
        return end(job, Outcome.FAIL, error=info, reason="discarded")
    failures = job.attempts + 1
    if failures >= job.options.max_attempts:
        return end(job, Outcome.FAIL, error=info, reason="attempts")
    if isinstance(error, Retry):
        return end(job, Outcome.RETRY, error=info, delay_ms=error.delay_ms)
    delay_ms = backoff_ms(job.options.backoff, failures, error, strategies or {}, rng)
    if delay_ms is None:
        return end(job, Outcome.FAIL, error=info, reason="gave_up")
    return end(job, Outcome.RETRY, error=info, delay_ms=delay_ms)


def _rate_limited(job: JobRecord, delay_ms: int) -> Settlement:
    """Come back later. A job of a group stops the group as well, and goes first when that may go on."""
    if job.options.group is not None and delay_ms:
        return end(job, Outcome.RELEASE, hold_ms=delay_ms, reason="rate_limited")
    return end(job, Outcome.SNOOZE, delay_ms=delay_ms, reason="rate_limited")


def unknown_task(job: JobRecord) -> Settlement:
    """Give back a job that no handler here takes; after the last time it fails."""
    if job.misses < len(UNKNOWN_TASK_DELAYS_MS):
        delay_ms = UNKNOWN_TASK_DELAYS_MS[job.misses]
        return end(job, Outcome.RELEASE, delay_ms=delay_ms, reason="unknown_task", miss=True)
    message = f"no worker of queue {job.queue!r} has a handler for task {job.task!r}"
    info = ErrorInfo(0, 0, "UnknownTask", message, "", fingerprint("UnknownTask", message))
    return end(job, Outcome.FAIL, error=info, reason="unknown_task", uses_attempt=False)


def bad_payload(job: JobRecord, error: Exception) -> Settlement:
    """Stored bytes that are not arguments: the job fails with its bytes kept for people to look at."""
    message = f"the stored payload cannot be decoded as {job.codec}: {error}"
    info = ErrorInfo(0, 0, "BadPayload", message, "", fingerprint("BadPayload", str(error)))
    return end(job, Outcome.FAIL, error=info, reason="bad_payload", uses_attempt=False)


def as_error(settlement: Settlement) -> JobFailedError:
    """The error behind a settlement that no handler raised, for those who are told of failures."""
    info = settlement.error or ErrorInfo()
    return JobFailedError(settlement.id, settlement.reason, info.error_class, info.message)


def describe(error: BaseException, lines: int) -> ErrorInfo:
    """What is kept of an error: its class, its message, the last ``lines`` of its traceback."""
    name = getattr(error, "error_class", "") or type(error).__name__
    message = message_of(error)[:_MESSAGE_CHARS]
    trace = getattr(error, "remote_traceback", "") or _format(error)
    kept = "\n".join(trace.splitlines()[-lines:])[-_TRACE_CHARS:] if lines else ""
    return ErrorInfo(0, 0, name, message, kept, fingerprint(name, message))


def message_of(error: BaseException) -> str:
    """What the error says, even if it cannot."""
    try:
        return str(error)
    except Exception:  # a broken __str__ must not hide the failure itself
        return f"<{type(error).__name__}: its message cannot be shown>"


def _format(error: BaseException) -> str:
    own = _skip_our_frames(error.__traceback__)
    return "".join(traceback.format_exception(type(error), error, own)).rstrip()


def _skip_our_frames(trace: TracebackType | None) -> TracebackType | None:
    """Begin the traceback where the user's code begins."""
    frame = trace
    while frame is not None and frame.tb_frame.f_code.co_filename.startswith(_MACHINERY):
        frame = frame.tb_next
    return frame or trace
