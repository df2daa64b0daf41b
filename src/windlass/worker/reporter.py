"""Reports to callbacks, hooks and the log how attempts ended: once, after the store has taken the settlement.

What the store refused is reported as ``lease_lost``: another worker has the job, or it was removed.
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
from windlass.worker.settling import REFUSED

log: Final = logging.getLogger("windlass.worker")

_COMPLETE: Final = Outcome.COMPLETE  # members of an enum are slow to look up
_FAILURES: Final = (Outcome.FAIL, Outcome.RETRY)
_TAKEN: Final = (Settled.OK, Settled.ALREADY)


class _Unreported:
    """An end that the store has yet to take."""

    __slots__ = ("attempt", "ran")

    def __init__(self, attempt: Attempt, *, ran: bool) -> None:
        self.attempt: Attempt = attempt
        #: Whether a handler was called.
        self.ran: bool = ran


class OutcomeReporter:
    """What one worker reports about its attempts."""

    def __init__(self, emitter: Emitter, hooks: Hooks) -> None:
        self._emitter = emitter
        self._hooks = hooks
        self._unreported: dict[str, _Unreported] = {}

    def started(self, attempts: list[Attempt]) -> None:
        """Attempts begin."""
        if logs_every_attempt():
            for attempt in attempts:
                log_attempt(logging.INFO, "started", attempt.record)
        if self._emitter.wants("active"):
            for attempt in attempts:
                self._emitter.emit("active", attempt.job)

    def ended(self, attempt: Attempt, settlement: Settlement) -> None:
        """An attempt is over; it is reported when the store has taken ``settlement``."""
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
        """A job without a handler to call; it is reported when the store has taken ``settlement``."""
        self._unreported[settlement.token] = _Unreported(attempt, ran=False)

    def settled(self, settlements: list[Settlement], answers: list[Settled]) -> None:
        """The store has answered for ``settlements``."""
        for settlement, answer in zip(settlements, answers, strict=True):
            unreported = self._unreported.pop(settlement.token, None)
            if answer not in _TAKEN:
                log.warning("job %r: the lease was lost before the attempt was settled", settlement.id)
                reach("worker.lease_lost", job_id=settlement.id)
                if unreported is not None:
                    self._emitter.emit("lease_lost", unreported.attempt.job)
            elif unreported is not None:
                self._taken(unreported, settlement)

    def lost(self, attempt: Attempt) -> None:
        """The attempt is over, and its lease was lost before."""
        reach("worker.lease_lost", job_id=attempt.record.id)
        self._emitter.emit("lease_lost", attempt.job)

    def abandon(self) -> int:
        """Stop settling. Attempts that are not reported yet lose their lease; returns how many."""
        left, self._unreported = list(self._unreported.values()), {}
        for unreported in left:
            self._emitter.emit("lease_lost", unreported.attempt.job)
        return len(left)

    def _taken(self, unreported: _Unreported, settlement: Settlement) -> None:
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
