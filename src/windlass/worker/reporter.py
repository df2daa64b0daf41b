"""Reports how attempts ended to callbacks, hooks and the log: once, after the store accepted the settlement.

An attempt whose settlement the store refused is reported as ``lease_lost``: another worker has the job, or it
was removed.
"""

from __future__ import annotations

import logging
from typing import Final

from windlass.core.outcome import Outcome, Settled, Settlement
from windlass.core.probe import reach
from windlass.handlers.hooks import Hooks, attempt_end
from windlass.worker import classify
from windlass.worker.attempt import Attempt
from windlass.worker.attempt_log import log_attempt, log_end, logs_every_attempt
from windlass.worker.emitter import Emitter
from windlass.worker.refused_settlements import REFUSED

log: Final = logging.getLogger("windlass.worker")

_COMPLETE: Final = Outcome.COMPLETE  # members of an enum are slow to look up
_FAILURES: Final = (Outcome.FAIL, Outcome.RETRY)
_ACCEPTED: Final = (Settled.OK, Settled.ALREADY)


class _Unreported:
    """An attempt whose settlement the store has not accepted yet."""

    __slots__ = ("attempt", "ran")

    def __init__(self, attempt: Attempt, *, ran: bool) -> None:
        self.attempt: Attempt = attempt
        #: Whether a handler was called.
        self.ran: bool = ran


class OutcomeReporter:
    """Reports the attempts of one worker."""

    def __init__(self, emitter: Emitter, hooks: Hooks) -> None:
        self._emitter = emitter
        self._hooks = hooks
        self._unreported: dict[str, _Unreported] = {}

    def started(self, attempts: list[Attempt]) -> None:
        """Report that attempts begin."""
        if logs_every_attempt():
            for attempt in attempts:
                log_attempt(logging.INFO, "started", attempt.record)
        if self._emitter.wants("active"):
            for attempt in attempts:
                self._emitter.emit("active", attempt.job)

    def ended(self, attempt: Attempt, settlement: Settlement) -> None:
        """Note an ended attempt. It is reported when the store has accepted ``settlement``."""
        emitter = self._emitter
        if (
            settlement.outcome is not _COMPLETE
            or self._hooks.ended
            or emitter.wants("completed")
            or emitter.wants("lease_lost")
            or logs_every_attempt()
        ):
            self._unreported[settlement.token] = _Unreported(attempt, ran=True)

    def refused(self, attempt: Attempt, settlement: Settlement) -> None:
        """Note a job that could not run here. It is reported when the store has accepted ``settlement``."""
        self._unreported[settlement.token] = _Unreported(attempt, ran=False)

    def settled(self, settlements: list[Settlement], answers: list[Settled]) -> None:
        """Report the attempts of ``settlements``, which the store has answered."""
        for settlement, answer in zip(settlements, answers, strict=True):
            unreported = self._unreported.pop(settlement.token, None)
            if answer not in _ACCEPTED:
                log.warning("job %r: the lease was lost before the attempt was settled", settlement.id)
                reach("worker.lease_lost", job_id=settlement.id)
                if unreported is not None:
                    self._emitter.emit("lease_lost", unreported.attempt.job)
            elif unreported is not None:
                self._report(unreported, settlement)

    def lost(self, attempt: Attempt) -> None:
        """Report an attempt that ended after its lease was lost."""
        reach("worker.lease_lost", job_id=attempt.record.id)
        self._emitter.emit("lease_lost", attempt.job)

    def abandon(self) -> int:
        """Report all attempts that are not settled yet as ``lease_lost``. Returns their number."""
        left, self._unreported = list(self._unreported.values()), {}
        for unreported in left:
            self._emitter.emit("lease_lost", unreported.attempt.job)
        return len(left)

    def _report(self, unreported: _Unreported, settlement: Settlement) -> None:
        attempt = unreported.attempt
        error = attempt.error if unreported.ran else None
        if self._hooks.ended and unreported.ran:
            self._emitter.call(self._hooks.ended, attempt.job, attempt_end(settlement, error))
        if settlement.outcome in _FAILURES and (error is None or settlement.reason == REFUSED):
            error = classify.as_error(settlement)
        log_end(attempt.record, settlement, error)
        match settlement.outcome:
            case Outcome.COMPLETE:
                if self._emitter.wants("completed"):
                    self._emitter.emit("completed", attempt.job, attempt.result)
            case Outcome.FAIL:
                assert error is not None
                self._emitter.call(self._hooks.errors, attempt.job, error, True)
                spent = settlement.reason == "attempts"
                if spent:
                    error = classify.exhausted(attempt.job, settlement, error)
                self._emitter.call(self._hooks.deaths, attempt.job, error)
                self._emitter.emit("failed", attempt.job, error)
            case Outcome.RETRY:
                self._emitter.call(self._hooks.errors, attempt.job, error, False)
                self._emitter.emit("retrying", attempt.job, error)
            case Outcome.CANCEL:
                self._emitter.emit("cancelled", attempt.job)
            case Outcome.SNOOZE | Outcome.WAIT | Outcome.SUSPEND:
                self._emitter.emit("snoozed", attempt.job)
            case Outcome.RELEASE:
                self._emitter.emit("released", attempt.job)
