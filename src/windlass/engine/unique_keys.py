"""Unique keys: which job holds a key, and how an add with a held key is answered (``core.unique_rules``)."""

from __future__ import annotations

from windlass.backend import limit_requests as lrq
from windlass.backend import requests as rq
from windlass.core import change_rules, unique_rules
from windlass.core.edges import Dependency, OnFailure
from windlass.core.job import EventType, JobRecord, JobRef, NewJob
from windlass.core.limit_rules import wants_rank
from windlass.core.option_values import StoredUnique
from windlass.core.outcome import AddOutcome
from windlass.core.unique_rules import KeyEntry, Verdict
from windlass.engine.effects import Kind, Table
from windlass.engine.reads import Reads, Verb
from windlass.engine.saving import is_ordered, refuses, save_regrouped
from windlass.engine.unit_of_work import UnitOfWork
from windlass.engine.views import view


def entry_of(work: UnitOfWork, new: NewJob) -> KeyEntry | None:
    """The entry of a new job's unique key; None if the job has no key, or the key is free."""
    wanted = new.options.unique
    entry: KeyEntry | None = None if wanted is None else work.rows[Table.KEY, (new.queue, wanted.key)]
    return entry


def holder_ref(work: UnitOfWork, new: NewJob) -> JobRef | None:
    """The job that holds the unique key of a new job, if any."""
    entry = entry_of(work, new)
    return None if entry is None else JobRef(new.queue, entry.job_id)


def _verdict(work: UnitOfWork, new: NewJob) -> tuple[Verdict, str]:
    wanted, entry = new.options.unique, entry_of(work, new)
    if wanted is None or entry is None:
        return Verdict.NEW, ""
    holder = work.jobs[JobRef(new.queue, entry.job_id)]
    return unique_rules.decide(wanted, entry, holder, new.request_id, work.now_ms), entry.job_id


def answered_by(work: UnitOfWork, new: NewJob) -> str | None:
    """The id of the key's holder, if the add is answered with it instead of creating a job."""
    verdict, holder_id = _verdict(work, new)
    return None if verdict in (Verdict.NEW, Verdict.FOLLOW) else holder_id


def runs_before(work: UnitOfWork, new: NewJob) -> Dependency | None:
    """The running job that a new job must wait for (``keep_last``), if any."""
    verdict, holder_id = _verdict(work, new)
    return Dependency(new.queue, holder_id, OnFailure.IGNORE) if verdict is Verdict.FOLLOW else None


def answer(work: UnitOfWork, new: NewJob) -> rq.Added | None:
    """The answer to an add whose key is held; None if a new job must be created."""
    verdict, holder_id = _verdict(work, new)
    if verdict in (Verdict.NEW, Verdict.FOLLOW):
        return None
    holder = work.jobs[JobRef(new.queue, holder_id)]
    if verdict is Verdict.DUPLICATE:
        _extend(work, new)
        if holder is None:
            work.note_of(new.queue, EventType.DEDUPLICATED, holder_id, new.task)
            return rq.Added(AddOutcome.DUPLICATE, None)
        work.record_event(holder, EventType.DEDUPLICATED)
        return _about(work, AddOutcome.DUPLICATE, holder)
    assert holder is not None, "only a pending holder can be replaced"
    if verdict is Verdict.REPLACE:
        left = change_rules.not_taken(holder, new, full=refuses(work, new) is AddOutcome.REFUSED)
        if is_ordered(work, holder if "group" in left else new) and wants_rank(new):
            return rq.Added(AddOutcome.OUT_OF_ORDER, None)
        _replace(work, holder, new, left)
    answered, entry = _about(work, AddOutcome.REPLACED, holder), entry_of(work, new)
    answered.not_taken = entry.not_taken if entry is not None else ()
    return answered


def _extend(work: UnitOfWork, new: NewJob) -> None:
    wanted, entry = new.options.unique, entry_of(work, new)
    assert wanted is not None and entry is not None, "its key is held"
    longer = unique_rules.extended(entry, wanted, work.now_ms)
    if longer is not None:
        work.put_row(Table.KEY, (new.queue, wanted.key), longer)


def _replace(work: UnitOfWork, holder: JobRecord, new: NewJob, left: tuple[str, ...]) -> None:
    wanted = new.options.unique
    assert wanted is not None, "its key is held"
    before, group = holder.state, holder.options.group
    change_rules.replace(holder, new, work, left)
    entry = unique_rules.entry_for(holder, wanted, work.now_ms)
    entry.request_id, entry.not_taken = new.request_id, left
    work.put_row(Table.KEY, (new.queue, wanted.key), entry)
    save_regrouped(work, holder, before, group, Kind.REPLACED)


def _about(work: UnitOfWork, outcome: AddOutcome, holder: JobRecord) -> rq.Added:
    return rq.Added(outcome, holder.state, holder.enqueued_ms, holder.due_ms, view(holder, work.now_ms))


def take(work: UnitOfWork, job: JobRecord, wanted: StoredUnique) -> None:
    """Give a new job its unique key."""
    work.put_row(Table.KEY, (job.queue, wanted.key), unique_rules.entry_for(job, wanted, work.now_ms))


def take_again(work: UnitOfWork, job: JobRecord) -> None:
    """Give a finished job that is retried by hand its unique key again, unless another job holds it."""
    wanted = job.options.unique
    if wanted is None or not unique_rules.takes_key_again(job):
        return
    entry: KeyEntry | None = work.rows[Table.KEY, (job.queue, wanted.key)]
    if entry is None or not entry.is_live(work.now_ms):
        take(work, job, wanted)


def free(work: UnitOfWork, request: lrq.FreeUniqueKey) -> Verb[bool]:
    """Free a unique key. False if it was not held. Reads: 1."""
    key = (request.queue, request.key)
    yield Reads(rows=[(Table.KEY, key)])
    entry: KeyEntry | None = work.rows[Table.KEY, key]
    if entry is None:
        return False
    work.put_row(Table.KEY, key, None)
    return entry.is_live(work.now_ms)
