"""Reads the gold tables without a JVM, through Arrow. The dashboard and reports use it.

``transforms.gold_rows`` computes the rows, and ``spark_tasks.MergeGold`` writes them.

Only files whose windows overlap the query are opened. All tables are read as of the newest batch that every
one of them holds. Files that a run replaces stay until ``vacuum`` deletes them, so a reader can finish.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from windlass.pipeline import schemas
from windlass.pipeline.histogram import PERCENTILES, merge, percentile
from windlass.pipeline.lake import Lake

Row = dict[str, Any]


class Gold:
    """The gold tables of a lake."""

    def __init__(self, root: str) -> None:
        self._lake = Lake(root).open().level()

    @property
    def lake(self) -> Lake:
        return self._lake

    def refresh(self) -> None:
        """Load what was committed since the last call."""
        self._lake.level()

    def rows(
        self,
        table: schemas.TableSchema,
        since_ms: int | None = None,
        until_ms: int | None = None,
        **equal: str,
    ) -> list[Row]:
        """Rows of a table whose first ranged column is in ``[since_ms, until_ms)``, in its order."""
        column = table.ranged[0]
        low = since_ms if since_ms is not None else -(2**62)
        high = (until_ms if until_ms is not None else 2**62) - 1

        import pyarrow.dataset as ds

        wanted = (ds.field(column) >= low) & (ds.field(column) <= high)
        for name, value in equal.items():
            wanted &= ds.field(name) == value
        found: list[Row] = self._lake.delta(table).to_pyarrow_dataset().to_table(filter=wanted).to_pylist()
        for row in found:
            row["date"] = str(row["date"])
        return sorted(found, key=lambda row: [row[name] for name in (column, *table.keys)])

    def erased(self, since_ms: int, until_ms: int) -> int:
        """How many attempts that roll-ups count in ``[since_ms, until_ms)`` were erased."""
        return len(self.rows(schemas.SILVER_ERASED, since_ms, until_ms))

    def alive(self) -> list[Row]:
        """Counts of jobs that the newest snapshot of their store saw and that have not ended since, by
        ``source``, ``queue`` and ``state``. The state is null for jobs that ran since.
        """
        import pyarrow.dataset as ds

        wanted = ds.field("seen_ms").is_valid() & ~ds.field("final")
        columns = ["source", "queue", "state", "seen_ms"]
        rows = self._lake.delta(schemas.SILVER_JOBS).to_pyarrow_dataset().to_table(columns, filter=wanted)
        found = Counter(tuple(row.values()) for row in rows.to_pylist())
        newest = {source: self._lake.last_snapshot(source) for source, *_ in found}
        seen = {key: count for key, count in found.items() if key[3] == newest[key[0]]}
        return [
            dict(zip((*columns, "jobs"), (*key, count), strict=True))
            for key, count in sorted(seen.items(), key=repr)
        ]

    def rollups(
        self, grain: str, since_ms: int | None = None, until_ms: int | None = None, **equal: str
    ) -> list[Row]:
        """Roll-up rows of a grain: ``minute``, ``hour`` or ``day``."""
        return self.rows(schemas.ROLLUPS[grain], since_ms, until_ms, **equal)

    def totals(
        self,
        grain: str = "day",
        by: Sequence[str] = ("queue", "task"),
        since_ms: int | None = None,
        until_ms: int | None = None,
    ) -> list[Row]:
        """Roll-ups added up by some of their keys, with percentiles."""
        return add_up(self.rollups(grain, since_ms, until_ms), by)


def add_up(rows: Iterable[Row], by: Sequence[str]) -> list[Row]:
    """Add up roll-up rows that have equal ``by`` columns."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in by), []).append(row)
    return [{**dict(zip(by, key, strict=True)), **_sum(group)} for key, group in sorted(groups.items())]


def _sum(rows: Sequence[Row]) -> Row:
    total: Row = {
        name: sum(row[name] for row in rows) for name in ("attempts", *schemas.OUTCOME_COLUMNS.values())
    }
    for cause in schemas.CAUSES:
        # These columns are missing until a run of this release has opened the lake.
        sums = [row.get(f"{cause}_sum_ms") for row in rows]
        known = [value for value in sums if value is not None]
        total[f"{cause}_sum_ms"] = sum(known) if known else None
    for m in schemas.MEASURES:
        count = sum(row[f"{m}_count"] for row in rows)
        sum_ms = sum(row[f"{m}_sum_ms"] for row in rows)
        most = max((row[f"{m}_max_ms"] for row in rows if row[f"{m}_max_ms"] is not None), default=None)
        histogram = merge(row[f"{m}_hist"] for row in rows)
        total |= {f"{m}_count": count, f"{m}_sum_ms": sum_ms, f"{m}_max_ms": most, f"{m}_hist": histogram}
        total[f"{m}_avg_ms"] = sum_ms / count if count else None
        for name, per_mille in PERCENTILES.items():
            value = percentile(histogram, per_mille)
            total[f"{m}_{name}_ms"] = None if value is None or most is None else min(value, float(most))
    return total
