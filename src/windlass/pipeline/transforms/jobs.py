"""From attempts to jobs: what became of each, however often it ran."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from windlass.pipeline import schemas
from windlass.pipeline.transforms.attempts import days_of
from windlass.pipeline.transforms.sql import as_rows, ask, engine

if TYPE_CHECKING:
    import pyarrow as pa

#: Columns that attempts and jobs have under the same name, and that the newest record decides.
_STORY = ("max_attempts", "error_message", "priority", "schedule", "slot_ms", "parent", "root", "cost")
#: Facts of a job's newest record.
_LAST = (
    "task", "group", "tags", "outcome", "final", "worker", "error_class", "error_fingerprint", "last_run_id",
    *_STORY,
)  # fmt: skip


#: Columns of a job row that are those of an attempt, under another name or the same.
_TAKEN = {
    **{name: name for name in ("source", "queue", "job_id", "enqueued_ms", "task", "group", "tags")},
    "attempts": "attempt",
    "deliveries": "delivery",
    "first_ready_ms": "ready_ms",
    "first_started_ms": "started_ms",
    "finished_ms": "finished_ms",
    "outcome": "outcome",
    "worker": "worker",
    "error_class": "error_class",
    "error_fingerprint": "error_fingerprint",
    "last_run_id": "run_id",
    **{name: name for name in _STORY},
}
#: Columns of an attempt that job rows are made of.
PART_COLUMNS = [*dict.fromkeys(_TAKEN.values()), "duration_ms"]


def job_parts(attempts: pa.Table) -> pa.Table:
    """One job row per attempt, for ``merged_jobs``."""
    import pyarrow as pa
    import pyarrow.compute as pc

    schema = schemas.SILVER_JOBS.arrow
    count = attempts.num_rows
    made = {
        "records": pa.repeat(pa.scalar(1, pa.int64()), count),
        "run_ms": pc.coalesce(attempts.column("duration_ms"), pa.scalar(0, pa.int64())),
        "final": pc.is_in(attempts.column("outcome"), pa.array(schemas.FINAL_OUTCOMES)),
        "schema_version": pa.repeat(pa.scalar(schemas.SCHEMA_VERSION, pa.int32()), count),
        "date": days_of(attempts.column("enqueued_ms")),
    }
    columns = [made[name] if name in made else attempts.column(_TAKEN[name]) for name in schema.names]
    return pa.table(columns, schema=schema)


def merged_jobs(rows: pa.Table) -> pa.Table:
    """Job rows that speak of the same job, as one; the newest record says how it stands."""
    keys = ", ".join(schemas.SILVER_JOBS.keys)
    last = ", ".join(f"""'{name}': "{name}" """ for name in _LAST)
    newest = "{'at': finished_ms, 'delivery': deliveries, 'final': final::INTEGER, 'run': last_run_id}"
    sql = f"""
        SELECT {keys}, sum(records) AS records, max(attempts) AS attempts, max(deliveries) AS deliveries,
               min(first_ready_ms) AS first_ready_ms, min(first_started_ms) AS first_started_ms,
               max(finished_ms) AS finished_ms, sum(run_ms) AS run_ms, any_value(date) AS date,
               unnest(arg_max({{{last}}}, {newest})), {schemas.SCHEMA_VERSION} AS schema_version
        FROM rows GROUP BY {keys}
    """
    with engine(rows=rows) as connection:
        return as_rows(ask(connection, f"FROM ({sql}) ORDER BY date, {keys}"), schemas.SILVER_JOBS)


def merge_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """``merged_jobs`` of attempts that Spark has brought together by job."""
    import pyarrow as pa

    found = list(batches)
    if found:
        yield from merged_jobs(job_parts(pa.Table.from_batches(found))).to_batches()
