"""From attempts and snapshots to jobs: one row for each job, with its latest state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from windlass.core.states import FINISHED, JobState
from windlass.pipeline import schemas
from windlass.pipeline.transforms.attempts import days_of
from windlass.pipeline.transforms.snapshots import snapshot_parts
from windlass.pipeline.transforms.sql import as_rows, ask, engine

if TYPE_CHECKING:
    import pyarrow as pa

#: Columns that attempts and jobs share, with the value of the newest record.
_SHARED = ("max_attempts", "error_message", "priority", "schedule", "slot_ms", "parent", "root", "cost")
#: Columns with the values of a job's newest record.
_LAST = (
    "task", "group", "tags", "finished_ms", "outcome", "final", "worker", "error_class", "error_fingerprint",
    "last_run_id", *_SHARED,
)  # fmt: skip


#: Columns of a job row by the column of an attempt that they come from.
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
    **{name: name for name in (*_SHARED, *schemas.PAYLOADS)},
}
#: Columns of an attempt that job rows need.
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
        "state": _state_after(attempts.column("outcome")),
        **{name: pa.nulls(count, schema.field(name).type) for name in ("due_ms", "seen_ms")},
    }
    columns = [made[name] if name in made else attempts.column(_TAKEN[name]) for name in schema.names]
    return pa.table(columns, schema=schema)


def _state_after(outcome: Any) -> Any:
    """The state of jobs by their newest outcome; null for jobs that are alive, whose state is not known."""
    import pyarrow as pa
    import pyarrow.compute as pc

    names = pc.if_else(pc.equal(outcome, "expired"), "failed", outcome)
    return pc.if_else(
        pc.is_in(outcome, pa.array(schemas.FINAL_OUTCOMES)), names, pa.scalar(None, pa.string())
    )


#: States after which a job does not run again.
_ENDED = tuple(sorted(state.value for state in FINISHED))
#: SQL for ``_state_after``.
_STATE_AFTER = (
    f"CASE WHEN outcome = 'expired' THEN 'failed' WHEN outcome IN {schemas.FINAL_OUTCOMES} THEN outcome END"
)
#: A key for ``arg_max``: the row that decides the state of a job. Records rank above snapshots, then the
#: newest wins. A job that changed its state during a listing may have two rows; the later state wins.
_NEWEST = f"""
    {{'ran': (records > 0)::INTEGER, 'at': CASE WHEN records > 0 THEN finished_ms ELSE seen_ms END,
      'delivery': deliveries, 'final': final::INTEGER, 'run': coalesce(last_run_id, ''),
      'state': coalesce(list_position({[state.value for state in JobState]}, state), 0)}}
"""
_SEEN = f"{{'at': seen_ms, 'state': list_position({[state.value for state in JobState]}, state)}}"


def merged_jobs(rows: pa.Table) -> pa.Table:
    """Merge rows of the same job into one. The newest record or snapshot decides its state."""
    keys = ", ".join(schemas.SILVER_JOBS.keys)
    last = ", ".join(f"""'{name}': "{name}" """ for name in _LAST)
    sql = f"""
        SELECT {keys}, sum(records) AS records, max(attempts) AS attempts, max(deliveries) AS deliveries,
               min(first_ready_ms) AS first_ready_ms, min(first_started_ms) AS first_started_ms,
               sum(run_ms) AS run_ms, any_value(date) AS date, unnest(arg_max({{{last}}}, {_NEWEST})),
               {_kept("args")}, {_kept("result")}, max(seen_ms) AS seen_ms,
               unnest(arg_max({{'state': state, 'due_ms': due_ms}}, {_SEEN}) FILTER (seen_ms IS NOT NULL)),
               {schemas.SCHEMA_VERSION} AS schema_version
        FROM rows GROUP BY {keys}
    """
    recorded = "seen_ms IS NULL OR (records > 0 AND finished_ms >= seen_ms)"
    stands = f"""
        SELECT * REPLACE (CASE WHEN {recorded} THEN {_STATE_AFTER} ELSE state END AS state,
                          CASE WHEN {recorded} THEN NULL ELSE due_ms END AS due_ms,
                          CASE WHEN {recorded} THEN final ELSE state IN {_ENDED} END AS final)
        FROM ({sql}) ORDER BY date, {keys}
    """
    with engine(rows=rows) as connection:
        return as_rows(ask(connection, stands), schemas.SILVER_JOBS)


def _kept(name: str) -> str:
    """SQL for a text and its size, from the newest row that has them."""
    both = f"{{'{name}': {name}, '{name}_bytes': {name}_bytes}}"
    return f"unnest(arg_max({both}, {_NEWEST}) FILTER ({name}_bytes IS NOT NULL))"


def parts_of_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """``job_parts`` for a partition of attempts in Spark."""
    import pyarrow as pa

    for batch in batches:
        yield from job_parts(pa.Table.from_batches([batch])).to_batches()


def snapshot_parts_of_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """``snapshot_parts`` for a partition of rows in Spark."""
    import pyarrow as pa

    for batch in batches:
        yield from snapshot_parts(pa.Table.from_batches([batch])).to_batches()


def merge_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """``merged_jobs`` for a partition of rows in Spark that holds all rows of its jobs."""
    import pyarrow as pa

    found = list(batches)
    if found:
        yield from merged_jobs(pa.Table.from_batches(found)).to_batches()
