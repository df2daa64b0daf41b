"""The smaller gold tables: errors by fingerprint, worker use, backlog. Each is parts plus a merge."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from windlass.pipeline import schemas
from windlass.pipeline.transforms.attempts import day_of
from windlass.pipeline.transforms.rollups import window_of


def error_parts(attempts: DataFrame) -> DataFrame:
    """One row per attempt that ended with an error. Without a fingerprint, its class stands for it."""
    key = F.coalesce(F.nullif("error_fingerprint", F.lit("")), "error_class")
    failed = attempts.where(key.isNotNull())
    return failed.select(
        "source",
        "queue",
        "task",
        key.alias("error_fingerprint"),
        "error_class",
        F.lit(1).cast("long").alias("occurrences"),
        (F.col("outcome") == "failed").cast("long").alias("failed"),
        F.col("finished_ms").alias("first_ms"),
        F.col("finished_ms").alias("last_ms"),
        F.col("job_id").alias("last_job_id"),
        F.col("run_id").alias("last_run_id"),
        F.col("error_message").alias("last_message"),
        "date",
    )


def merge_errors(rows: DataFrame) -> DataFrame:
    """One row per day, source, queue, task and fingerprint, with the newest example."""
    newest = F.struct("last_ms", "last_run_id")
    merged = rows.groupBy(*schemas.GOLD_ERRORS.keys).agg(
        F.max_by("error_class", newest).alias("error_class"),
        F.sum("occurrences").alias("occurrences"),
        F.sum("failed").alias("failed"),
        F.min("first_ms").alias("first_ms"),
        F.max("last_ms").alias("last_ms"),
        F.max_by("last_job_id", newest).alias("last_job_id"),
        F.max_by("last_run_id", newest).alias("last_run_id"),
        F.max_by("last_message", newest).alias("last_message"),
    )
    return _finish(merged, schemas.GOLD_ERRORS)


def worker_parts(attempts: DataFrame) -> DataFrame:
    """One row per attempt that a worker ran, in the hour in which it ended."""
    start = window_of(F.col("finished_ms"), "hour")
    ran = attempts.where(F.col("worker").isNotNull())
    flags = {name: F.col("outcome") == name for name in ("completed", "failed", "stalled")}
    return ran.select(
        "source",
        start.alias("window_start"),
        "worker",
        "queue",
        F.lit(1).cast("long").alias("attempts"),
        *(flag.cast("long").alias(name) for name, flag in flags.items()),
        F.coalesce("duration_ms", F.lit(0)).cast("long").alias("busy_ms"),
        F.col("started_ms").alias("first_ms"),
        F.col("finished_ms").alias("last_ms"),
        day_of(start).alias("date"),
    )


def merge_workers(rows: DataFrame) -> DataFrame:
    """One row per hour, source, worker and queue."""
    merged = rows.groupBy("date", *schemas.GOLD_WORKERS.keys).agg(
        *(F.sum(name).alias(name) for name in ("attempts", "completed", "failed", "stalled", "busy_ms")),
        F.min("first_ms").alias("first_ms"),
        F.max("last_ms").alias("last_ms"),
    )
    return _finish(merged, schemas.GOLD_WORKERS)


def backlog_parts(attempts: DataFrame) -> DataFrame:
    """Two rows per attempt: the minute in which it became ready, and that in which it stopped waiting."""
    left_ms = F.coalesce("started_ms", "finished_ms")
    ready = F.struct(
        window_of(F.col("ready_ms"), "minute").alias("window_start"),
        F.lit(1).cast("long").alias("ready"),
        F.lit(0).cast("long").alias("departed"),
        F.lit(None).cast("long").alias("wait_ms"),
    )
    departed = F.struct(
        window_of(left_ms, "minute").alias("window_start"),
        F.lit(0).cast("long").alias("ready"),
        F.lit(1).cast("long").alias("departed"),
        F.greatest(left_ms - F.col("ready_ms"), F.lit(0)).cast("long").alias("wait_ms"),
    )
    rows = attempts.select("source", "queue", F.explode(F.array(ready, departed)).alias("r"))
    return rows.select(
        "source",
        "r.window_start",
        "queue",
        "r.ready",
        "r.departed",
        F.coalesce("r.wait_ms", F.lit(0)).cast("long").alias("wait_sum_ms"),
        F.col("r.wait_ms").alias("wait_max_ms"),
        day_of(F.col("r.window_start")).alias("date"),
    )


def merge_backlog(rows: DataFrame) -> DataFrame:
    """One row per minute, source and queue."""
    merged = rows.groupBy("date", *schemas.GOLD_BACKLOG.keys).agg(
        F.sum("ready").alias("ready"),
        F.sum("departed").alias("departed"),
        F.sum("wait_sum_ms").alias("wait_sum_ms"),
        F.max("wait_max_ms").alias("wait_max_ms"),
    )
    return _finish(merged, schemas.GOLD_BACKLOG)


def _finish(merged: DataFrame, table: schemas.Table) -> DataFrame:
    return merged.withColumn("schema_version", F.lit(schemas.SCHEMA_VERSION)).select(*table.names)
