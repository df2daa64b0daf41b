"""Schedules. The decisions are those of ``core.schedules``, on records that are kept whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from windlass.backend import requests as rq
from windlass.backend import schedules as sq
from windlass.backends.sqlite.rows import pack
from windlass.backends.sqlite.verbs_lifecycle import add
from windlass.core import damage
from windlass.core import schedules as rules
from windlass.core.job import JobRef
from windlass.core.schedules import ScheduleRecord
from windlass.core.states import FINISHED
from windlass.errors import ConfigError

if TYPE_CHECKING:
    from windlass.backends.sqlite.tx import Step
    from windlass.backends.sqlite.verbs_reads import Snapshot

TOPIC = "schedules"
unpack = msgspec.msgpack.Decoder(ScheduleRecord).decode


def put(step: Step, request: sq.PutSchedule) -> ScheduleRecord:
    new = request.schedule
    record = rules.put(_find(step, new.queue, new.name), new)
    _save(step, record)
    step.known[new.queue] = True
    step.topics.add(TOPIC)
    return record


def remove(step: Step, request: sq.RemoveSchedule) -> bool:
    record = _find(step, request.queue, request.name)
    if request.source is not None and (record is None or record.source != request.source):
        return False
    num = step.queues.num(request.queue)  # one that cannot be read can still be removed
    return num is not None and step.run("schedule_delete", num, request.name) > 0


def pause(step: Step, request: sq.PauseSchedule) -> bool:
    record = _find(step, request.queue, request.name)
    if record is None:
        return False
    if rules.pause(record, request.paused, request.next_ms):
        _save(step, record)
        step.topics.add(TOPIC)
    return True


def fire(step: Step, request: sq.FireSchedule) -> sq.Fired:
    record = _find(step, request.queue, request.name)
    if record is None or (request.slot_ms is not None and not rules.may_fire(record, request.slot_ms)):
        return sq.Fired(False)
    jobs = request.jobs
    if request.slot_ms is not None:
        last = step.find(JobRef(record.queue, record.last_job_id)) if record.last_job_id else None
        unfinished = last is not None and last.state not in FINISHED
        jobs = rules.jobs_to_add(record, jobs, last_unfinished=unfinished)
    if jobs:
        add(step, rq.Add(jobs=jobs, now_ms=request.now_ms))
        step.plain = False  # more than an add
    if request.slot_ms is None:
        record.last_ms, record.last_job_id = step.now_ms, jobs[-1].id
    else:
        rules.advance(record, request.slots, jobs, request.next_ms)
    _save(step, record)
    return sq.Fired(True, len(jobs))


def _find(step: Step, queue: str, name: str) -> ScheduleRecord | None:
    num = step.queues.num(queue)
    row = None if num is None else step.one("schedule", num, name)
    return None if row is None else damage.read_or_none(row[0], unpack, f"schedule {name} of queue {queue}")


def _save(step: Step, record: ScheduleRecord) -> None:
    due_ms = None if record.paused else record.next_ms
    num = step.queue(record.queue)
    step.run("schedule_save", num, record.name, record.source, due_ms, pack(record))


# --- reads ------------------------------------------------------------------------------------------


def list_schedules(snap: Snapshot, request: sq.ListSchedules) -> sq.SchedulePage:
    after = ["", ""] if request.cursor is None else request.cursor.split("\n")
    if len(after) != 2:
        raise ConfigError("cursor", "one that came with a page", request.cursor)
    wanted = (request.queue, request.name, request.source)
    rows = snap.all("schedule_list", *wanted, *after, request.limit + 1)
    shown = rows[: request.limit]
    page = list(
        damage.readable(shown, lambda row: unpack(row[2]), lambda row: f"schedule {row[1]} of queue {row[0]}")
    )
    cursor = f"{shown[-1][0]}\n{shown[-1][1]}" if shown and len(rows) > len(shown) else None
    return sq.SchedulePage(page, snap.now_ms, cursor)


def due(snap: Snapshot, request: sq.DueSchedules) -> sq.Due:
    rows = snap.all("schedule_due", request.limit + 1)
    count = min(sum(row[0] <= snap.now_ms for row in rows), request.limit)
    ripe = damage.readable(
        rows[:count], lambda row: unpack(row[1]), lambda row: f"schedule {row[3]} of queue {row[2]}"
    )
    later = rows[count:]
    return sq.Due(list(ripe), snap.now_ms, max(later[0][0] - snap.now_ms, 0) if later else None)
