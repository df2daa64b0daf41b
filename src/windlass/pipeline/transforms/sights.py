"""From a job's record to a row of ``silver/jobs``: what is known of a job that was seen in its store.

Such a row counts no record and no attempt; these come from the log alone. Of a job that is in the log, it
only says in which state it was seen, and when.
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

#: What a row has from the log, as it is without any.
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
#: Facts that options say under the name of the column.
_OPTIONS = ("group", "max_attempts", "schedule", "slot_ms", "parent", "root", "cost")


def sighted(
    records: Iterable[JobRecord], source: str, seen_ms: int, payloads: Payloads | None = None
) -> pa.Table:
    """Rows of jobs that a store holds."""
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


def sights_of(jobs: pa.Table) -> pa.Table:
    """What rows of jobs say from having been seen, without what they have from the log."""
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
