"""How the event log and the history log are stored: in chunks of runs.

What one request does to many jobs at once (sixteen start, sixteen complete) makes records that are nearly
alike. A run stores them once: what the records have in common, then a list of what differs. A chunk is a
MessagePack array of runs; the records of a chunk are numbered one by one from its ``first_id`` on.
"""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import Any

import msgspec
from msgspec.structs import astuple

from windlass.backends.sqlite.rows import pack
from windlass.core.job import AttemptOutcome, AttemptRecord, Event, EventType
from windlass.core.queue_time import QueueTime
from windlass.core.transitions import EventData

#: Most records in one chunk of a log: bounds what a reader has to unpack for one of them.
CHUNK = 1_000

#: An event of one job, or of several jobs of one task in this order: when, then a note without its queue.
EventRun = tuple[int, EventType, str | list[str], str, EventData]
#: What differs in a run of attempts: run_id, job_id, enqueued_ms, ready_ms, duration_ms.
Attempt = tuple[str, str, int, int, int | None]


class AttemptRun(msgspec.Struct, array_like=True):
    """Attempts of one task that differ in little. Fields are only ever appended."""

    queue: str
    task: str
    group: str | None
    tags: tuple[str, ...]
    worker: str | None
    attempt: int
    delivery: int
    started_ms: int | None
    finished_ms: int
    outcome: AttemptOutcome
    error_class: str | None
    error_fingerprint: str | None
    attempts: list[Attempt]
    schema_version: int = 1
    #: From here on since version 2.
    max_attempts: int | None = None
    worker_version: str | None = None
    worker_host: str | None = None
    error_message: str | None = None
    priority: int = 0
    schedule: str | None = None
    slot_ms: int | None = None
    parent: str | None = None
    root: str | None = None
    cost: int = 1
    #: Since version 3.
    queue_time: QueueTime | None = None

    def records(self, start: int = 0, end: int | None = None) -> list[AttemptRecord]:
        """The attempts one by one, or those from number ``start`` up to ``end``."""
        started_ms = self.started_ms
        return [
            AttemptRecord(
                run_id,
                job_id,
                self.attempt,
                self.delivery,
                self.queue,
                self.task,
                self.group,
                self.tags,
                self.worker,
                enqueued_ms,
                ready_ms,
                started_ms,
                self.finished_ms,
                None if started_ms is None else started_ms - ready_ms,
                duration_ms,
                self.outcome,
                self.error_class,
                self.error_fingerprint,
                self.schema_version,
                self.max_attempts,
                self.worker_version,
                self.worker_host,
                self.error_message,
                self.priority,
                self.schedule,
                self.slot_ms,
                self.parent,
                self.root,
                self.cost,
                self.queue_time,
            )
            for run_id, job_id, enqueued_ms, ready_ms, duration_ms in self.attempts[start:end]
        ]


#: What the attempts of a run have in common, out of a record's values, and what differs.
_FIELDS = AttemptRecord.__struct_fields__
_common = itemgetter(*(_FIELDS.index(name) for name in AttemptRun.__struct_fields__ if name != "attempts"))
_own = itemgetter(*map(_FIELDS.index, ("run_id", "job_id", "enqueued_ms", "ready_ms", "duration_ms")))
#: How many of the former stand before the attempts of a run.
_BEFORE = AttemptRun.__struct_fields__.index("attempts")


def runs_of(ended: list[AttemptRecord]) -> list[AttemptRun]:
    """Attempts in their order, as few runs."""
    return [_run(common, list(map(_own, its))) for common, its in groupby(map(astuple, ended), _common)]


def _run(common: tuple[Any, ...], attempts: list[Attempt]) -> AttemptRun:
    return AttemptRun(*common[:_BEFORE], attempts, *common[_BEFORE:])  # type: ignore[call-arg]


def event_chunks(runs: list[EventRun], count: int) -> list[tuple[int, bytes]]:
    """``count`` events as chunks: how many events each has, and its bytes."""
    if count <= CHUNK:
        return [(count, pack(runs))]
    single = [
        (at_ms, kind, job_id, task, data)
        for at_ms, kind, ids, task, data in runs
        for job_id in ([ids] if isinstance(ids, str) else ids)
    ]
    return [(len(part), pack(part)) for part in _parts(single)]


def history_chunks(ended: list[AttemptRecord]) -> list[tuple[int, bytes]]:
    """Attempts as chunks: how many attempts each has, and its bytes."""
    return [(len(part), pack(runs_of(part))) for part in _parts(ended)]


def _parts(records: list[Any]) -> list[list[Any]]:
    if len(records) <= CHUNK:
        return [records]
    return [records[first : first + CHUNK] for first in range(0, len(records), CHUNK)]


_event_runs = msgspec.msgpack.Decoder(list[EventRun]).decode
_events = msgspec.msgpack.Decoder(list[Event]).decode
_attempt_runs = msgspec.msgpack.Decoder(list[AttemptRun]).decode
_attempts = msgspec.msgpack.Decoder(list[AttemptRecord]).decode


def unpack_events(first_id: int, chunk: bytes, start: int = 0, count: int = CHUNK) -> list[Event]:
    """The events of a chunk: ``count`` from its ``start``th on; the others cost next to nothing.

    Files of before there were runs hold them one by one.
    """
    try:
        runs = _event_runs(chunk)
    except msgspec.ValidationError:
        return _events(chunk)[start : start + count]
    events: list[Event] = []
    passed, end = 0, start + count
    for at_ms, kind, ids, task, data in runs:
        jobs = [ids] if isinstance(ids, str) else ids
        begin, passed = passed, passed + len(jobs)
        if passed <= start:
            continue
        skip = max(start - begin, 0)
        events += [
            Event(number, at_ms, kind, job_id, task, data)
            for number, job_id in enumerate(jobs[skip : end - begin], first_id + begin + skip)
        ]
        if passed >= end:
            break
    return events


def unpack_history(chunk: bytes, start: int = 0, count: int = CHUNK) -> list[AttemptRecord]:
    """The attempt records of a chunk, as ``unpack_events`` does."""
    try:
        runs = _attempt_runs(chunk)
    except msgspec.ValidationError:
        return _attempts(chunk)[start : start + count]
    found: list[AttemptRecord] = []
    passed, end = 0, start + count
    for run in runs:
        begin, passed = passed, passed + len(run.attempts)
        if passed <= start:
            continue
        found += run.records(max(start - begin, 0), end - begin)
        if passed >= end:
            break
    return found
