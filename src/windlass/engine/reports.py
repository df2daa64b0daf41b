"""Update records from what other programs report about a job. Nothing is decided here.

Only AMQP gets such reports, because other programs can consume and publish its messages directly.
"""

from __future__ import annotations

from windlass.core import settle_rules, transitions
from windlass.core.job import ErrorInfo, EventType, JobRecord
from windlass.core.states import JobState
from windlass.engine.adding import take_in
from windlass.engine.saving import save
from windlass.engine.unit_of_work import UnitOfWork


def learn(work: UnitOfWork, job: JobRecord, *, added: bool) -> None:
    """Create the record of a job that is known only from its message.

    ``added``: another program added it, so it gets a place, an event and a count like any add.
    """
    if added or not job.seq:
        _place(work, job)
    if added:
        work.effects.count(job.queue, job.task, "enqueued")
        work.record_event(job, EventType.ENQUEUED)
    take_in(work, job)


def apply_report(
    work: UnitOfWork,
    job: JobRecord,
    *,
    state: JobState,
    at_ms: int,
    attempts: int | None = None,
    error: ErrorInfo | None = None,
) -> None:
    """Move a job to the reported ``state`` (see ``settle_rules.apply_report``). An unknown job is added."""
    known, before = work.jobs[job.ref] is not None, job.state
    if not known:
        _place(work, job)
        if state is JobState.SCHEDULED:
            work.effects.count(job.queue, job.task, "enqueued")
    settle_rules.apply_report(job, work, state=state, at_ms=at_ms, attempts=attempts, error=error)
    if known:
        save(work, job, before)
    else:
        take_in(work, job)


def bury(work: UnitOfWork, job: JobRecord) -> None:
    """Add the placeholder record of an unreadable message (``core.bad_records``) as a failed job."""
    _place(work, job)
    transitions.set_aside(job, work)
    take_in(work, job)


def _place(work: UnitOfWork, job: JobRecord) -> None:
    job.seq = job.place = work.fresh_place()
