"""Encodes the event log and the history log as chunks of runs.

A request that changes many jobs at once (for example, sixteen jobs start) makes records that are nearly
equal. A run stores such records as their common fields and a list of the fields that differ. A chunk is a
MessagePack array of runs. The records of a chunk have consecutive ids that begin with its ``first_id``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter, itemgetter
from typing import Any, TypeVar

import msgspec
from msgspec.structs import astuple

from windlass.backends.sqlite.rows import pack
from windlass.core.job import (
    AlikeAttempts,
    AttemptOutcome,
    AttemptRecord,
    Event,
    EventType,
    OwnFields,
    alike_records,
)
from windlass.core.queue_time import QueueTime
from windlass.core.transitions import EventData

R = TypeVar("R")
Item = TypeVar("Item")

#: The most records in one chunk. A reader has to unpack the whole chunk to get one of them.
CHUNK = 1_000

#: An event of one job, or of several jobs of a task in order: at_ms, type, id or ids, task, data.
EventRun = tuple[int, EventType, str | list[str], str, EventData]


class AttemptRun(msgspec.Struct, array_like=True):
    """Attempts that differ only in ``OwnFields``. New fields are only ever appended."""

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
    attempts: list[OwnFields]
    schema_version: int = 1
    #: The fields below were added in version 2.
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
    #: Added in version 3.
    queue_time: QueueTime | None = None


_FIELDS = AttemptRecord.__struct_fields__
_STORED = AttemptRun.__struct_fields__
_BEFORE = _STORED.index("attempts")
#: ``_common`` and ``_own`` pick the fields that a run shares, and the fields that differ, from a record.
_common = itemgetter(*(_FIELDS.index(name) for name in _STORED if name != "attempts"))
_own = itemgetter(*map(_FIELDS.index, ("run_id", "job_id", "enqueued_ms", "ready_ms", "duration_ms")))
#: Picks the fields of a record from a run. ``alike_records`` sets those that differ.
_of_run = itemgetter(*(_STORED.index(name) if name in _STORED else _BEFORE for name in _FIELDS))


def runs_of(ended: list[AlikeAttempts]) -> list[AttemptRun]:
    """Group consecutive attempts with equal common fields into runs."""
    runs: list[AttemptRun] = []
    before, attempts = None, list[OwnFields]()
    for alike in ended:
        fields = astuple(alike.first)
        common = _common(fields)
        if common != before:
            before, attempts = common, []
            runs.append(AttemptRun(*common[:_BEFORE], attempts, *common[_BEFORE:]))  # type: ignore[call-arg]
        attempts += (_own(fields), *alike.more)
    return runs


def event_chunks(runs: list[EventRun], count: int) -> list[tuple[int, bytes]]:
    """Encode ``count`` events as chunks. Returns the number of events and the bytes of each chunk."""
    if count <= CHUNK:
        return [(count, pack(runs))]
    single = [(run[0], run[1], job_id, run[3], run[4]) for run in runs for job_id in _ids_of(run)]
    return [(len(part), pack(part)) for part in _parts(single)]


def history_chunks(ended: list[AlikeAttempts]) -> list[tuple[int, bytes]]:
    """Encode attempts as chunks. Returns the number of attempts and the bytes of each chunk."""
    count = sum([1 + len(alike.more) for alike in ended])
    if count <= CHUNK:
        return [(count, pack(runs_of(ended)))]
    single = [AlikeAttempts(record, []) for alike in ended for record in alike.records()]
    return [(len(part), pack(runs_of(part))) for part in _parts(single)]


def _parts(records: list[Any]) -> list[list[Any]]:
    return [records[first : first + CHUNK] for first in range(0, len(records), CHUNK)]


_event_runs = msgspec.msgpack.Decoder(list[EventRun]).decode
_events = msgspec.msgpack.Decoder(list[Event]).decode
_attempt_runs = msgspec.msgpack.Decoder(list[AttemptRun]).decode
_attempts = msgspec.msgpack.Decoder(list[AttemptRecord]).decode


def unpack_events(first_id: int, chunk: bytes, start: int = 0, count: int = CHUNK) -> list[Event]:
    """Return ``count`` events of a chunk, beginning at index ``start``. Skipped events cost almost nothing.

    Files of releases before runs hold single events.
    """
    try:
        runs = _event_runs(chunk)
    except msgspec.ValidationError:
        return _events(chunk)[start : start + count]
    return [
        Event(number, at_ms, kind, job_id, task, data)
        for (at_ms, kind, _, task, data), first, ids in _between(runs, _ids_of, start, count)
        for number, job_id in enumerate(ids, first_id + first)
    ]


def unpack_history(chunk: bytes, start: int = 0, count: int = CHUNK) -> list[AttemptRecord]:
    """Return ``count`` attempt records of a chunk, like ``unpack_events``."""
    try:
        runs = _attempt_runs(chunk)
    except msgspec.ValidationError:
        return _attempts(chunk)[start : start + count]
    return [
        record
        for run, _, own in _between(runs, attrgetter("attempts"), start, count)
        for record in alike_records(list(_of_run(astuple(run))), own)
    ]


def _ids_of(run: EventRun) -> list[str]:
    return [run[2]] if isinstance(run[2], str) else run[2]


def _between(
    runs: Iterable[R], items_of: Callable[[R], list[Item]], start: int, count: int
) -> Iterator[tuple[R, int, list[Item]]]:
    """Yield runs that have some of the ``count`` items from index ``start`` on: run, first index, items."""
    begin, end = 0, start + count
    for run in runs:
        items = items_of(run)
        skip = max(start - begin, 0)
        part = items[skip : end - begin]
        if part:
            yield run, begin + skip, part
        begin += len(items)
        if begin >= end:
            return
