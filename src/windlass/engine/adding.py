"""Add jobs: create records, or answer with an existing record of the same id or unique key."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, groupby
from operator import attrgetter

import msgspec

from windlass.backend import requests as rq
from windlass.core import change_rules, transitions
from windlass.core.job import EventType, JobRecord, JobRef, NewJob
from windlass.core.outcome import AddOutcome
from windlass.engine import flows, unique_keys
from windlass.engine.effects import Entry, Kind, Table
from windlass.engine.ordered import is_plain
from windlass.engine.reads import Reads, Verb
from windlass.engine.saving import drop, prepare, refuses, save, save_alike
from windlass.engine.unit_of_work import QueueView, UnitOfWork
from windlass.engine.views import view

#: Added jobs are counted by queue and task.
_counted = attrgetter("queue", "task")
_placed = attrgetter("queue", "state")
_QUEUED, _MADE = AddOutcome.QUEUED, Kind.MADE


def add(work: UnitOfWork, request: rq.Add) -> Verb[list[rq.Added]]:
    """Add jobs, and answer for each of them, in order.

    Reads: 1 for plain jobs with new ids, 3 at most. Flows read 2 more, and what ``notify_dependents`` reads.
    """
    jobs = request.jobs
    reads = _reads(jobs)
    yield reads
    if are_plain(jobs) and _are_new(work, jobs):
        return add_new(work, jobs)
    yield from _load_more(work, jobs, reads)
    if any(new.depends_on or new.parent is not None for new in jobs):
        return (yield from _add_flow(work, jobs))
    return [add_one(work, new) for new in jobs]


def load(work: UnitOfWork, jobs: list[NewJob], *, besides: Iterable[JobRef] = ()) -> Verb[None]:
    """Load what adding these jobs may need, except edges, and also the jobs ``besides``.

    Reads: 1 for plain jobs, 3 at most.
    """
    reads = _reads(jobs)
    reads.jobs = besides
    yield reads
    yield from _load_more(work, jobs, reads)


def _reads(jobs: list[NewJob]) -> Reads:
    """The first batch to read for these jobs."""
    refs: list[tuple[str, str]] = []
    groups: dict[tuple[str, str], None] = {}
    rows: dict[Entry, None] = {}
    for new in jobs:
        refs.append((new.queue, new.id))
        options = new.options
        if options.group is not None:
            groups[new.queue, options.group] = None
        if options.unique is not None:
            rows[Table.KEY, (new.queue, options.unique.key)] = None
    return Reads(ids=refs, groups=groups, rows=rows)


def are_plain(jobs: list[NewJob]) -> bool:
    """Whether none of these jobs has a group, a unique key or dependencies."""
    options = None
    for new in jobs:
        if new.options is not options:
            options = new.options
            if not is_plain(options):
                return False
        if new.depends_on or new.parent is not None:
            return False
    return True


def _are_new(work: UnitOfWork, jobs: list[NewJob]) -> bool:
    """Whether all ids are new and distinct, and no queue has ever had a group."""
    if work.stubs or work.kept or len(work.jobs) != len(jobs) or any(work.jobs.values()):
        return False
    return not any(queue.row.grouped for queue in work.queues.values())


def add_new(work: UnitOfWork, jobs: list[NewJob]) -> list[rq.Added]:
    """``add_one`` for new jobs that ``are_plain``, in queues that have never had groups."""
    made = transitions.create_all(jobs, work)
    for (queue, task), alike in groupby(made, _counted):
        work.effects.count(queue, task, "enqueued", len(list(alike)))
    for (queue, state), alike in groupby(made, _placed):
        keep_queue(work, work.queues[queue])
        save_alike(work, queue, list(alike), None, state, _MADE)
    return [rq.Added(_QUEUED, job.state, job.enqueued_ms, job.due_ms) for job in made]


def _load_more(work: UnitOfWork, jobs: list[NewJob], reads: Reads) -> Verb[None]:
    """Load the holders of unique keys that the first batch found, and what saving the jobs needs."""
    holders = [ref for new in jobs if (ref := unique_keys.holder_ref(work, new))] if reads.rows else []
    missing = [ref for ref in holders if ref not in work.jobs]
    if missing:
        yield Reads(jobs=missing)
    known = [job for job in work.jobs.values() if job is not None]
    yield from prepare(work, chain(known, jobs))


def add_one(work: UnitOfWork, new: NewJob) -> rq.Added:
    """Add one job without its edges, which ``_add_flow`` creates. The caller has loaded what this needs."""
    ref = (new.queue, new.id)
    old = work.jobs[ref]
    known = old or work.stubs.get(ref)
    if known is not None:
        seen = _answer_known(work, known, new)
        if seen is not None:
            return seen
    elif work.kept.get(ref, 0) > work.now_ms:
        work.note_of(new.queue, EventType.DEDUPLICATED, new.id, new.task)
        return rq.Added(AddOutcome.DUPLICATE, None)
    options = new.options
    if options.unique is not None:
        held = unique_keys.answer(work, new)
        if held is not None:
            return held
    refusal = refuses(work, new) if options.group is not None else None
    if refusal is not None:
        return rq.Added(refusal, None)
    if old is not None:
        change_rules.remove(old, work)
        drop(work, old)
    before = unique_keys.runs_before(work, new) if options.unique is not None else None
    if before is not None:
        new = msgspec.structs.replace(new, depends_on=[*new.depends_on, before])
    job = transitions.create(new, work, after_ms=known.enqueued_ms if known is not None else 0)
    if known is not None and work.stubs.pop(ref, None) is not None:
        work.put_row(Table.STUB, ref, None)
    work.effects.count(job.queue, job.task, "enqueued")
    take_in(work, job)
    if before is not None:
        flows.follow(work, job, before)
    return rq.Added(_QUEUED, job.state, job.enqueued_ms, job.due_ms)


def take_in(work: UnitOfWork, job: JobRecord) -> None:
    """Save a new record, list its queue from now on, and give the job its unique key."""
    work.jobs[job.queue, job.id] = job
    keep_queue(work, work.queues[job.queue])
    if job.options.unique is not None:
        unique_keys.take(work, job, job.options.unique)
    save(work, job, None, _MADE)


def keep_queue(work: UnitOfWork, queue: QueueView) -> None:
    """List a queue once it has had a job."""
    if not (queue.exists and queue.row.known):
        queue.row.known = True
        work.put_queue(queue)


def _answer_known(
    work: UnitOfWork, old: JobRecord, new: NewJob, otherwise: AddOutcome | None = None
) -> rq.Added | None:
    """The answer for an id that already has a record; None if the new job replaces that record.

    ``otherwise`` is the outcome to use instead of None.
    """
    outcome = transitions.answer_known(old, new, work.now_ms) or otherwise
    if outcome is None:
        return None
    if outcome is AddOutcome.QUEUED:
        return rq.Added(outcome, old.state, old.enqueued_ms, old.due_ms)
    work.record_event(old, EventType.DEDUPLICATED)
    return rq.Added(outcome, old.state, old.enqueued_ms, old.due_ms, view(old, work.now_ms))


def _add_flow(work: UnitOfWork, jobs: list[NewJob]) -> Verb[list[rq.Added]]:
    """Add all jobs, then all edges. An invalid flow is refused before anything changes."""
    fresh, known = flows.sort(work, jobs)
    yield from flows.load(work, fresh, known)
    flows.check(work, fresh, known)
    answers = []
    made: set[JobRef] = set()
    for new in jobs:
        ref = JobRef(new.queue, new.id)
        answers.append(_answer_made(work, new) if ref in made else add_one(work, new))
        if fresh.get(ref) is new:
            made.add(ref)
    flows.link(work, fresh, known)
    for new, answer in zip(jobs, answers, strict=True):
        job = work.jobs[JobRef(new.queue, new.id)]
        if job is not None and answer.record is None:
            answer.state, answer.due_ms = job.state, job.due_ms
    return answers


def _answer_made(work: UnitOfWork, new: NewJob) -> rq.Added:
    """The answer for the second mention of a job in a flow: a duplicate, even if the job has ended."""
    old = work.known(JobRef(new.queue, new.id))
    assert old is not None, "this request has created it"
    answer = _answer_known(work, old, new, AddOutcome.DUPLICATE)
    assert answer is not None, "a job of this request is never replaced"
    return answer
