"""From what a log gave to unique attempts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from windlass.pipeline import schemas
from windlass.pipeline.transforms.grains import GRAIN_MS

Transform = Callable[[DataFrame], DataFrame]


def day_of(ms: Column) -> Column:
    """The UTC day of a time in milliseconds, whatever the session's time zone."""
    return F.date_from_unix_date(F.floor(ms / F.lit(GRAIN_MS["day"])).cast("int"))


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


def repeated(keys: Sequence[str]) -> Transform:
    """The ``hash`` of ``keys`` wherever two rows share it: seldom any.

    Grouping one integer is several times cheaper than grouping texts. Different keys may share a hash, so
    this says which rows have to be looked at, not that they are the same.
    """

    def apply(rows: DataFrame) -> DataFrame:
        hashes = rows.select(F.xxhash64(*keys).alias("hash"))
        return hashes.groupBy("hash").count().where(F.col("count") > 1).select("hash")

    return apply


def unique_attempts(known: DataFrame | None) -> Transform:
    """One row per ``run_id`` (that which ended first), without those in ``known``."""

    def apply(attempts: DataFrame) -> DataFrame:
        names = attempts.columns
        first = F.min_by(F.struct(*names), F.struct("finished_ms", "delivery")).alias("row")
        unique = attempts.groupBy("run_id").agg(first).select("row.*")
        return unique if known is None else unique.join(known.select("run_id"), "run_id", "left_anti")

    return apply
