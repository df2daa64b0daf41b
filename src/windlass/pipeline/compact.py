"""Upkeep of a lake: few large files instead of many small ones, and an end to old data.

Delta does the work. Each table is a commit of its own, so upkeep may be interrupted anywhere, and a run
that goes on meanwhile is not disturbed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, timedelta

from windlass.pipeline import schemas
from windlass.pipeline.files import FileEntry
from windlass.pipeline.lake import Lake, LakeTakenError, properties

#: A date is compacted when a table has more files for it than it needs, by this many.
SLACK = 3
#: Bytes that a file should have.
FILE_BYTES = 100 << 20
#: How long files that no version of the table needs any more are kept for readers of older ones.
KEEP_HOURS = 7 * 24


@dataclass(frozen=True)
class Retention:
    """How many days each layer is kept; None: for ever. Roll-ups stay for five years."""

    bronze_days: int | None = 30
    silver_days: int | None = 400
    gold_days: int | None = 5 * 366

    def days_for(self, table: schemas.Table) -> int | None:
        return {"bronze": self.bronze_days, "silver": self.silver_days, "gold": self.gold_days}[
            table.path.partition("/")[0]
        ]


def small_groups(lake: Lake, slack: int = SLACK) -> Iterator[tuple[schemas.Table, list[str]]]:
    """Tables, with those dates that have more files than they need."""
    for table in schemas.TABLES.values():
        groups: defaultdict[str, list[int]] = defaultdict(list)
        for entry in lake.entries(table):
            groups[entry.date].append(entry.bytes)
        days = sorted(
            day for day, sizes in groups.items() if len(sizes) >= max(-(-sum(sizes) // FILE_BYTES), 1) + slack
        )
        if days:
            yield table, days


def compact(
    lake: Lake,
    progress: Callable[[str], None] = lambda table: None,
    slack: int = SLACK,
) -> int:
    """Join small files, table by table; returns how many files are gone."""
    gone = 0
    for table, days in list(small_groups(lake, slack)):
        before = len(lake.entries(table))
        with _alone(table, "compact"):
            lake.delta(table).optimize.compact([(schemas.PARTITION, "in", days)], target_size=FILE_BYTES)
        lake.refresh(table)
        gone += before - len(lake.entries(table))
        progress(table.path)
    return gone


def expired(lake: Lake, retention: Retention, today: date) -> dict[str, list[FileEntry]]:
    """Files of dates past their keep, by table."""
    found = {}
    for table in schemas.TABLES.values():
        last = _last_day(retention, table, today)
        if last is not None and (old := [entry for entry in lake.entries(table) if entry.date < last]):
            found[table.path] = old
    return found


def _last_day(retention: Retention, table: schemas.Table, today: date) -> str | None:
    days = retention.days_for(table)
    return None if days is None else str(today - timedelta(days=days))


def prune(lake: Lake, retention: Retention, today: date) -> list[FileEntry]:
    """Drop dates that are past their keep; returns the files that went."""
    gone = []
    for path, old in expired(lake, retention, today).items():
        table = schemas.TABLES[path]
        with _alone(table, "prune"):
            lake.delta(table).delete(
                f"{schemas.PARTITION} < '{_last_day(retention, table, today)}'",
                commit_properties=properties(None, carried(lake, table), strict=True),
            )
        lake.refresh(table)
        gone += old
    return gone


@contextmanager
def _alone(table: schemas.Table, what: str) -> Iterator[None]:
    """``LakeTakenError`` when a run changes the table meanwhile."""
    from deltalake.exceptions import CommitFailedError

    try:
        yield
    except CommitFailedError as exc:
        raise LakeTakenError(f"a run changed {table.path} meanwhile; start {what} again") from exc


def carried(lake: Lake, table: schemas.Table) -> dict[str, object] | None:
    """The offsets once more: logs are cut after a while, and the newest note must not be lost."""
    return (lake.note() or None) if table is schemas.BRONZE_ATTEMPTS else None


def vacuum(lake: Lake, keep_hours: int = KEEP_HOURS) -> int:
    """Delete files that no version younger than ``keep_hours`` needs; returns how many."""
    gone = 0
    for table in schemas.TABLES.values():
        swept = lake.delta(table).vacuum(
            keep_hours, dry_run=False, enforce_retention_duration=False, full=True
        )
        gone += len(swept)
        lake.refresh(table)
    return gone
