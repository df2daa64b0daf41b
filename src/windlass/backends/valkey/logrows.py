"""Events and attempts from the entries of the two logs, see ``lua/includes/30_notes.lua``."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from windlass.backends.valkey import records, settlements
from windlass.backends.valkey.codes import ATTEMPT_OUTCOMES, EVENTS, STATES
from windlass.backends.valkey.records import decode, wrap_unreadable
from windlass.core.job import HISTORY_SCHEMA_VERSION, AttemptRecord, Event, WorkerFacts


@wrap_unreadable
def events(last: int, fields: list[bytes], after: int = 0, limit: int | None = None) -> list[Event]:
    """Up to ``limit`` events of one log entry, from the event after number ``after``.

    ``last`` is the number of the last event in the entry.
    """
    at_ms, packed_rows = decode(fields[1])
    rows = [row for packed in packed_rows for row in _unrolled(packed)]
    first = last - len(rows) + 1
    skip = max(after + 1 - first, 0)
    wanted = rows[skip:] if limit is None else rows[skip : skip + limit]
    return [_event(number, at_ms, row) for number, row in enumerate(wanted, first + skip)]


def _unrolled(row: list[Any]) -> list[list[Any]]:
    """Expand a row for equal events of several jobs into one row for each job."""
    if row[0] >= 0:
        return [row]
    return [[-row[0], job_id, *row[2:]] for job_id in row[1].split(" ")]


def _event(number: int, at_ms: int, row: list[Any]) -> Event:
    kind, names = EVENTS[row[0]]
    data = dict(zip(names, row[3:], strict=False))
    if "run_at_ms" in data:
        data["run_at_ms"] = data["run_at_ms"] or None
    if "state" in data:
        data["state"] = STATES[data["state"]].value
    return Event(number, at_ms, kind, row[1], row[2], data)


@wrap_unreadable
def attempts(
    queue: str, last: int, fields: list[bytes], after: int = 0, limit: int | None = None
) -> list[tuple[int, AttemptRecord]]:
    """Number and content of up to ``limit`` rows of one history entry, from the row after ``after``."""
    rows: list[AttemptRecord | tuple[int, int, list[Any]]] = []
    for at in range(0, len(fields), 2):
        if fields[at] == b"p":
            has_facts = fields[at + 2 : at + 3] == [b"s"]
            rows += _plain_attempts(queue, fields[at + 1], fields[at + 3] if has_facts else None)
        elif fields[at] == b"b":
            finished_ms, packed = decode(fields[at + 1])
            has_version = fields[at + 2 : at + 3] == [b"t"]
            version = decode(fields[at + 3])[0] if has_version else 0
            rows += [(version, finished_ms, row) for row in packed]
    first = last - len(rows) + 1
    skip = max(after + 1 - first, 0)
    wanted = rows[skip:] if limit is None else rows[skip : skip + limit]
    return [
        (number, row if isinstance(row, AttemptRecord) else _attempt(queue, *row))
        for number, row in enumerate(wanted, first + skip)
    ]


#: After the id of a plain job: duration, kind and sequence (skipped), enqueued, started, length of token.
_RUN = struct.Struct(">hI8xHIHIB").unpack_from


def _plain_attempts(queue: str, packed: bytes, said: bytes | None) -> Iterator[AttemptRecord]:
    """Read the rows of plain jobs.

    ``said`` is the next field, with the facts of their worker; earlier releases did not write it.
    """
    version = 1 if said is None else HISTORY_SCHEMA_VERSION
    facts = None if said is None else settlements.read_facts(decode(said)[0])
    most, worker_version, host = _said(facts)
    finished_ms, at, size = int.from_bytes(packed[:6], "big"), 6, len(packed)
    names, worker, task = b"", "", ""  # of the previous row; usually they are equal
    completed = ATTEMPT_OUTCOMES[1]
    while at < size:
        id_end = at + 2 + (packed[at] << 8 | packed[at + 1])
        duration, low, enqueued, enqueued_low, started, started_low, length = _RUN(packed, id_end)
        duration_ms, enqueued_ms = duration << 32 | low, enqueued << 32 | enqueued_low
        started_ms = started << 32 | started_low
        token_end = id_end + 27 + length
        task_at = token_end + 1 + packed[token_end]
        end = task_at + 1 + packed[task_at]
        if names != (found := packed[token_end:end]):
            names = found
            worker, task = packed[token_end + 1 : task_at].decode(), packed[task_at + 1 : end].decode()
        yield AttemptRecord(
            packed[id_end + 27 : token_end].decode(),
            packed[at + 2 : id_end].decode(),
            1,
            1,
            queue,
            task,
            None,
            (),
            worker or None,
            enqueued_ms,
            enqueued_ms,
            started_ms or None,
            finished_ms,
            started_ms - enqueued_ms if started_ms else None,
            None if duration_ms < 0 else duration_ms,
            completed,
            None,
            None,
            version,
            most,
            worker_version,
            host,
        )
        at = end


def _said(facts: WorkerFacts | None) -> tuple[int | None, str | None, str | None]:
    return (None, None, None) if facts is None else (facts.max_attempts, facts.version, facts.host)


def _attempt(queue: str, version: int, finished_ms: int, row: list[Any]) -> AttemptRecord:
    run_id, job_id, attempt, delivery, task, tags, worker, enqueued, ready, started, duration, outcome = row[
        :12
    ]
    error_class, fingerprint, group, message, facts = (*row[12:17], 0, 0, 0, 0, 0)[:5]
    priority, schedule, slot_ms, parent, root, cost = row[17:23] if len(row) > 17 else _USUAL
    return AttemptRecord(
        run_id,
        job_id,
        attempt,
        delivery,
        queue,
        task,
        group or None,
        tuple(tags or ()),
        worker or None,
        enqueued,
        ready,
        started or None,
        finished_ms,
        started - ready if started else None,
        None if duration < 0 else duration,
        ATTEMPT_OUTCOMES[outcome],
        None if error_class == 0 else error_class,
        None if fingerprint == 0 else fingerprint,
        version or (2 if len(row) > 15 else 1),
        *_said(settlements.read_facts(facts)),
        message or None,
        priority,
        schedule or None,
        None if slot_ms < 0 else slot_ms,
        parent or None,
        root or None,
        cost,
        records.read_queue_time(row[23]) if len(row) > 23 else None,
    )


#: Values for a row that ends before these fields.
_USUAL: list[Any] = [0, 0, -1, 0, 0, 1]
