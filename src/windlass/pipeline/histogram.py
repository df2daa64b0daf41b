"""The histograms of ``core.histogram`` for DuckDB and Arrow."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from windlass.core.histogram import (
    EXACT,
    GROWTH,
    MIDDLE,
    PERCENTILES,
    Histogram,
    bucket_of,
    merge,
    percentile,
    value_of,
)

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

__all__ = [
    "EXACT",
    "GROWTH",
    "PERCENTILES",
    "Histogram",
    "as_entries",
    "bucket_of",
    "bucket_sql",
    "merge",
    "percentile",
    "register_duckdb",
    "value_of",
    "values_until",
]


# --- Arrow ---------------------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def values_until(bucket: int) -> Any:
    """``value_of`` for every bucket up to ``bucket``, as an array."""
    import numpy as np

    return np.array([value_of(number) for number in range(bucket + 1)])


# --- DuckDB -------------------------------------------------------------------------------------------


def bucket_sql(value: str) -> str:
    """``bucket_of`` as SQL. Null stays null."""
    steps = f"floor(ln({value} / {EXACT}.0) / {math.log(GROWTH)!r})"
    return f"(CASE WHEN {value} < {EXACT} THEN greatest({value}, 0) ELSE {EXACT} + {steps} END)::INTEGER"


def register_duckdb(connection: DuckDBPyConnection) -> None:
    """Define ``hist_value(bucket)`` and ``hist_percentile(hist, per_mille)`` on a DuckDB connection."""
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
    """A histogram as the list of entries that tables hold."""
    return [{"bucket": bucket, "count": count} for bucket, count in histogram]
