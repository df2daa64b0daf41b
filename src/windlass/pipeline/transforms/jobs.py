"""From attempts to jobs: what became of each, however often it ran."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from windlass.pipeline import schemas
from windlass.pipeline.transforms.attempts import days_of

if TYPE_CHECKING:
    import pyarrow as pa

_KEYS = list(schemas.SILVER_JOBS.keys)
#: Columns that attempts and jobs have under the same name, and that the newest record decides.
_STORY = ("max_attempts", "error_message", "priority", "schedule", "slot_ms", "parent", "root", "cost")
#: Facts of a job's newest record.
_LAST = (
    "task",
    "group",
    "tags",
    "outcome",
    "final",
    "worker",
    "error_class",
    "error_fingerprint",
    "last_run_id",
    *_STORY,
)


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


def arrow_parts(attempts: pa.Table) -> pa.Table:
    """One job row per attempt, for ``merge_jobs``."""
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
    return pa.table(columns, names=schema.names)


def job_parts(attempts: DataFrame) -> DataFrame:
    """``arrow_parts`` of rows that Spark holds."""
    return attempts.select(*PART_COLUMNS).mapInArrow(_each_part, schemas.SILVER_JOBS.spark)


def _each_part(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for batch in batches:
        yield from arrow_parts(pa.Table.from_batches([batch])).to_batches()


def without_jobs(attempts: pa.Table, apart: pa.Table) -> pa.Table:
    """Attempts less those of some jobs."""
    import pyarrow as pa

    if not apart.num_rows:
        return attempts
    # The join takes no lists, such as tags: it finds the numbers of the rows.
    keys = attempts.select(_KEYS).append_column("at", pa.array(range(attempts.num_rows), pa.int64()))
    kept = keys.join(apart.cast(keys.select(_KEYS).schema), _KEYS, join_type="left anti")
    return attempts.take(kept.sort_by("at").column("at"))


def of_hashes(rows: DataFrame, hashes: DataFrame) -> DataFrame:
    """Rows whose job has one of the hashes of ``repeated(_KEYS)``, which must be few."""
    named = rows.withColumn("hash", F.xxhash64(*_KEYS))
    return named.join(F.broadcast(hashes), "hash", "left_semi").drop("hash")


def merge_jobs(rows: DataFrame) -> DataFrame:
    """Job rows that speak of the same job, as one; the newest record says how it stands."""
    order = F.struct("finished_ms", "deliveries", F.col("final").cast("int"), "last_run_id")
    merged = rows.groupBy(*_KEYS).agg(
        F.sum("records").alias("records"),
        F.max("attempts").alias("attempts"),
        F.max("deliveries").alias("deliveries"),
        F.min("first_ready_ms").alias("first_ready_ms"),
        F.min("first_started_ms").alias("first_started_ms"),
        F.max("finished_ms").alias("finished_ms"),
        F.sum("run_ms").alias("run_ms"),
        F.max_by(F.struct(*_LAST), order).alias("last"),
        F.first("date").alias("date"),  # a function of enqueued_ms, which is a key
    )
    version = F.lit(schemas.SCHEMA_VERSION).alias("schema_version")
    return merged.select("*", "last.*", version).select(*schemas.SILVER_JOBS.names)
