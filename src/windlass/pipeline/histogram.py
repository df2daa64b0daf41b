"""The histograms of ``core.histogram`` as Spark columns and for DuckDB.

The same three operations (bucket of a value, sum of histograms, percentile) exist for Python, for Spark
columns and for DuckDB.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from windlass.core.histogram import (
    EXACT,
    GROWTH,
    MIDDLE,
    PERCENTILES,
    Histogram,
    bucket_of,
    build,
    merge,
    percentile,
    value_of,
)

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection
    from pyspark.sql import Column

__all__ = [
    "EXACT",
    "GROWTH",
    "PERCENTILES",
    "Histogram",
    "as_entries",
    "bucket_column",
    "bucket_of",
    "build",
    "merge",
    "percentile",
    "percentile_buckets",
    "register_duckdb",
    "value_column",
    "value_of",
]


# --- Spark --------------------------------------------------------------------------------------------


def bucket_column(value: Column) -> Column:
    """``bucket_of`` as a column; null stays null."""
    from pyspark.sql import functions as F

    steps = F.floor(F.log(value / F.lit(EXACT)) / F.lit(math.log(GROWTH)))
    exact = F.greatest(value, F.lit(0))
    return F.when(value < EXACT, exact).otherwise(steps + EXACT).cast("int")


def value_column(bucket: Column) -> Column:
    """``value_of`` as a column; null stays null."""
    from pyspark.sql import functions as F

    wide = F.pow(F.lit(GROWTH), bucket - EXACT) * F.lit(EXACT * MIDDLE)
    return F.when(bucket < EXACT, bucket.cast("double")).otherwise(wide)


def percentile_buckets(histogram: str, total: str, wanted: Mapping[str, int]) -> Column:
    """A struct of the buckets that percentiles fall into, by name -> thousandths, in one pass.

    ``histogram`` and ``total`` name columns: entries, and the sum of their counts. Null when it is empty.
    """
    from pyspark.sql import functions as F

    start = ", ".join(f"'{name}', cast(null as int)" for name in wanted)
    reached = "if((s.seen + e.count) * 1000 >= {total} * {per_mille}, e.bucket, null)"
    steps = ", ".join(
        f"'{name}', coalesce(s.{name}, {reached.format(total=total, per_mille=per_mille)})"
        for name, per_mille in wanted.items()
    )
    return F.expr(
        f"aggregate({histogram}, named_struct('seen', 0L, {start}), "
        f"(s, e) -> named_struct('seen', s.seen + e.count, {steps}))"
    )


# --- DuckDB -------------------------------------------------------------------------------------------


def register_duckdb(connection: DuckDBPyConnection) -> None:
    """Give a DuckDB connection ``hist_value(bucket)`` and ``hist_percentile(hist, per_mille)``."""
    connection.execute(
        f"""
        CREATE OR REPLACE TEMP MACRO hist_value(b) AS
            CASE WHEN b < {EXACT} THEN b::DOUBLE
                 ELSE pow({GROWTH}, b - {EXACT}) * {EXACT * MIDDLE!r} END;
        CREATE OR REPLACE TEMP MACRO hist_percentile(h, per_mille) AS hist_value(list_extract(list_filter(
            list_transform(h, lambda x, i: {{'bucket': x.bucket,
                'seen': list_sum(list_transform(h[1:i], lambda y: y.count))}}),
            lambda x: x.seen >= ceil(list_sum(list_transform(h, lambda y: y.count)) * per_mille / 1000)
        ), 1).bucket);
        """
    )


def as_entries(histogram: Histogram) -> list[dict[str, Any]]:
    """A histogram as the rows that tables hold."""
    return [{"bucket": bucket, "count": count} for bucket, count in histogram]
