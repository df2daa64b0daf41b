"""Attempts by minute, hour and day, with histograms that add up.

What a task makes of its attempts are rows of the table already, percentiles and all. Rows of the same window
add up, whether a task or an earlier batch made them; most windows are known to one task only and need no
adding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from windlass.pipeline import schemas
from windlass.pipeline.histogram import PERCENTILES, bucket_sql, values_until
from windlass.pipeline.transforms.grains import GRAIN_MS
from windlass.pipeline.transforms.sql import as_rows, ask, day, engine, window

if TYPE_CHECKING:
    import pyarrow as pa
    from duckdb import DuckDBPyConnection

_NAMES = ("source", "window_start", "queue", "task")
_KEYS = ", ".join(_NAMES)
_COUNTS = ["attempts", *schemas.OUTCOME_COLUMNS.values()]


def attempt_rollups(connection: DuckDBPyConnection, grain: str) -> pa.Table:
    """Roll-ups of the table ``attempts``."""
    outcomes = ", ".join(
        f"count(*) FILTER (outcome = '{word}') AS {name}" for word, name in schemas.OUTCOME_COLUMNS.items()
    )
    measures = ", ".join(
        f"count({m}_ms) AS {m}_count, coalesce(sum({m}_ms), 0)::BIGINT AS {m}_sum_ms, "
        f"max({m}_ms) AS {m}_max_ms, "
        f"histogram({bucket_sql(f'{m}_ms')}) FILTER ({m}_ms IS NOT NULL) AS {m}_map"
        for m in schemas.MEASURES
    )
    start = window("finished_ms", GRAIN_MS[grain])
    sql = (
        f"SELECT source, {start} AS window_start, queue, task, count(*) AS attempts, {outcomes}, {measures} "
        "FROM attempts GROUP BY ALL"
    )
    return _finished(
        ask(connection, f"SELECT *, {day('window_start')} AS date FROM ({sql}) ORDER BY {_KEYS}")
    )


def merged_rollups(rows: pa.Table) -> pa.Table:
    """Roll-ups of one grain, each window once."""
    with engine(rows=rows) as connection:
        often = f"(SELECT {_KEYS} FROM rows GROUP BY ALL HAVING count(*) > 1)"
        alone = ask(connection, f"SELECT * FROM rows ANTI JOIN {often} USING ({_KEYS})")
        if alone.num_rows < rows.num_rows:
            connection.execute(f"CREATE TEMP TABLE several AS FROM rows SEMI JOIN {often} USING ({_KEYS})")
            connection.register("alone", as_rows(alone, schemas.GOLD_MINUTE))
            connection.register("added", _added(connection))
            alone = ask(connection, "FROM alone UNION ALL BY NAME FROM added")
        connection.register("merged", alone)
        return as_rows(ask(connection, f"FROM merged ORDER BY date, {_KEYS}"), schemas.GOLD_MINUTE)


def _added(connection: DuckDBPyConnection) -> pa.Table:
    """The rows of the table ``several``, as one for each window."""
    sums = ", ".join(f"sum({name})::BIGINT AS {name}" for name in _COUNTS)
    measures = ", ".join(
        f"sum({m}_count)::BIGINT AS {m}_count, sum({m}_sum_ms)::BIGINT AS {m}_sum_ms, "
        f"max({m}_max_ms) AS {m}_max_ms"
        for m in schemas.MEASURES
    )
    histograms = " ".join(
        f"LEFT JOIN (SELECT {_KEYS}, map_from_entries(list((bucket, count) ORDER BY bucket)) AS {m}_map FROM "
        f"(SELECT {_KEYS}, e.bucket AS bucket, sum(e.count)::BIGINT AS count FROM "
        f"(SELECT {_KEYS}, unnest({m}_hist) AS e FROM several) GROUP BY ALL) GROUP BY ALL) USING ({_KEYS})"
        for m in schemas.MEASURES
    )
    totals = f"SELECT {_KEYS}, any_value(date) AS date, {sums}, {measures} FROM several GROUP BY {_KEYS}"
    return _finished(ask(connection, f"SELECT * FROM ({totals}) {histograms} ORDER BY {_KEYS}"))


def _finished(rows: pa.Table) -> pa.Table:
    """Fill in what follows from sums and histograms, which are maps so far."""
    import pyarrow as pa
    import pyarrow.compute as pc

    version = pa.scalar(schemas.SCHEMA_VERSION, pa.int32())
    rows = rows.append_column("schema_version", pa.repeat(version, rows.num_rows))
    for m in schemas.MEASURES:
        count = rows.column(f"{m}_count")
        some = pc.if_else(pc.greater(count, 0), count, None)
        average = pc.divide(pc.cast(rows.column(f"{m}_sum_ms"), pa.float64()), pc.cast(some, pa.float64()))
        histogram = _Histograms(rows.column(f"{m}_map"))
        rows = rows.append_column(f"{m}_avg_ms", average).append_column(f"{m}_hist", histogram.lists)
        most = pc.cast(rows.column(f"{m}_max_ms"), pa.float64())
        for name, per_mille in PERCENTILES.items():
            reached = pc.min_element_wise(histogram.percentile(per_mille), most, skip_nulls=False)
            rows = rows.append_column(f"{m}_{name}_ms", reached)
    return as_rows(rows, schemas.GOLD_MINUTE)


class _Histograms:
    """A column of maps from bucket to count, as lists and as one line of numbers."""

    def __init__(self, column: Any) -> None:
        import numpy as np
        import pyarrow as pa

        maps = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
        first = maps.offsets[0].as_py() if len(maps) else 0
        offsets = np.concatenate([[0], np.cumsum(_lengths(maps))]).astype(np.int32)
        buckets = maps.keys.slice(first, int(offsets[-1]))
        counts = maps.items.slice(first, int(offsets[-1])).cast(pa.int64())
        fields = [pa.field("bucket", pa.int32(), False), pa.field("count", pa.int64(), False)]
        entries = pa.StructArray.from_arrays([buckets.cast(pa.int32()), counts], fields=fields)
        kind = schemas.GOLD_MINUTE.arrow.field(f"{schemas.MEASURES[0]}_hist").type
        self.lists = pa.ListArray.from_arrays(pa.array(offsets), entries, type=kind)
        self._buckets = buckets.to_numpy(zero_copy_only=False)
        seen = np.concatenate([[0], np.cumsum(counts.to_numpy(zero_copy_only=False))])
        #: How many are in all histograms before each one, and at its end.
        self._before, self._until = seen[offsets[:-1]], seen[offsets[1:]]
        self._seen = seen[1:]

    def percentile(self, per_mille: int) -> pa.Array:
        """Nearest rank, as ``core.histogram.percentile``; null where nothing was measured."""
        import numpy as np
        import pyarrow as pa

        total = self._until - self._before
        empty = total == 0
        if not len(self._seen):
            return pa.nulls(len(total), pa.float64())
        at = np.searchsorted(self._seen, self._before - (-total * per_mille // 1000))
        values = values_until(int(self._buckets.max()))[self._buckets[np.minimum(at, len(self._seen) - 1)]]
        return pa.array(values, pa.float64(), mask=empty)


def _lengths(maps: Any) -> Any:
    """Entries of each map; null has none."""
    import numpy as np
    import pyarrow.compute as pc

    offsets = maps.offsets.to_numpy()
    lengths = np.diff(offsets)
    return lengths if not maps.null_count else lengths * pc.is_valid(maps).to_numpy(zero_copy_only=False)
