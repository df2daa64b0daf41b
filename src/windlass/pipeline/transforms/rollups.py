"""Attempts by minute, hour and day, with histograms that add up.

A roll-up is taken apart into *totals* (one row per window, source, queue and task) and *cells* (one row per
window, source, queue, task and bucket of a measure), both of integers that add up. Attempts and stored
roll-ups turn into the same parts, so old and new data meet in one grouping. Cells are many and therefore
slim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from windlass.pipeline import schemas
from windlass.pipeline.histogram import PERCENTILES, bucket_column, percentile_buckets, value_column
from windlass.pipeline.transforms.attempts import day_of
from windlass.pipeline.transforms.grains import GRAIN_MS

#: ``grain`` is the length of the window in milliseconds: integers group faster than names.
_NAMES = ["window_start", "source", "queue", "task"]
_KEYS = ["grain", *_NAMES]
_OUTCOMES = list(schemas.OUTCOME_COLUMNS.values())
_SUMS = ["attempts", *_OUTCOMES, *(f"{m}_{part}" for m in schemas.MEASURES for part in ("count", "sum_ms"))]
_MAXES = [f"{m}_max_ms" for m in schemas.MEASURES]
#: A cell's ``code`` is its bucket plus this much for each measure before its own.
_MEASURE_STEP = 100_000


class Parts(NamedTuple):
    """Roll-ups taken apart."""

    totals: DataFrame
    #: Of minutes only, each at most once.
    minute_cells: DataFrame
    #: Of any grain, each as often as it comes.
    other_cells: DataFrame | None = None


def window_of(ms: Column, grain: str) -> Column:
    """The start of the window that holds a time."""
    return (ms - F.pmod(ms, F.lit(GRAIN_MS[grain]))).cast("long")


def attempt_parts(attempts: DataFrame) -> Parts:
    """Attempts by the minute in which each ended."""
    rows = attempts.withColumn("window_start", window_of(F.col("finished_ms"), "minute"))
    totals = rows.groupBy(*_NAMES).agg(
        F.count(F.lit(1)).alias("attempts"),
        *(F.count_if(F.col("outcome") == word).alias(name) for word, name in schemas.OUTCOME_COLUMNS.items()),
        *(F.count(f"{m}_ms").alias(f"{m}_count") for m in schemas.MEASURES),
        *(F.coalesce(F.sum(f"{m}_ms"), F.lit(0)).alias(f"{m}_sum_ms") for m in schemas.MEASURES),
        *(F.max(f"{m}_ms").alias(f"{m}_max_ms") for m in schemas.MEASURES),
    )
    codes = F.explode(F.array(*(_code(n, m) for n, m in enumerate(schemas.MEASURES))))
    cells = (
        rows.select(*_NAMES, codes.alias("code"))
        .where("code is not null")
        .groupBy(*_NAMES, "code")
        .agg(F.count(F.lit(1)).alias("count"))
    )
    minute = F.lit(GRAIN_MS["minute"]).cast("long")
    return Parts(_spread(totals, schemas.GRAINS), cells.withColumn("grain", minute))


def _code(number: int, measure: str) -> Column:
    return bucket_column(F.col(f"{measure}_ms")) + number * _MEASURE_STEP


def _spread(rows: DataFrame, grains: Sequence[str]) -> DataFrame:
    """Minute rows, each again for every one of ``grains``."""
    lengths = F.explode(F.array(*(F.lit(GRAIN_MS[grain]).cast("long") for grain in grains)))
    start = (F.col("window_start") - F.pmod("window_start", "grain")).cast("long")
    return rows.withColumn("grain", lengths).withColumn("window_start", start)


def with_stored(parts: Parts, rollups: DataFrame) -> Parts:
    """``parts`` and stored roll-ups of any grain, which ``grain`` names."""
    keyed = rollups.withColumn("grain", _lengths())
    totals = parts.totals.unionByName(keyed.select(*_KEYS, *_SUMS, *_MAXES))
    entries = ", ".join(
        f"transform({m}_hist, e -> named_struct('code', e.bucket + {n * _MEASURE_STEP}, 'count', e.count))"
        for n, m in enumerate(schemas.MEASURES)
    )
    return Parts(totals, parts.minute_cells, keyed.select(*_KEYS, F.inline(F.expr(f"concat({entries})"))))


def _lengths() -> Column:
    """``grain`` as a length instead of a name."""
    return F.coalesce(
        *(F.when(F.col("grain") == name, F.lit(ms).cast("long")) for name, ms in GRAIN_MS.items())
    )


def rollups_of(parts: Parts) -> DataFrame:
    """One row per window, source, queue and task, with averages and percentiles; ``grain`` by its name.

    Rows of one grain and date come from one task, in order: they are written to one file, always the same.
    """
    totals = parts.totals.groupBy(*_KEYS).agg(
        *(F.sum(name).alias(name) for name in _SUMS), *(F.max(name).alias(name) for name in _MAXES)
    )
    cells = _all_cells(parts)
    histograms = cells.groupBy(*_KEYS).agg(
        *(F.expr(_collected(n)).alias(f"{m}_hist") for n, m in enumerate(schemas.MEASURES))
    )
    # One to at most one: windows in which nothing was measured have no cells.
    joined = totals.join(histograms, _KEYS, "left")
    empty = F.array().cast("array<struct<bucket:int,count:bigint>>")
    filled = {f"{m}_hist": F.coalesce(f"{m}_hist", empty) for m in schemas.MEASURES}
    return _finish(joined.withColumns(filled))


def _all_cells(parts: Parts) -> DataFrame:
    """Cells of all grains, each once. Minutes are most of them, and are grouped again only if they must."""
    names = [*_KEYS, "code", "count"]
    minutes = parts.minute_cells.select(*names)
    coarse = _spread(parts.minute_cells, [grain for grain in schemas.GRAINS if grain != "minute"]).select(
        *names
    )
    if parts.other_cells is not None:
        coarse = minutes.unionByName(coarse).unionByName(parts.other_cells.select(*names))
        return _added(coarse)
    return minutes.unionByName(_added(coarse))


def _added(cells: DataFrame) -> DataFrame:
    return cells.groupBy(*_KEYS, "code").agg(F.sum("count").alias("count"))


def _collected(measure: int) -> str:
    low, high = measure * _MEASURE_STEP, (measure + 1) * _MEASURE_STEP
    entry = f"named_struct('bucket', code - {low}, 'count', count)"
    return f"sort_array(collect_list(if(code >= {low} and code < {high}, {entry}, null)))"


def _finish(merged: DataFrame) -> DataFrame:
    """Fill in what follows from sums and histograms."""
    derived: dict[str, Column] = {
        "grain": F.coalesce(*(F.when(F.col("grain") == ms, F.lit(name)) for name, ms in GRAIN_MS.items())),
        "schema_version": F.lit(schemas.SCHEMA_VERSION),
        "date": day_of(F.col("window_start")),
    }
    for m in schemas.MEASURES:
        derived[f"{m}_avg_ms"] = F.expr(f"if({m}_count > 0, {m}_sum_ms / {m}_count, null)")
        derived[f"{m}_at"] = percentile_buckets(f"{m}_hist", f"{m}_count", PERCENTILES)
    # The exchange also keeps Spark from working the buckets out anew for every column that uses them.
    reached = merged.withColumns(derived).repartition("grain", "date")
    values = {
        f"{m}_{name}_ms": F.least(value_column(F.col(f"{m}_at.{name}")), F.col(f"{m}_max_ms").cast("double"))
        for m in schemas.MEASURES
        for name in PERCENTILES
    }
    finished = reached.withColumns(values).select("grain", *schemas.GOLD_MINUTE.names)
    return finished.sortWithinPartitions("grain", "date", *schemas.GOLD_MINUTE.keys)
