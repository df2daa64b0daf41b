"""From records of a log to unique attempts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from windlass.pipeline import schemas
from windlass.pipeline.transforms.grains import GRAIN_MS

if TYPE_CHECKING:
    import pyarrow as pa

Transform = Callable[[DataFrame], DataFrame]


def days_of(ms: Any) -> Any:
    """The UTC days of times in milliseconds."""
    import pyarrow as pa
    import pyarrow.compute as pc

    # Floor division, also before 1970; division alone rounds towards zero.
    days = pc.floor(pc.divide(pc.cast(ms, pa.float64()), float(GRAIN_MS["day"])))
    return pc.cast(pc.cast(days, pa.int32()), pa.date32())


def as_bronze(attempts: pa.RecordBatch | pa.Table, source: str, number: int) -> pa.Table:
    """Records with their source, batch and the day on which they ended. One row per row, in Arrow.

    Columns that the records lack are null.
    """
    import pyarrow as pa

    rows = pa.Table.from_batches([attempts]) if isinstance(attempts, pa.RecordBatch) else attempts
    count = rows.num_rows
    made = {
        "source": pa.repeat(source, count),
        "batch": pa.repeat(pa.scalar(number, pa.int64()), count),
        "date": days_of(rows.column("finished_ms")),
    }
    columns = []
    for field in schemas.BRONZE_ATTEMPTS.arrow:
        if field.name in rows.column_names:
            columns.append(rows.column(field.name))
        else:
            columns.append(made[field.name] if field.name in made else pa.nulls(count, field.type))
    return pa.table(columns, names=schemas.BRONZE_ATTEMPTS.names)


def hashed(run_id: Column) -> Column:
    """The hash that identifies an erased attempt."""
    return F.sha2(run_id, 256)


def as_silver(bronze: DataFrame) -> DataFrame:
    """The columns of silver. One row per row."""
    return bronze.select(*schemas.SILVER_ATTEMPTS.names)


def unique_attempts(known: DataFrame | None) -> Transform:
    """One row per source and ``run_id`` (the one that ended first), without those in ``known``."""
    keys = list(schemas.SILVER_ATTEMPTS.keys)

    def apply(attempts: DataFrame) -> DataFrame:
        names = attempts.columns
        order = F.struct("finished_ms", "delivery", "batch")
        unique = attempts.groupBy(*keys).agg(F.min_by(F.struct(*names), order).alias("row")).select("row.*")
        return unique if known is None else unique.join(known.select(*keys), keys, "left_anti").select(*names)

    return apply
