"""Events and attempts from the rows of the two logs, see ``lua/includes/30_notes.lua``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from windlass.backends.valkey.codes import ATTEMPT_OUTCOMES, EVENTS, STATES
from windlass.backends.valkey.records import decode, lean, whole
from windlass.core.job import AttemptRecord, Event


@whole
def events(last: int, fields: list[bytes]) -> list[Event]:
    """The events of one entry of the log, whose last one has the number ``last``."""
    at_ms, packed_rows = decode(fields[1])
    rows = [row for packed in packed_rows for row in _unrolled(packed)]
    first = last - len(rows) + 1
    return [_event(first + offset, at_ms, row) for offset, row in enumerate(rows)]


def _unrolled(row: list[Any]) -> list[list[Any]]:
    """A row that stands for equal events of several jobs, as one row for each."""
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


@whole
def attempts(queue: str, last: int, fields: list[bytes]) -> list[tuple[int, AttemptRecord]]:
    """Position and content of the rows of one entry of the history log."""
    rows: list[AttemptRecord] = []
    for at in range(0, len(fields), 2):
        if fields[at] == b"p":
            rows += _plain_attempts(queue, fields[at + 1])
        else:
            finished_ms, packed = decode(fields[at + 1])
            rows += [_attempt(queue, finished_ms, row) for row in packed]
    first = last - len(rows) + 1
    return [(first + offset, row) for offset, row in enumerate(rows)]


def _plain_attempts(queue: str, packed: bytes) -> Iterator[AttemptRecord]:
    finished_ms, at = int.from_bytes(packed[:6], "big"), 6
    while at < len(packed):
        id_end = at + 2 + int.from_bytes(packed[at : at + 2], "big")
        job_id = packed[at + 2 : id_end].decode()
        duration_ms = int.from_bytes(packed[id_end : id_end + 6], "big", signed=True)
        _, enqueued_ms, started_ms, token, worker, task, at = lean(packed, id_end + 7)
        row = [token, job_id, 1, 1, task, 0, worker, enqueued_ms, enqueued_ms, started_ms, duration_ms, 1]
        yield _attempt(queue, finished_ms, row)


def _attempt(queue: str, finished_ms: int, row: list[Any]) -> AttemptRecord:
    run_id, job_id, attempt, delivery, task, tags, worker, enqueued, ready, started, duration, outcome = row[
        :12
    ]
    error_class, fingerprint, group = (*row[12:], None, None, None)[:3]
    return AttemptRecord(
        run_id,
        job_id,
        attempt,
        delivery,
        queue,
        task,
        group,
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
    )
