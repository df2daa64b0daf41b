"""Histograms of milliseconds that can be added up: the percentiles of a day from those of its minutes.

A value below 50 has a bucket of its own. From there buckets grow by 4 %, and the value that stands for one
is at most 2 % from everything in it. A histogram is a list of ``(bucket, count)``, sorted by bucket, holding
integers only: adding two up in any order gives the same result, always.

The same three operations (bucket of a value, sum of histograms, percentile) exist for Python, for Spark
columns and for DuckDB. Percentiles are nearest-rank: the smallest value that at least so many reach.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection
    from pyspark.sql import Column

#: Values below this are their own bucket.
EXACT = 50
GROWTH = 1.04
#: The percentiles of every roll-up, in thousandths.
PERCENTILES = {"p50": 500, "p95": 950, "p99": 990}
#: What stands for a bucket that begins at ``low``: equally far (relatively) from both its ends.
_MIDDLE = 2 * GROWTH / (1 + GROWTH)

Histogram = list[tuple[int, int]]


# --- Python -------------------------------------------------------------------------------------------


def bucket_of(value: int) -> int:
    """The bucket of a value. Below zero (a clock that went back) counts as zero."""
    if value < EXACT:
        return max(value, 0)
    return EXACT + math.floor(math.log(value / EXACT) / math.log(GROWTH))


def value_of(bucket: int) -> float:
    """The value that stands for a bucket."""
    if bucket < EXACT:
        return float(bucket)
    return float(EXACT * GROWTH ** (bucket - EXACT) * _MIDDLE)


def build(values: Iterable[int]) -> Histogram:
    """The histogram of some values."""
    counts: dict[int, int] = {}
    for value in values:
        bucket = bucket_of(value)
        counts[bucket] = counts.get(bucket, 0) + 1
    return sorted(counts.items())


def merge(parts: Iterable[Iterable[tuple[int, int] | Mapping[str, int]]]) -> Histogram:
    """The sum of histograms, as tuples or as rows with ``bucket`` and ``count``."""
    counts: dict[int, int] = {}
    for part in parts:
        for entry in part:
            bucket, count = (entry["bucket"], entry["count"]) if isinstance(entry, Mapping) else entry
            counts[bucket] = counts.get(bucket, 0) + count
    return sorted(counts.items())


def percentile(histogram: Histogram, per_mille: int) -> float | None:
    """The value that ``per_mille`` thousandths do not exceed; None for an empty histogram."""
    total = sum(count for _, count in histogram)
    wanted = -(-total * per_mille // 1000)
    seen = 0
    for bucket, count in histogram:
        seen += count
        if seen >= wanted:
            return value_of(bucket)
    return None


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

    wide = F.pow(F.lit(GROWTH), bucket - EXACT) * F.lit(EXACT * _MIDDLE)
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
                 ELSE pow({GROWTH}, b - {EXACT}) * {EXACT * _MIDDLE!r} END;
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
