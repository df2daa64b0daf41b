"""Upkeep of a lake: few large files instead of many small ones, and an end to old data.

Both work on committed files only and are one change each per date, so they may be interrupted anywhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, timedelta

from pyspark.sql import SparkSession

from windlass.pipeline import schemas
from windlass.pipeline.lake import FileEntry, Lake
from windlass.pipeline.tables import Staged, Workbench, files_for

#: A date is compacted when a table has more files for it than it needs, by this many.
SLACK = 3
_SORTED_BY = {
    schemas.BRONZE_ATTEMPTS.path: "finished_ms",
    schemas.SILVER_ATTEMPTS.path: "finished_ms",
    schemas.SILVER_JOBS.path: "enqueued_ms",
    schemas.BRONZE_GAPS.path: "seen_ms",
}


@dataclass(frozen=True)
class Retention:
    """How many days each layer is kept; None: for ever. Roll-ups stay for five years."""

    bronze_days: int | None = 30
    silver_days: int | None = 400
    gold_days: int | None = 5 * 366

    def days_for(self, table: str) -> int | None:
        return {"bronze": self.bronze_days, "silver": self.silver_days, "gold": self.gold_days}[
            table.partition("/")[0]
        ]


def small_groups(lake: Lake, slack: int = SLACK) -> Iterator[tuple[schemas.Table, str, list[FileEntry]]]:
    """Tables and dates with more files than they need."""
    groups: defaultdict[tuple[str, str], list[FileEntry]] = defaultdict(list)
    for entry in lake.state.files.values():
        groups[entry.table, entry.date].append(entry)
    for (path, day), entries in sorted(groups.items()):
        if len(entries) >= files_for(sum(entry.rows for entry in entries)) + slack:
            yield schemas.TABLES[path], day, entries


def compact(
    spark: SparkSession,
    lake: Lake,
    progress: Callable[[str, str, int], None] = lambda table, day, files: None,
    slack: int = SLACK,
) -> int:
    """Join small files, table by table and date by date; returns how many files are gone."""
    gone = 0
    for table, day, entries in list(small_groups(lake, slack)):
        bench = Workbench(spark, lake)
        rows = bench.read(table, entries)
        files = files_for(sum(entry.rows for entry in entries))
        order = _SORTED_BY.get(table.path)
        if order is not None and files > 1:
            rows = rows.repartitionByRange(files, order).sortWithinPartitions(order)
        elif order is not None:
            rows = rows.coalesce(1).sortWithinPartitions(order)
        folder = bench.stage(rows, "compact", files=None if files > 1 else 1)
        bench.take([Staged(table, folder, entries)])
        lake.commit(bench.txn, "compact", {}, bench.ledger.summary())
        gone += len(entries) - len(bench.txn.add)
        progress(table.path, day, len(entries))
    return gone


def expired(lake: Lake, retention: Retention, today: date) -> list[FileEntry]:
    """Files of dates past their keep."""
    found = []
    for entry in lake.state.files.values():
        days = retention.days_for(entry.table)
        if days is not None and entry.date < str(today - timedelta(days=days)):
            found.append(entry)
    return found


def prune(lake: Lake, retention: Retention, today: date) -> list[FileEntry]:
    """Drop dates that are past their keep, in one change; returns the files that went."""
    old = expired(lake, retention, today)
    if old:
        txn = lake.begin()
        txn.drop(old)
        lake.commit(txn, "prune", {}, {"files": len(old), "rows": sum(entry.rows for entry in old)})
    return old
