"""Records of a store as Arrow batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from windlass.core.garbage import no_garbage
from windlass.core.job import AttemptRecord, JobRecord, host_of
from windlass.core.queue_time import QueueTime
from windlass.pipeline import schemas

if TYPE_CHECKING:
    import pyarrow as pa

_WORKER, _HOST, _WAIT, _VERSION = (
    AttemptRecord.__struct_fields__.index(name)
    for name in ("worker", "worker_host", "wait_ms", "schema_version")
)
#: Since this version, a record without a queue time waited in line the whole time.
_COUNTS_QUEUE_TIME = 3


def attempts_batch(records: Sequence[AttemptRecord]) -> pa.RecordBatch:
    """Attempt records as one Arrow batch."""
    with no_garbage():
        return _as_arrow(records)


def _as_arrow(records: Sequence[AttemptRecord]) -> pa.RecordBatch:
    import pyarrow as pa

    schema = schemas.HISTORY.arrow
    rows = [msgspec.structs.astuple(record) for record in records]
    fields = len(AttemptRecord.__struct_fields__)
    columns: list[Sequence[Any]] = list(zip(*rows, strict=True)) if rows else [()] * fields
    # The table's columns are the record's fields, in the same order (a test checks this), except the last ...
    columns += _queue_times(columns.pop(), columns[_WAIT], columns[_VERSION])
    workers, hosts = columns[_WORKER], columns[_HOST]
    # ... and the host, which comes from the worker's id.
    columns[_HOST] = [host or host_of(worker) for host, worker in zip(hosts, workers, strict=True)]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _queue_times(
    times: Sequence[QueueTime | None], waits: Sequence[int | None], versions: Sequence[int]
) -> list[Sequence[int | None]]:
    """The columns of ``schemas.CAUSES``. Null if an attempt did not start, or its record lacks the data."""
    rows = [
        (time.scheduled_ms, time.parked_ms, time.blocked_ms, time.in_line_ms)
        if time is not None
        else (None,) * 4
        if wait is None or version < _COUNTS_QUEUE_TIME
        else (0, 0, 0, max(wait, 0))  # negative if a clock was set back
        for time, wait, version in zip(times, waits, versions, strict=True)
    ]
    return list(zip(*rows, strict=True)) if rows else [()] * len(schemas.CAUSES)


def jobs_batch(jobs: Sequence[JobRecord]) -> pa.RecordBatch:
    """Job records as one Arrow batch."""
    import pyarrow as pa

    return pa.RecordBatch.from_pylist([_job_row(job) for job in jobs], schema=schemas.JOBS.arrow)


def _job_row(job: JobRecord) -> dict[str, Any]:
    row = {name: getattr(job, name, None) for name in schemas.JOBS.names}
    last = job.errors[-1] if job.errors else None
    row |= {"job_id": job.id, "state": job.state.value, "tags": list(job.options.tags)}
    if last is not None:
        row |= {
            "error_class": last.error_class,
            "error_message": last.message,
            "error_fingerprint": last.fingerprint,
        }
    return row
