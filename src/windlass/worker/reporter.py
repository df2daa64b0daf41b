"""Tells callbacks, hooks and the log how attempts ended: once, after the store has taken the settlement.

What the store refused is reported as ``lease_lost``: another worker has the job, or it was removed.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, Final

from windlass.core.job import JobRecord
from windlass.core.outcome import Outcome, Settled, Settlement
from windlass.core.probe import reach
from windlass.core.text import printable
from windlass.handlers.hooks import ErrorHook, Hooks, attempt_end
from windlass.jobs.job import Job
from windlass.worker import classify
from windlass.worker.attempt import Attempt
from windlass.worker.emitter import Emitter
from windlass.worker.settling import REFUSED

log: Final = logging.getLogger("windlass.worker")

_COMPLETE: Final = Outcome.COMPLETE  # members of an enum are slow to look up
_TAKEN: Final = (Settled.OK, Settled.ALREADY)


class _Unreported:
    """An end that the store has yet to take."""

    __slots__ = ("error", "job", "ran", "record", "result")

    def __init__(self, job: Job[Any], record: JobRecord, attempt: Attempt | None = None) -> None:
        self.job: Job[Any] = job
        self.record: JobRecord = record
        #: Whether a handler was called.
        self.ran: bool = attempt is not None
        self.result: Any = None if attempt is None else attempt.result
        self.error: BaseException | None = None if attempt is None else attempt.error


class OutcomeReporter:
    """What one worker tells of its attempts."""

    def __init__(self, emitter: Emitter, hooks: Hooks) -> None:
        self._emitter = emitter
        self._hooks = hooks
        self._untold: dict[str, _Unreported] = {}
        #: How many of the error hooks listen already.
        self._reported = 0

    def report_errors(self) -> None:
        """Call the app's error hooks for failed attempts. Idempotent."""
        hooks, self._reported = self._hooks.errors[self._reported :], len(self._hooks.errors)
        for hook in hooks:
            self._emitter.on("failed", partial(_report, hook, final=True))
            self._emitter.on("retrying", partial(_report, hook, final=False))

    def ended(self, attempt: Attempt, settlement: Settlement) -> None:
        """An attempt is over; it is reported when the store has taken ``settlement``."""
        emitter = self._emitter
        if (
            settlement.outcome is not _COMPLETE
            or self._hooks.ended
            or emitter.wants("completed")
            or emitter.wants("lease_lost")
        ):
            self._untold[settlement.token] = _Unreported(attempt.job, attempt.record, attempt)

    def refused(self, attempt: Attempt, settlement: Settlement) -> None:
        """A job without a handler to call; it is reported when the store has taken ``settlement``."""
        self._untold[settlement.token] = _Unreported(attempt.job, attempt.record)

    def settled(self, settlement: Settlement, answer: Settled) -> None:
        """The store has answered for ``settlement``."""
        untold = self._untold.pop(settlement.token, None)
        if answer not in _TAKEN:
            log.warning("job %r: the lease was lost before the attempt was settled", settlement.id)
            reach("worker.lease_lost", job_id=settlement.id)
            if untold is not None:
                self._emitter.emit("lease_lost", untold.job)
        elif untold is not None:
            self._taken(untold, settlement)

    def lost(self, attempt: Attempt) -> None:
        """The attempt is over, and its lease was lost before."""
        reach("worker.lease_lost", job_id=attempt.record.id)
        self._emitter.emit("lease_lost", attempt.job)

    def abandon(self) -> int:
        """Nothing more is settled: what is not reported loses its lease. Returns how many those are."""
        left, self._untold = list(self._untold.values()), {}
        for untold in left:
            self._emitter.emit("lease_lost", untold.job)
        return len(left)

    def _taken(self, untold: _Unreported, settlement: Settlement) -> None:
        job, error = untold.job, untold.error
        if self._hooks.ended and untold.ran:
            self._emitter.call(self._hooks.ended, job, attempt_end(settlement, error))
        match settlement.outcome:
            case Outcome.COMPLETE:
                self._emitter.emit("completed", job, untold.result)
            case Outcome.FAIL:
                if error is None or settlement.reason == REFUSED:
                    error = classify.as_error(settlement)
                log_attempt(logging.ERROR, "failed", untold, error, settlement.duration_ms)
                self._emitter.emit("failed", job, error)
            case Outcome.RETRY:
                error = error or classify.as_error(settlement)
                log_attempt(logging.INFO, "will be retried", untold, error, settlement.duration_ms)
                self._emitter.emit("retrying", job, error)
            case Outcome.CANCEL:
                self._emitter.emit("cancelled", job)
            case Outcome.SNOOZE | Outcome.WAIT | Outcome.SUSPEND:
                self._emitter.emit("snoozed", job)
            case Outcome.RELEASE:
                self._emitter.emit("released", job)


def log_attempt(
    level: int,
    what: str,
    attempt: Attempt | _Unreported,
    error: BaseException | None = None,
    elapsed_ms: int | None = None,
) -> None:
    """A line about an attempt, with its facts as fields for structured logs."""
    record = attempt.record
    facts: dict[str, Any] = {
        "job_id": record.id,
        "task": record.task,
        "queue": record.queue,
        "attempt": record.attempts + 1,
    }
    if elapsed_ms is not None:
        facts["elapsed_ms"] = elapsed_ms
    tail = f": {printable(classify.message_of(error))}" if error is not None else ""
    log.log(level, "job %s (%s) %s%s", record.id, record.task, what, tail, extra=facts)


def _report(hook: ErrorHook, job: Job[Any], error: BaseException, *, final: bool) -> Any:
    return hook(job, error, final)
