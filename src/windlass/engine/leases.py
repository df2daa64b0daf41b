"""Leases: extend them, release leases whose claim reply was lost, recover expired leases."""

from __future__ import annotations

from windlass.backend import requests as rq
from windlass.core import settle_rules, transitions
from windlass.core.job import JobRecord, JobRef
from windlass.core.outcome import Extended
from windlass.core.states import JobState
from windlass.engine.effects import Kind
from windlass.engine.reads import MoreReads, Reads, Verb
from windlass.engine.saving import load_followed, prepare, save
from windlass.engine.unit_of_work import UnitOfWork

_ACTIVE = JobState.ACTIVE


def extend(work: UnitOfWork, request: rq.Extend) -> Verb[list[Extended]]:
    """Move the deadlines of leases that are still held. Reads: 1."""
    yield Reads(jobs=[JobRef(lease.queue, lease.id) for lease in request.leases])
    answers = []
    for lease in request.leases:
        job = work.jobs[JobRef(lease.queue, lease.id)]
        answer = transitions.extend(job, lease.token, lease.lease_ms, work.now_ms)
        if job is not None and answer is not Extended.LOST:
            work.put(job, _ACTIVE, Kind.EXTENDED)
        answers.append(answer)
    return answers


def reconcile(work: UnitOfWork, request: rq.Reconcile) -> Verb[int]:
    """Release the leases that the store has and the worker does not; returns how many.

    Reads: 1, with groups or unique keys 2.
    """
    yield MoreReads(leased_by=request.worker)
    held = set(request.held)
    lost = sorted((job for job in work.found if job.token not in held), key=lambda job: job.seq)
    yield from prepare(work, lost)
    for job in lost:
        settle_rules.give_back(job, work)
        save(work, job, _ACTIVE)
    return len(lost)


def recover(work: UnitOfWork, request: rq.Recover) -> Verb[rq.Recovered]:
    """Take back active jobs whose lease has expired, and fail pending jobs that did not start in time.

    Reads: 1, with groups or unique keys 2, with blocked jobs of ``keep_last`` 4.
    """
    yield MoreReads(expired=request.limit, overdue=request.limit)
    yield from prepare(work, [*work.found, *work.overdue])
    yield from load_followed(work, [*work.found, *work.overdue])
    result = rq.Recovered([], work.aside)
    for job in work.found:
        (result.recovered if take_back(work, job) else result.failed).append(job.ref)
    result.expired = [job.ref for job in _end_overdue(work, request.limit)]
    return result


def take_back(work: UnitOfWork, job: JobRecord) -> bool:
    """Recover an active job. False if it stalled too often and failed. The caller has called ``prepare``."""
    alive = settle_rules.recover(job, work)
    save(work, job, _ACTIVE)
    return alive


def end_late(work: UnitOfWork, job: JobRecord) -> None:
    """Fail a pending job that did not start in time. The caller has called ``prepare``."""
    before = job.state
    transitions.expire(job, work)
    save(work, job, before)


def _end_overdue(work: UnitOfWork, limit: int) -> list[JobRecord]:
    """Fail pending jobs that did not start in time, the earliest first, including jobs just recovered."""
    late = sorted([*work.overdue, *work.found], key=lambda job: (job.expires_ms or 0, job.seq))
    ended: list[JobRecord] = []
    for job in late:
        if len(ended) < limit and transitions.is_expired(job, work.now_ms):
            end_late(work, job)
            ended.append(job)
    return ended
