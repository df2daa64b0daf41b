"""Reads stubs from the database: see ``core.stubs``."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from windlass.backends.sqlite.request import RequestState
from windlass.backends.sqlite.rows import by_queue
from windlass.backends.sqlite.statements import StatementRunner
from windlass.core import bad_records
from windlass.core.job import JobRecord, JobRef
from windlass.core.stubs import is_over
from windlass.engine.unit_of_work import UnitOfWork

_unpack = msgspec.msgpack.Decoder(JobRecord).decode


def find(runner: StatementRunner, num: int, ref: JobRef, now_ms: int) -> JobRecord | None:
    """Return the stub of the removed job ``ref`` of queue ``num``, or None if it is missing or too old."""
    rows = runner.listed_texts("stub_find", [ref.id], num)
    return _read(rows[0][-1], ref.id, now_ms) if rows else None


def load(step: RequestState, refs: Iterable[tuple[str, str]], work: UnitOfWork) -> None:
    """Load the stubs of jobs that have no record into ``work``."""
    queues = step.queues
    if queues.nothing_kept() or queues.no_stubs:
        return
    for queue, some in by_queue(refs).items():
        for job_id, _, packed in step.listed("stub_find", some, queues.num(queue) or 0):
            found = _read(packed, job_id, work.now_ms)
            if found is not None:
                work.stubs[queue, job_id] = found


def _read(packed: bytes, job_id: str, now_ms: int) -> JobRecord | None:
    found = bad_records.read_or_none(packed, _unpack, f"the stub of job {job_id}")
    return None if found is None or is_over(found, now_ms) else found
