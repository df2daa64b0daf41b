"""Celery's names of states, and the states of Windlass that they correspond to."""

from __future__ import annotations

from typing import Any, Final

from windlass.core.states import JobState

PENDING: Final = "PENDING"
RECEIVED: Final = "RECEIVED"
STARTED: Final = "STARTED"
SUCCESS: Final = "SUCCESS"
FAILURE: Final = "FAILURE"
REVOKED: Final = "REVOKED"
REJECTED: Final = "REJECTED"
RETRY: Final = "RETRY"
IGNORED: Final = "IGNORED"

READY_STATES: Final = frozenset({SUCCESS, FAILURE, REVOKED, REJECTED, IGNORED})
UNREADY_STATES: Final = frozenset({PENDING, RECEIVED, STARTED, RETRY})
EXCEPTION_STATES: Final = frozenset({RETRY, FAILURE, REVOKED})
PROPAGATE_STATES: Final = frozenset({FAILURE, REVOKED})

#: The reasons with which the runner cancels jobs, by Celery's term.
IGNORED_REASON: Final = "ignored by its task"
REJECTED_REASON: Final = "rejected by its task"
_CANCELLED: Final = {IGNORED_REASON: IGNORED, REJECTED_REASON: REJECTED}
#: The keys under which ``update_state`` stores its state and data in a job's progress.
STATE_KEY: Final = "celery.state"
META_KEY: Final = "meta"


def state_of(job: Any, *, track_started: bool) -> str:
    """Celery's name for the state of a job. ``job`` is None if the store has no such job."""
    if job is None:
        return PENDING
    match job.state:
        case JobState.COMPLETED:
            return SUCCESS
        case JobState.FAILED:
            return REVOKED if job.reason == "expired" else FAILURE
        case JobState.CANCELLED:
            return _CANCELLED.get(job.reason or "", REVOKED)
        case JobState.RETRYING:
            return RETRY
        case JobState.ACTIVE:
            return reported(job)[0] or (STARTED if track_started else PENDING)
    return PENDING


def reported(job: Any) -> tuple[str, Any]:
    """The state and data that ``update_state`` last reported for a running job; ("", None) if none."""
    progress = job.progress
    if isinstance(progress, dict) and STATE_KEY in progress:
        return str(progress[STATE_KEY]), progress.get(META_KEY)
    return "", None
