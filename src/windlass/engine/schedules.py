"""Recurring schedules: store them, and add the jobs of due slots (rules: ``core.schedule_rules``)."""

from __future__ import annotations

from copy import copy

from windlass.backend import schedule_requests as sq
from windlass.core import schedule_rules as rules
from windlass.core.job import JobRef
from windlass.core.outcome import AddOutcome
from windlass.core.schedule_rules import ScheduleRecord
from windlass.core.states import FINISHED
from windlass.engine import adding
from windlass.engine.effects import Entry, Table
from windlass.engine.reads import Reads, Verb
from windlass.engine.unit_of_work import UnitOfWork


def _entry(queue: str, name: str) -> Entry:
    return Table.SCHEDULE, (queue, name)


def put(work: UnitOfWork, request: sq.PutSchedule) -> Verb[ScheduleRecord]:
    """Create or update a schedule. Returns it as stored. Reads: 1."""
    new = request.schedule
    entry = _entry(new.queue, new.name)
    yield Reads(queues=[new.queue], rows=[entry])
    record = rules.put(work.rows[entry], new)
    work.put_row(*entry, record)
    adding.keep_queue(work, work.queues[new.queue])
    work.notify("schedules")
    return copy(record)


def remove(work: UnitOfWork, request: sq.RemoveSchedule) -> Verb[bool]:
    """Remove a schedule. False if there is none, or it is from another ``source``. Reads: 1."""
    entry = _entry(request.queue, request.name)
    yield Reads(rows=[entry])
    record: ScheduleRecord | None = work.rows[entry]
    if record is None or request.source not in (None, record.source):
        return False
    work.put_row(*entry, None)
    return True


def pause(work: UnitOfWork, request: sq.PauseSchedule) -> Verb[bool]:
    """Pause or resume a schedule. False if there is none. Reads: 1."""
    entry = _entry(request.queue, request.name)
    yield Reads(rows=[entry])
    if work.rows[entry] is None:
        return False
    record: ScheduleRecord = copy(work.rows[entry])
    rules.pause(record, request.paused, request.next_ms)
    work.put_row(*entry, record)
    work.notify("schedules")
    return True


def fire(work: UnitOfWork, request: sq.FireSchedule) -> Verb[sq.Fired]:
    """Add the jobs of a slot, or (``slot_ms`` None) run a schedule by hand.

    A slot fires only while it is the schedule's next one, so it fires once, however many workers try.
    Reads: 2 for plain jobs, 4 at most.
    """
    entry = _entry(request.queue, request.name)
    yield Reads(rows=[entry])
    stored: ScheduleRecord | None = work.rows[entry]
    if stored is None or (request.slot_ms is not None and not rules.may_fire(stored, request.slot_ms)):
        return sq.Fired(False)
    record = copy(stored)
    last = JobRef(record.queue, record.last_job_id or "")
    yield from adding.load(work, request.jobs, besides=[last])
    jobs = request.jobs
    if request.slot_ms is not None:
        job = work.jobs[last]
        unfinished = job is not None and job.state not in FINISHED
        jobs = rules.jobs_to_add(record, jobs, last_unfinished=unfinished)
    outcomes = [adding.add_one(work, new).outcome for new in jobs]
    added = [(number, jobs[number]) for number, one in enumerate(outcomes) if one is AddOutcome.QUEUED]
    if request.slot_ms is not None:
        rules.advance(record, request.slots, added, request.next_ms)
    elif added:
        record.last_ms, record.last_job_id = work.now_ms, added[-1][1].id
    work.put_row(*entry, record)
    return sq.Fired(True, len(added))
