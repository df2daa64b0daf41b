"""Gold without a JVM: what the dashboard and reports read, through Arrow.

Only files whose windows overlap the question are opened. A run that replaces files meanwhile is no problem:
the newest commit is read again and the question asked once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from windlass.pipeline import schemas
from windlass.pipeline.files import open_files
from windlass.pipeline.histogram import PERCENTILES, merge, percentile
from windlass.pipeline.lake import FileEntry, Lake

_RETRIES = 5
R = TypeVar("R")
Row = dict[str, Any]


class Gold:
    """The gold tables of a lake on this machine."""

    def __init__(self, root: str) -> None:
        self._lake = Lake(open_files(root))
        self._lake.load()

    @property
    def lake(self) -> Lake:
        return self._lake

    def refresh(self) -> None:
        """See what was committed since."""
        self._lake.refresh()

    def rows(
        self, table: schemas.Table, since_ms: int | None = None, until_ms: int | None = None, **equal: str
    ) -> list[Row]:
        """Rows of a table whose first ranged column is in ``[since_ms, until_ms)``, in its order."""
        column = table.ranged[0]
        low = since_ms if since_ms is not None else -(2**62)
        high = (until_ms if until_ms is not None else 2**62) - 1

        def read() -> list[Row]:
            entries = [entry for entry in self._lake.state.of(table) if entry.overlaps(column, low, high)]
            return _read(self._lake, table, entries)

        found = [
            row
            for row in self._steadily(read)
            if low <= row[column] <= high and all(row[name] == value for name, value in equal.items())
        ]
        return sorted(found, key=lambda row: [row[name] for name in (column, *table.keys)])

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
        """Roll-ups added up by some of ``window_start``, ``queue``, ``task``, percentiles and all."""
        return add_up(self.rollups(grain, since_ms, until_ms), by)

    def _steadily(self, read: Callable[[], R]) -> R:
        """Read; again from the newest commit when a file went away under us."""
        for _ in range(_RETRIES):
            try:
                return read()
            except FileNotFoundError:
                self._lake.refresh()
        return read()


def add_up(rows: Iterable[Row], by: Sequence[str]) -> list[Row]:
    """Roll-up rows with equal ``by`` columns as one."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in by), []).append(row)
    return [{**dict(zip(by, key, strict=True)), **_sum(group)} for key, group in sorted(groups.items())]


def _sum(rows: Sequence[Row]) -> Row:
    total: Row = {
        name: sum(row[name] for row in rows) for name in ("attempts", *schemas.OUTCOME_COLUMNS.values())
    }
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


def _read(lake: Lake, table: schemas.Table, entries: Iterable[FileEntry]) -> list[Row]:
    import pyarrow.parquet as pq

    found: list[Row] = []
    for entry in entries:
        with lake.files.open(entry.path) as file:
            rows: list[Row] = pq.ParquetFile(file).read().to_pylist()
        for row in rows:
            row["date"] = entry.date
            found.append({name: row.get(name) for name in table.names})
    return found
