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


class OutcomeReporter:
    """Reports the attempts of one worker."""

    def __init__(self, emitter: Emitter, hooks: Hooks) -> None:
        self._emitter = emitter
        self._hooks = hooks
        #: Attempts whose settlement the store has not accepted yet, and whether their handler was called.
        self._unreported: dict[str, tuple[Attempt, bool]] = {}

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
        self._unreported[settlement.token] = (attempt, True)

    def refused(self, attempt: Attempt, settlement: Settlement) -> None:
        """Note a job that could not run here. It is reported when the store has accepted ``settlement``."""
        self._unreported[settlement.token] = (attempt, False)

    def settled(self, settlements: list[Settlement], answers: list[Settled]) -> None:
        """Report the attempts of ``settlements``, which the store has answered."""
        successes = self._reports_successes()
        for settlement, answer in zip(settlements, answers, strict=True):
            attempt, ran = self._unreported.pop(settlement.token, (None, False))
            if answer not in _ACCEPTED:
                log.warning("job %r: the lease was lost before the attempt was settled", settlement.id)
                reach("worker.lease_lost", job_id=settlement.id)
                if attempt is not None:
                    self._emitter.emit("lease_lost", attempt.job)
            elif attempt is not None and (successes or settlement.outcome is not _COMPLETE):
                self._report(attempt, settlement, ran=ran)

    def _reports_successes(self) -> bool:
        """Whether a hook, a callback or the log receives attempts that completed."""
        emitter = self._emitter
        return bool(self._hooks.ended) or emitter.wants("completed") or logs_every_attempt()

    def lost(self, attempt: Attempt) -> None:
        """Report an attempt that ended after its lease was lost."""
        reach("worker.lease_lost", job_id=attempt.record.id)
        self._emitter.emit("lease_lost", attempt.job)

    def abandon(self) -> int:
        """Report all attempts that are not settled yet as ``lease_lost``. Returns their number."""
        left, self._unreported = list(self._unreported.values()), {}
        for attempt, _ in left:
            self._emitter.emit("lease_lost", attempt.job)
        return len(left)

    def _report(self, attempt: Attempt, settlement: Settlement, *, ran: bool) -> None:
        error = attempt.error if ran else None
        if self._hooks.ended and ran:
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
