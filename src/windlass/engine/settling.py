"""Settle: end attempts and, if the worker asks for it, claim the next jobs in the same transaction."""

from __future__ import annotations

from windlass.backend import requests as rq
from windlass.core import settle_rules, transitions
from windlass.core.job import JobRecord, JobRef
from windlass.core.outcome import Outcome, Settled, Settlement
from windlass.core.retention import goes_at_once
from windlass.core.states import JobState
from windlass.core.stubs import stub_of
from windlass.engine import claiming, flows
from windlass.engine.effects import Kind, Table
from windlass.engine.groups import hold_group
from windlass.engine.ordered import is_plain
from windlass.engine.reads import MoreReads, Reads, Verb
from windlass.engine.saving import drop, prepare, save, save_alike
from windlass.engine.unit_of_work import UnitOfWork

_OK, _OUTCOME_COMPLETE, _OUTCOME_WAIT = Settled.OK, Outcome.COMPLETE, Outcome.WAIT
_ACTIVE, _COMPLETED, _BLOCKED = JobState.ACTIVE, JobState.COMPLETED, JobState.BLOCKED
_KIND_COMPLETED, _KIND_MOVED = Kind.COMPLETED, Kind.MOVED


def settle(work: UnitOfWork, request: rq.Settle) -> Verb[rq.SettleResult]:
    """End attempts, then claim. The answer has one status for each settlement, in order.

    Reads: 1 for plain jobs, including the claim; with groups, keys or waits at most 3, then
    ``notify_dependents``.
    """
    reads = claiming.reads(request.claim) if request.claim else Reads()
    reads.jobs = refs = [(end.queue, end.id) for end in request.items]
    yield reads
    items = _complete_plain(work, refs, request.items)
    if items is None:
        yield from _load(work, request.items)
        items = [settle_one(work, end) for end in request.items]
    if work.ended:
        yield from flows.notify_dependents(work)  # first: the claim may take jobs that are unblocked
    left = work.left
    claimed = (yield from claiming.pick(work, request.claim)) if request.claim else None
    return rq.SettleResult(items, claimed, relay=left)


def _complete_plain(
    work: UnitOfWork, refs: list[tuple[str, str]], items: list[Settlement]
) -> list[Settled] | None:
    """``settle_one`` for a batch that completes distinct plain jobs. Returns None for any other batch."""
    known = work.jobs
    if len({end.token for end in items}) < len(items):
        return None
    completed: list[JobRecord] = []
    moved: dict[str, list[JobRecord]] = {}
    jobs: list[JobRecord] = []
    queue, options = None, None
    for ref, end in zip(refs, items, strict=True):
        job = known[ref]
        if job is None or end.outcome is not _OUTCOME_COMPLETE or not transitions.holds(job, end.token):
            return None
        if job.options is not options or job.queue != queue:
            queue, options = job.queue, job.options
            jobs = moved.setdefault(queue, [])
            if not is_plain(options) or goes_at_once(options) or work.queues[queue].row.grouped:
                return None
        if job.linked or end.filled is not None:
            return None
        completed.append(job)
        jobs.append(job)
    settle_rules.complete_all(completed, items, work)
    for name, jobs in moved.items():
        save_alike(work, name, jobs, _ACTIVE, _COMPLETED, _KIND_COMPLETED)
    return [_OK] * len(items)


def _load(work: UnitOfWork, items: list[Settlement]) -> Verb[None]:
    """Load what these settlements may need."""
    held: list[JobRecord] = []
    waits: list[JobRef] = []
    for end in items:
        job = work.jobs[end.queue, end.id]
        if job is not None and job.token == end.token:
            held.append(job)
            if end.outcome is _OUTCOME_WAIT:
                waits.append(job.ref)
    if waits:
        yield MoreReads(waits=waits, unmet=waits)
    yield from prepare(work, held)


def settle_one(work: UnitOfWork, end: Settlement) -> Settled:
    """End one attempt if its token is the newest of its job. The caller has loaded what this needs."""
    ref = (end.queue, end.id)
    job = work.jobs[ref] or work.stubs.get(ref)
    status = transitions.check_token(job, end.token)
    if status is not _OK or job is None:
        return status
    settle_rules.settle(job, flows.weigh(work, job, end) if end.outcome is _OUTCOME_WAIT else end, work)
    kind = _KIND_COMPLETED if job.state is _COMPLETED else _KIND_MOVED
    save(work, job, _ACTIVE, kind if end.filled is None else Kind.REPLACED)
    if end.outcome is _OUTCOME_WAIT and job.state is _BLOCKED:
        flows.review(work, job)
    if end.hold_ms and job.options.group is not None:
        hold_group(work, work.groups[job.queue, job.options.group], end.hold_ms)
    if job.state is _COMPLETED and goes_at_once(job.options):
        _replace_with_stub(work, job)
    return status


def _replace_with_stub(work: UnitOfWork, job: JobRecord) -> None:
    """Remove the record of a finished job without retention. A stub stays for repeated requests."""
    drop(work, job)
    stub = work.stubs[job.ref] = stub_of(job)
    work.put_row(Table.STUB, (job.queue, job.id), stub)
