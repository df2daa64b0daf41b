"""From what a log gave to unique attempts."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from windlass.pipeline import schemas

Transform = Callable[[DataFrame], DataFrame]


def day_of(ms: Column) -> Column:
    """The UTC day of a time in milliseconds. (``timestamp_millis`` is exact for any bigint.)"""
    return F.timestamp_millis(ms).cast("date")


def as_bronze(*, source: str, batch: int) -> Transform:
    """Add where a record came from and the day on which it ended. One row per row."""

    def apply(history: DataFrame) -> DataFrame:
        rows = history.withColumns(
            {
                "source": F.lit(source),
                "batch": F.lit(batch).cast("long"),
                "date": day_of(F.col("finished_ms")),
            }
        )
        return rows.select(*schemas.BRONZE_ATTEMPTS.names)

    return apply


def as_silver(bronze: DataFrame) -> DataFrame:
    """Leave the columns of one batch behind. One row per row."""
    return bronze.select(*schemas.SILVER_ATTEMPTS.names)


def repeated_ids(known: DataFrame | None) -> Transform:
    """The ``run_id`` of attempts that occur twice, within the batch or in ``known``. Usually no row."""

    def apply(attempts: DataFrame) -> DataFrame:
        ids = attempts.select("run_id")
        both = ids if known is None else ids.unionByName(known.select("run_id"))
        return both.groupBy("run_id").count().where(F.col("count") > 1).select("run_id")

    return apply


def unique_attempts(known: DataFrame | None) -> Transform:
    """One row per ``run_id`` (that which ended first), without those in ``known``."""

    def apply(attempts: DataFrame) -> DataFrame:
        names = attempts.columns
        first = F.min_by(F.struct(*names), F.struct("finished_ms", "delivery")).alias("row")
        unique = attempts.groupBy("run_id").agg(first).select("row.*")
        return unique if known is None else unique.join(known.select("run_id"), "run_id", "left_anti")

    return apply
