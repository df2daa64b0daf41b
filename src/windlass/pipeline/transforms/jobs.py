"""From attempts to jobs: what became of each, however often it ran."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from windlass.pipeline import schemas
from windlass.pipeline.transforms.attempts import day_of

_KEYS = list(schemas.SILVER_JOBS.keys)
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
)


def job_parts(attempts: DataFrame) -> DataFrame:
    """One job row per attempt, for ``merge_jobs``."""
    return attempts.select(
        "source",
        "queue",
        "job_id",
        "enqueued_ms",
        "task",
        "group",
        "tags",
        F.lit(1).cast("long").alias("records"),
        F.col("attempt").alias("attempts"),
        F.col("delivery").alias("deliveries"),
        F.col("ready_ms").alias("first_ready_ms"),
        F.col("started_ms").alias("first_started_ms"),
        "finished_ms",
        F.coalesce("duration_ms", F.lit(0)).cast("long").alias("run_ms"),
        "outcome",
        F.col("outcome").isin(*schemas.FINAL_OUTCOMES).alias("final"),
        "worker",
        "error_class",
        "error_fingerprint",
        F.col("run_id").alias("last_run_id"),
        F.lit(schemas.SCHEMA_VERSION).alias("schema_version"),
        day_of(F.col("enqueued_ms")).alias("date"),
    )


def merge_repeated_jobs(rows: DataFrame, hashes: DataFrame) -> DataFrame:
    """``merge_jobs``, given the hashes of ``repeated(_KEYS)``: most jobs leave one record and are done.

    ``hashes`` must be few, for every task gets all of them. Each row matches at most one.
    """
    few = F.broadcast(hashes)
    named = rows.withColumn("hash", F.xxhash64(*_KEYS))
    alone = named.join(few, "hash", "left_anti").select(*schemas.SILVER_JOBS.names)
    several = named.join(few, "hash", "left_semi").drop("hash")
    return alone.unionByName(merge_jobs(several))


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
