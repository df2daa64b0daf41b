"""How long a job waited before an attempt, by cause.

Every millisecond from the add (or the end of the previous attempt) to the start has one cause: the state that
the job was in. ``count`` adds the time in a state just before the job leaves it. A job that was only ever
``waiting`` has no ``QueueTime``: it was in line all the time.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from windlass.core.states import DUE_LATER, TIMED, JobState

_WAITING, _PARKED = JobState.WAITING, JobState.PARKED


class QueueTime(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a job waited for so far, in milliseconds. Stores keep it as an array in this order."""

    #: Counted up to this time.
    until_ms: int
    #: Waiting for its due time: a delay, ``run_at``, the backoff of a retry, a snooze.
    scheduled_ms: int = 0
    #: Waiting for room in its group.
    parked_ms: int = 0
    #: Waiting for other jobs or for a signal.
    blocked_ms: int = 0
    #: Ready and waiting for a worker, also while its queue was paused.
    in_line_ms: int = 0


class HasQueueTime(Protocol):
    """The fields of a ``JobRecord`` that this module reads and writes."""

    state: JobState
    enqueued_ms: int
    ready_ms: int
    due_ms: int | None
    started_ms: int | None
    deliveries: int
    queue_time: QueueTime | None


def count(job: HasQueueTime, now_ms: int) -> None:
    """Add the time since the last count to the cause that belongs to the state of ``job``.

    A due job counts as in line from its due time on, even if the store promotes it later.
    """
    forget_stale(job)
    state, known = job.state, job.queue_time
    until_ms = _counted_until(job) if known is None else known.until_ms
    end_ms = now_ms
    if state in TIMED and job.due_ms is not None:
        end_ms = min(job.due_ms, now_ms)
    held_ms = 0 if state is _WAITING else max(end_ms - until_ms, 0)
    line_ms = max(now_ms - until_ms, 0) - held_ms
    before = known or QueueTime(0)
    job.queue_time = QueueTime(
        now_ms,
        before.scheduled_ms + (held_ms if state in DUE_LATER else 0),
        before.parked_ms + (held_ms if state is _PARKED else 0),
        before.blocked_ms + (held_ms if state is not _PARKED and state not in DUE_LATER else 0),
        before.in_line_ms + line_ms,
    )


def _counted_until(job: HasQueueTime) -> int:
    """Where counting begins for a job without a ``QueueTime``, which is still in its first state."""
    return job.ready_ms if job.state is _WAITING or job.deliveries else job.enqueued_ms


def forget_stale(job: HasQueueTime) -> None:
    """Drop a ``QueueTime`` from before the last start.

    An older version of Windlass, which does not have this field, has put such a job back in line. A new
    ``QueueTime`` from the same millisecond as the start is kept.
    """
    known, started_ms = job.queue_time, job.started_ms
    if known is None or started_ms is None or known.until_ms > started_ms:
        return
    if known != QueueTime(started_ms):
        job.queue_time = None


def at_start(job: HasQueueTime) -> QueueTime | None:
    """The ``QueueTime`` of an active job up to its start; None: it was in line all the time."""
    known = job.queue_time
    if known is None or job.started_ms is None:
        return None
    return QueueTime(
        job.started_ms,
        known.scheduled_ms,
        known.parked_ms,
        known.blocked_ms,
        known.in_line_ms + max(job.started_ms - known.until_ms, 0),
    )
