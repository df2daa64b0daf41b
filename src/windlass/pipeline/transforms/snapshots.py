"""Rows of ``silver/jobs`` from job records that a snapshot listed.

Such a row counts no records and no attempts; those come from the log alone. For a job that is in the log, it
only adds the state in which the job was listed, and when.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from windlass.core.job import JobRecord
from windlass.core.states import FINISHED
from windlass.pipeline import schemas
from windlass.pipeline.transforms.attempts import days_of

if TYPE_CHECKING:
    import pyarrow as pa

    from windlass.pipeline.payloads import Payloads

#: The columns that come from the log, with the values for a job without records.
_UNRECORDED: dict[str, Any] = {
    "records": 0,
    "attempts": 0,
    "deliveries": 0,
    "run_ms": 0,
    "final": False,
    "first_ready_ms": None,
    "first_started_ms": None,
    "finished_ms": None,
    "outcome": None,
    "last_run_id": None,
}
#: Columns that are options of the job with the same name.
_OPTIONS = ("group", "max_attempts", "schedule", "slot_ms", "parent", "root", "cost")


def snapshot_rows(
    records: Iterable[JobRecord], source: str, seen_ms: int, payloads: Payloads | None = None
) -> pa.Table:
    """Rows for jobs that a store holds."""
    import pyarrow as pa

    facts = {"source": source, "seen_ms": seen_ms, "schema_version": schemas.SCHEMA_VERSION}
    rows = [
        {**facts, **_row(record), **(payloads.of_record(record) if payloads else {})} for record in records
    ]
    schema = schemas.SILVER_JOBS.arrow
    days = schema.get_field_index(schemas.PARTITION)
    table = pa.Table.from_pylist(rows, schema=schema.remove(days))
    return table.append_column(schema.field(days), days_of(table.column("enqueued_ms"))).cast(schema)


def _row(record: JobRecord) -> dict[str, Any]:
    has_ended = record.state in FINISHED
    row = {
        **_UNRECORDED,
        **{name: getattr(record.options, name) for name in _OPTIONS},
        "queue": record.queue,
        "job_id": record.id,
        "enqueued_ms": record.enqueued_ms,
        "task": record.task,
        "tags": list(record.options.tags),
        "priority": record.priority,
        "worker": record.worker,
        "state": record.state.value,
        "due_ms": record.due_ms,
    }
    if has_ended:
        row |= {"final": True, "outcome": record.state.value, "finished_ms": record.finished_ms}
    if record.errors:
        last = record.errors[-1]
        row |= {"error_class": last.error_class, "error_fingerprint": last.fingerprint}
        row["error_message"] = last.said or None
    return row


def snapshot_parts(jobs: pa.Table) -> pa.Table:
    """The part of job rows that comes from snapshots, without what comes from the log."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = jobs.filter(pc.is_valid(jobs.column("seen_ms")))
    recorded = pc.greater(rows.column("records"), 0)
    for name, value in _UNRECORDED.items():
        at = rows.column_names.index(name)
        field = schemas.SILVER_JOBS.arrow.field(name)
        bare = pc.if_else(recorded, pa.scalar(value, field.type), rows.column(name))
        rows = rows.set_column(at, field, bare)
    return rows
