"""Attempts by minute, hour and day, with histograms that can be added up.

Each task turns its attempts into rows of the table, with percentiles. Rows of the same window are added up,
no matter whether they come from other tasks or from earlier batches. Most windows come from one task only and
need no merge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from windlass.pipeline import hashsets, schemas
from windlass.pipeline.histogram import PERCENTILES, bucket_sql
from windlass.pipeline.transforms.grains import GRAIN_MS
from windlass.pipeline.transforms.sql import as_rows, ask, engine, window
from windlass.pipeline.transforms.windows import MINUTE_MS, Histograms, Kinds, Windows, added_up, cells_of

if TYPE_CHECKING:
    import pyarrow as pa
    from duckdb import DuckDBPyConnection

_COUNTS = ["attempts", *schemas.OUTCOME_COLUMNS.values()]
#: Derived columns of each attempt: its minute, and the buckets of its measures.
_MEASURED = (
    f"SELECT {window('finished_ms', MINUTE_MS)} // {MINUTE_MS} AS minute, "
    + ", ".join(f"coalesce({bucket_sql(f'{m}_ms')}, -1) AS {m}_bucket" for m in schemas.MEASURES)
    + " FROM attempts"
)
#: SQL that aggregates attempts of the table ``numbered`` to one row for each number.
_COUNTED = ", ".join(
    [
        "count(*) AS attempts",
        *(
            f"count(*) FILTER (outcome = '{word}') AS {name}"
            for word, name in schemas.OUTCOME_COLUMNS.items()
        ),
        *(
            f"count({m}_ms) AS {m}_count, coalesce(sum({m}_ms), 0)::BIGINT AS {m}_sum_ms, "
            f"max({m}_ms) AS {m}_max_ms"
            for m in schemas.MEASURES
        ),
        *(f"sum({cause}_ms)::BIGINT AS {cause}_sum_ms" for cause in schemas.CAUSES),
    ]
)
#: SQL that aggregates roll-ups of the table ``numbered`` to one row for each number.
_SUMS = [
    *_COUNTS,
    *(f"{m}_{what}" for m in schemas.MEASURES for what in ("count", "sum_ms")),
    *(f"{cause}_sum_ms" for cause in schemas.CAUSES),
]
_MOST = [f"{m}_max_ms" for m in schemas.MEASURES]
_ADDED = ", ".join(
    [*(f"sum({name})::BIGINT AS {name}" for name in _SUMS), *(f"max({name}) AS {name}" for name in _MOST)]
)


def attempt_rollups(
    connection: DuckDBPyConnection, attempts: pa.Table, grains: Sequence[str]
) -> list[pa.Table]:
    """Roll-ups for each grain of the attempts in the table ``attempts`` of ``connection``."""
    if not grains:
        return []
    kinds, measured = Kinds(attempts), ask(connection, _MEASURED)
    minutes = measured.column("minute").to_numpy()
    buckets = {m: measured.column(f"{m}_bucket").to_numpy() for m in schemas.MEASURES}
    by_minute = Windows(kinds, kinds.of_rows, minutes)
    totals = _grouped(connection, attempts, by_minute.numbers, _COUNTED)
    numbers = totals.column("number").to_numpy()
    found = []
    for grain in grains:
        width = GRAIN_MS[grain] // MINUTE_MS
        windows = Windows(kinds, kinds.of_rows, minutes, width)
        wider = Windows(kinds, by_minute.kinds_of(numbers), by_minute.minutes_of(numbers), width)
        summed = totals if width == 1 else _grouped(connection, totals, wider.numbers, _ADDED)
        cells = {
            m: hashsets.counted(cells_of(windows.numbers[some], buckets[m][some]))
            for m in schemas.MEASURES
            for some in [buckets[m] >= 0]
        }
        found.append(_finished(summed, windows, cells))
    return found


def merged_rollups(rows: pa.Table) -> pa.Table:
    """Roll-ups of one grain, each window once, sorted by their keys."""
    import numpy as np
    import pyarrow as pa

    kinds, minutes = Kinds(rows), rows.column("window_start").to_numpy() // MINUTE_MS
    windows = Windows(kinds, kinds.of_rows, minutes)
    numbers = windows.numbers
    known, counts = hashsets.counted(numbers)
    is_alone = counts[np.searchsorted(known, numbers)] == 1
    alone = rows.filter(pa.array(is_alone))
    if alone.num_rows < rows.num_rows:
        several = rows.filter(pa.array(~is_alone))
        alone = pa.concat_tables([alone, _added(several, windows, numbers[~is_alone])])
        numbers = np.concatenate([numbers[is_alone], known[counts > 1]])
    return alone.combine_chunks().take(pa.array(np.argsort(numbers)))


def _added(rows: pa.Table, windows: Windows, numbers: Any) -> pa.Table:
    """Add up rows with the same number."""
    import pyarrow as pa
    import pyarrow.compute as pc

    with engine() as connection:
        totals = _grouped(connection, rows, numbers, _ADDED)
    cells = {}
    for m in schemas.MEASURES:
        lists = pa.concat_arrays(rows.column(f"{m}_hist").chunks)
        buckets, counts = (part.to_numpy() for part in lists.flatten().flatten())
        of_rows = pc.list_parent_indices(lists).to_numpy()
        cells[m] = added_up(cells_of(numbers[of_rows], buckets), counts)
    return _finished(totals, windows, cells)


def _grouped(connection: DuckDBPyConnection, rows: pa.Table, numbers: Any, sql: str) -> pa.Table:
    """Aggregate by ``sql``: one row for each number, in order."""
    import pyarrow as pa

    if "number" in rows.column_names:
        rows = rows.drop_columns(["number"])
    connection.register("numbered", rows.append_column("number", pa.array(numbers)))
    return ask(connection, f"SELECT number, {sql} FROM numbered GROUP BY number ORDER BY number")


def _finished(totals: pa.Table, windows: Windows, cells: Mapping[str, tuple[Any, Any]]) -> pa.Table:
    """Rows of the table, from the sums by number and the histogram cells of each measure."""
    import pyarrow as pa
    import pyarrow.compute as pc

    numbers = totals.column("number").to_numpy()
    version = pa.scalar(schemas.SCHEMA_VERSION, pa.int32())
    columns = {name: totals.column(name) for name in (*_SUMS, *_MOST)}
    columns |= {**windows.keys(numbers), "schema_version": pa.repeat(version, len(numbers))}
    for m in schemas.MEASURES:
        count = columns[f"{m}_count"]
        some = pc.cast(pc.if_else(pc.greater(count, 0), count, None), pa.float64())
        columns[f"{m}_avg_ms"] = pc.divide(pc.cast(columns[f"{m}_sum_ms"], pa.float64()), some)
        histograms = Histograms(*cells[m], numbers)
        columns[f"{m}_hist"] = histograms.lists
        most = pc.cast(columns[f"{m}_max_ms"], pa.float64())
        for name, per_mille in PERCENTILES.items():
            reached = histograms.percentile(per_mille)
            columns[f"{m}_{name}_ms"] = pc.min_element_wise(reached, most, skip_nulls=False)
    return as_rows(pa.table(columns), schemas.GOLD_MINUTE)
