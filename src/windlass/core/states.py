"""The states of a job and the allowed moves between them.

::

      add ──► waiting ◄──────────────┐ promote, retry by hand,
       │        │ claim              │ release, recover (old place)
       │        ▼                    │
       │      active ──► completed   │
       │        │  │ ──► failed  ────┤
       │        │  │ ──► cancelled ──┤
       │        │  └───► retrying ───┤ (after a failed or lost attempt)
       │        ├──────► scheduled ──┤ (snoozed; or due later)
       │        ├──────► suspended ──┤ (until a signal, or its time limit)
       │        └──────► blocked ────┘ (until its children ended)
       └──► scheduled, blocked

``failed`` is final: these jobs are the dead set. ``blocked`` (on dependencies), ``parked`` (limits of a
group) and ``suspended`` (on a signal, perhaps with a time limit) wait for something other than time.
``paused`` is a property of a queue, never of a job.
Every backend is tested against ``MOVES``.
"""

from __future__ import annotations

from enum import StrEnum


class JobState(StrEnum):
    """Where a job is. A job is in exactly one state."""

    #: Ready: the next free worker of its queue takes it.
    WAITING = "waiting"
    #: Due later: it was added with a delay, or snoozed itself.
    SCHEDULED = "scheduled"
    #: Due later, after a failed attempt or a lost worker.
    RETRYING = "retrying"
    #: Waits for other jobs to end.
    BLOCKED = "blocked"
    #: Ready, but its group has reached a limit.
    PARKED = "parked"
    #: Ended its run to wait for a signal, perhaps with a time limit.
    SUSPENDED = "suspended"
    #: A worker runs it under a lease.
    ACTIVE = "active"
    #: Its handler returned. Final.
    COMPLETED = "completed"
    #: It is not retried automatically; ``job.reason`` says why. Final, unless it is retried by hand.
    FAILED = "failed"
    #: It was cancelled, by a caller or by its handler. Final, unless it is retried by hand.
    CANCELLED = "cancelled"


#: Final states, unless a user retries the job.
FINISHED = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED})
#: Waiting for a due time.
DUE_LATER = frozenset({JobState.SCHEDULED, JobState.RETRYING})
#: States that end by themselves at the due time, if there is one.
TIMED = DUE_LATER | {JobState.SUSPENDED}
#: Not started, not finished: may be changed, cancelled or removed freely.
PENDING = TIMED | {JobState.WAITING, JobState.BLOCKED, JobState.PARKED}

_W, _S, _R, _A = JobState.WAITING, JobState.SCHEDULED, JobState.RETRYING, JobState.ACTIVE
_C, _F, _X = JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED
_B, _P, _U = JobState.BLOCKED, JobState.PARKED, JobState.SUSPENDED

#: ``None`` means "no record": before the job is added, and after it is removed.
MOVES: dict[JobState | None, frozenset[JobState | None]] = {
    None: frozenset({_W, _S, _B, _P}),
    _W: frozenset({_A, _X, _F, _S, _B, _P, None}),
    _S: frozenset({_W, _X, _F, _B, _P, None}),
    _R: frozenset({_W, _X, _F, _B, None}),
    _B: frozenset({_W, _S, _P, _X, _F, None}),
    _P: frozenset({_W, _S, _X, _F, _B, None}),
    _U: frozenset({_W, _P, _X, _F, None}),
    _A: frozenset({_C, _F, _X, _R, _S, _W, _B, _P, _U, None}),
    _C: frozenset({_W, _S, _B, None}),
    _F: frozenset({_W, _S, _B, None}),
    _X: frozenset({_W, _S, _B, None}),
}
