"""Restore jobs from an export. They get new places, without leases and edges; other fields do not change."""

from __future__ import annotations

from windlass.backend import requests as rq
from windlass.core import unique_rules
from windlass.core.job import EventType, JobRecord
from windlass.core.option_values import StoredUnique
from windlass.core.outcome import AddOutcome
from windlass.core.queue_time import QueueTime
from windlass.core.states import FINISHED
from windlass.core.transitions import NO_TURN
from windlass.engine import unique_keys
from windlass.engine.adding import keep_queue
from windlass.engine.effects import Kind, Table
from windlass.engine.reads import Reads, Verb
from windlass.engine.saving import prepare, refuses, save
from windlass.engine.unit_of_work import UnitOfWork


def restore(work: UnitOfWork, request: rq.Restore) -> Verb[list[rq.Added]]:
    """Add exported records, unless their id or unique key is in use. Reads: 1 for plain jobs, 2 at most."""
    jobs = request.jobs
    yield Reads(ids=[(job.queue, job.id) for job in jobs])
    yield from prepare(work, jobs)
    return [_restore_one(work, job) for job in jobs]


def _restore_one(work: UnitOfWork, job: JobRecord) -> rq.Added:
    ref, ended = (job.queue, job.id), job.state in FINISHED
    if job.options.group is not None:
        work.groups[job.queue, job.options.group].counted.pop(job.id, None)  # it is not stored yet
    known = work.jobs.get(ref) or work.stubs.get(ref)
    if known is not None:
        same = known.request_id == job.request_id
        outcome = AddOutcome.QUEUED if same else AddOutcome.DUPLICATE
        return rq.Added(outcome, known.state, known.enqueued_ms, known.due_ms)
    held = _held_key(work, job)
    if work.kept.get(ref, 0) > work.now_ms or (held is not None and _is_taken(work, job.queue, held)):
        return rq.Added(AddOutcome.DUPLICATE, None)
    refusal = None if ended else refuses(work, job)
    if refusal is not None:
        return rq.Added(refusal, None)
    job.seq = work.fresh_place()
    job.place = -job.seq if job.options.lifo else job.seq
    job.turn, job.token, job.settled_token, job.linked = NO_TURN, None, None, False
    job.queue_time = None if ended else QueueTime(work.now_ms)  # its earlier waits are not exported
    work.jobs[ref] = job
    keep_queue(work, work.queues[job.queue])
    if not ended:
        work.effects.count(job.queue, job.task, "enqueued")
        if held is not None:
            unique_keys.take(work, job, held)
    work.record_event(job, EventType.CHANGED, what="restored")
    save(work, job, None, Kind.MADE)
    return rq.Added(AddOutcome.QUEUED, job.state, job.enqueued_ms, job.due_ms)


def _held_key(work: UnitOfWork, job: JobRecord) -> StoredUnique | None:
    """The unique key that a job holds when it is restored."""
    unique = job.options.unique
    if unique is None or job.state in FINISHED or not unique_rules.holds_key(job, unique, work.now_ms):
        return None
    return unique


def _is_taken(work: UnitOfWork, queue: str, unique: StoredUnique) -> bool:
    """Whether another job holds a key."""
    entry = work.rows[Table.KEY, (queue, unique.key)]
    return entry is not None and entry.is_live(work.now_ms)
