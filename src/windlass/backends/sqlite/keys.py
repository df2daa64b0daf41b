"""Unique keys: what ``core.unique`` decides, on a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windlass.backend import requests as rq
from windlass.backends.sqlite.gates import GROUPED
from windlass.backends.sqlite.rows import view
from windlass.core import limits, transitions, unique
from windlass.core.edges import Dependency, OnFailure
from windlass.core.job import EventType, JobRef
from windlass.core.outcome import AddOutcome
from windlass.core.transitions import Note
from windlass.core.unique import KeyEntry, Verdict

if TYPE_CHECKING:
    from windlass.backends.sqlite.tx import Step
    from windlass.core.job import JobRecord, NewJob


def entry_of(step: Step, num: int, key: str) -> KeyEntry | None:
    """Who holds a key, or held it."""
    row = step.one("unique_key", num, key)
    if row is None:
        return None
    job_id, until_ms, request_id, left = row
    return KeyEntry(job_id, until_ms, request_id, tuple(left.split(",")) if left else ())


def answer(step: Step, num: int, new: NewJob) -> rq.Added | None:
    """The answer to an add whose key is held; None when a new job is to be made."""
    wanted = new.options.unique
    if wanted is None:
        return None
    entry = entry_of(step, num, wanted.key)
    holder = step.find(JobRef(new.queue, entry.job_id)) if entry else None
    verdict = unique.decide(wanted, entry, holder, new.request_id, step.now_ms)
    if entry is None or verdict in (Verdict.NEW, Verdict.FOLLOW):
        return None
    if verdict is Verdict.DUPLICATE:
        if holder is None:
            step.notes.append(Note(new.queue, EventType.DEDUPLICATED, entry.job_id, new.task))
            return rq.Added(AddOutcome.DUPLICATE, None)
        step.note(holder, EventType.DEDUPLICATED)
        return _about(AddOutcome.DUPLICATE, holder, step)
    assert holder is not None, "only a pending holder can be replaced"
    if verdict is Verdict.REPLACE:
        full = new.options.group is not None and step.gates.refuses(num, new) is AddOutcome.REFUSED
        left = transitions.not_taken(holder, new, full=full)
        if step.gates.is_ordered(num, holder if "group" in left else new) and limits.wants_rank(new):
            return rq.Added(AddOutcome.OUT_OF_ORDER, None)
        _replace(step, num, holder, new, left)
        entry = unique.entry_for(holder, wanted, step.now_ms)
        entry.request_id, entry.not_taken = new.request_id, left
        _save(step, num, wanted.key, entry)
    answer = _about(AddOutcome.REPLACED, holder, step)
    answer.not_taken = entry.not_taken
    return answer


def _replace(step: Step, num: int, holder: JobRecord, new: NewJob, left: tuple[str, ...]) -> None:
    state, group = holder.state, holder.options.group
    transitions.replace(holder, new, step, left)
    if holder.options.group is not None:
        step.mark(new.queue, GROUPED)
    step.run("job_replace", holder.task, holder.codec, holder.seq)
    step.save_payload(holder)
    step.save([(holder, state)])
    if group is not None and group != holder.options.group:
        step.gates.advance(num, group)


def _verdict(step: Step, num: int, new: NewJob) -> tuple[Verdict, str]:
    wanted = new.options.unique
    entry = entry_of(step, num, wanted.key) if wanted is not None else None
    if wanted is None or entry is None:
        return Verdict.NEW, ""
    holder = step.find(JobRef(new.queue, entry.job_id))
    return unique.decide(wanted, entry, holder, new.request_id, step.now_ms), entry.job_id


def answered_by(step: Step, num: int, new: NewJob) -> str | None:
    """The job whose key will answer instead of a new job."""
    verdict, holder_id = _verdict(step, num, new)
    return None if verdict in (Verdict.NEW, Verdict.FOLLOW) else holder_id


def runs_before(step: Step, num: int, new: NewJob) -> Dependency | None:
    """The running job that a new one is kept behind (``keep_last``)."""
    verdict, holder_id = _verdict(step, num, new)
    return Dependency(new.queue, holder_id, OnFailure.IGNORE) if verdict is Verdict.FOLLOW else None


def _about(outcome: AddOutcome, holder: JobRecord, step: Step) -> rq.Added:
    shown = view(holder, step.now_ms)
    return rq.Added(outcome, holder.state, holder.enqueued_ms, holder.due_ms, shown)


def _save(step: Step, num: int, key: str, entry: KeyEntry) -> None:
    left = ",".join(entry.not_taken)
    step.run("unique_key_save", num, key, entry.job_id, entry.until_ms, entry.request_id, left)


def take(step: Step, num: int, job: JobRecord) -> None:
    """A job that was just added holds its key from now on."""
    wanted = job.options.unique
    if wanted is not None:
        _save(step, num, wanted.key, unique.entry_for(job, wanted, step.now_ms))


def take_again(step: Step, num: int, job: JobRecord) -> None:
    """A finished job that is retried by hand takes its key, unless somebody else has it."""
    wanted = job.options.unique
    if wanted is None or not unique.takes_key_again(job):
        return
    entry = entry_of(step, num, wanted.key)
    if entry is None or not entry.is_live(step.now_ms):
        _save(step, num, wanted.key, unique.entry_for(job, wanted, step.now_ms))


def settle(step: Step, num: int, job: JobRecord, *, removed: bool = False) -> None:
    """Free the key of a job that no longer holds it."""
    wanted = job.options.unique
    if wanted is not None and unique.frees_key(job, removed=removed):
        step.run("unique_key_free_of", num, wanted.key, job.id)
