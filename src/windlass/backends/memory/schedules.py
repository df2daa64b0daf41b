"""Schedules of the reference store."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any, NamedTuple

from windlass.backend import requests as rq
from windlass.backend import schedules as sq
from windlass.backends.memory.journal import Journal, Table
from windlass.core import schedules as rules
from windlass.core.job import JobRecord, JobRef, NewJob
from windlass.core.schedules import ScheduleRecord
from windlass.core.states import FINISHED
from windlass.core.transitions import Scribe


class Jobs(NamedTuple):
    """What schedules ask of the store that they belong to."""

    find: Callable[[JobRef], JobRecord | None]
    add_one: Callable[[NewJob, Scribe], rq.Added]
    make_known: Callable[[str], None]
    tell: Callable[[str], None]


class MemorySchedules:
    """All schedules of one namespace, by queue and name."""

    def __init__(self, journal: Journal, jobs: Jobs) -> None:
        self._journal = journal
        self._jobs = jobs
        self.records: dict[tuple[str, str], ScheduleRecord] = {}

    def verbs(self) -> dict[type[Any], Callable[[Any, Scribe], Any]]:
        return {
            sq.PutSchedule: self._put,
            sq.ListSchedules: self._list,
            sq.RemoveSchedule: self._remove,
            sq.PauseSchedule: self._pause,
            sq.DueSchedules: self._due,
            sq.FireSchedule: self._fire,
        }

    def forget_queue(self, queue: str) -> None:
        """The queue itself was removed, and its schedules with it."""
        for key in [key for key in self.records if key[0] == queue]:
            del self.records[key]
            self._journal.row(Table.SCHEDULE, *key)

    def _put(self, request: sq.PutSchedule, scribe: Scribe) -> ScheduleRecord:
        new = request.schedule
        record = rules.put(self.records.get((new.queue, new.name)), new)
        self.records[new.queue, new.name] = record
        self._journal.row(Table.SCHEDULE, new.queue, new.name)
        self._jobs.make_known(new.queue)
        self._jobs.tell("schedules")
        return copy(record)

    def _list(self, request: sq.ListSchedules, scribe: Scribe) -> sq.SchedulePage:
        found = [
            (key, record)
            for key, record in sorted(self.records.items())
            if request.queue in (None, record.queue)
            and request.name in (None, record.name)
            and request.source in (None, record.source)
            and (request.cursor is None or "\n".join(key) > request.cursor)
        ]
        page = found[: request.limit]
        cursor = "\n".join(page[-1][0]) if len(found) > len(page) else None
        return sq.SchedulePage([copy(record) for _, record in page], scribe.now_ms, cursor)

    def _remove(self, request: sq.RemoveSchedule, scribe: Scribe) -> bool:
        record = self.records.get((request.queue, request.name))
        if record is None or request.source not in (None, record.source):
            return False
        del self.records[request.queue, request.name]
        self._journal.row(Table.SCHEDULE, request.queue, request.name)
        return True

    def _pause(self, request: sq.PauseSchedule, scribe: Scribe) -> bool:
        record = self.records.get((request.queue, request.name))
        if record is None:
            return False
        rules.pause(record, request.paused, request.next_ms)
        self._journal.row(Table.SCHEDULE, record.queue, record.name)
        self._jobs.tell("schedules")
        return True

    def _due(self, request: sq.DueSchedules, scribe: Scribe) -> sq.Due:
        coming = sorted(
            (record.next_ms, record.queue, record.name)
            for record in self.records.values()
            if record.next_ms is not None and not record.paused
        )
        due = [entry for entry in coming if entry[0] <= scribe.now_ms][: request.limit]
        later = coming[len(due) :]
        return sq.Due(
            [copy(self.records[queue, name]) for _, queue, name in due],
            scribe.now_ms,
            max(later[0][0] - scribe.now_ms, 0) if later else None,
        )

    def _fire(self, request: sq.FireSchedule, scribe: Scribe) -> sq.Fired:
        record = self.records.get((request.queue, request.name))
        if record is None or (request.slot_ms is not None and not rules.may_fire(record, request.slot_ms)):
            return sq.Fired(False)
        jobs = request.jobs
        if request.slot_ms is not None:
            last = self._jobs.find(JobRef(record.queue, record.last_job_id or ""))
            unfinished = last is not None and last.state not in FINISHED
            jobs = rules.jobs_to_add(record, jobs, last_unfinished=unfinished)
        for new in jobs:
            self._jobs.add_one(new, scribe)
        if request.slot_ms is None:
            record.last_ms, record.last_job_id = scribe.now_ms, jobs[-1].id
        else:
            rules.advance(record, request.slots, jobs, request.next_ms)
        self._journal.row(Table.SCHEDULE, record.queue, record.name)
        return sq.Fired(True, len(jobs))
