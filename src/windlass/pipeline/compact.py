"""Maintenance of a lake: join small files, drop old dates, delete unused files.

Each table has its own commit, and in compaction each day of it. So maintenance can be interrupted anywhere,
and does not disturb a run in progress.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from windlass.pipeline import schemas
from windlass.pipeline.files import FileEntry, TableWriter, read_entries
from windlass.pipeline.lake import TRIES, Conflict, Lake, LakeTakenError

#: A date is compacted when a table has this many more files for it than it needs.
SLACK = 3
#: Target size of a file, in bytes.
FILE_BYTES = 100 << 20
#: How long files that the newest version does not use are kept for readers of older versions.
KEEP_HOURS = 7 * 24


@dataclass(frozen=True)
class Retention:
    """How many days each layer is kept; None: forever. The default for roll-ups is five years."""

    bronze_days: int | None = 30
    silver_days: int | None = 400
    gold_days: int | None = 5 * 366

    def days_for(self, table: schemas.TableSchema) -> int | None:
        if table is schemas.SILVER_ERASED_JOBS:
            return None  # a store may keep a job longer than the lake does
        return {"bronze": self.bronze_days, "silver": self.silver_days, "gold": self.gold_days}[
            table.path.partition("/")[0]
        ]


def small_groups(lake: Lake, slack: int = SLACK) -> Iterator[tuple[schemas.TableSchema, list[str]]]:
    """Each table with the dates for which it has more files than it needs."""
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
    """Join small files, table by table; returns by how many the number of files fell."""
    gone = 0
    for table, days in list(small_groups(lake, slack)):
        gone += sum(_join_day(lake, table, day) for day in days)
        progress(table.path)
    return gone


def _join_day(lake: Lake, table: schemas.TableSchema, day: str) -> int:
    """Replace the files of a day by as few as possible; returns by how many their number fell.

    This does not use Delta's own compaction, because Delta accepts two compactions of the same files at once
    and rows would then be duplicated.
    """
    for _ in range(TRIES):
        old = [entry for entry in lake.entries(table, [day]) if entry.bytes < FILE_BYTES]
        new = _joined(lake, table, old)
        if len(new) >= len(old):
            return 0  # another compaction has done it
        if _replace(lake, table, new, old):
            return len(old) - len(new)
    raise LakeTakenError(f"runs changed {table.path} all the while; start compact again")


def _joined(lake: Lake, table: schemas.TableSchema, entries: Sequence[FileEntry]) -> list[FileEntry]:
    """Write the rows of ``entries`` to as few files as they need."""
    import pyarrow as pa

    size, rows = sum(entry.bytes for entry in entries), sum(entry.rows for entry in entries)
    writer = TableWriter(
        lake.place, table, parted=False, rows_per_file=max(rows * FILE_BYTES // max(size, 1), 1)
    )
    for batch in read_entries(lake.place, entries, table.names):
        writer.write(pa.Table.from_batches([batch]))
    return writer.close()


def _replace(
    lake: Lake, table: schemas.TableSchema, new: Sequence[FileEntry], old: Sequence[FileEntry]
) -> bool:
    """Commit, retrying while others add to the table. Returns False if one of the old files is gone."""
    for _ in range(TRIES):
        there = {entry.path for entry in lake.entries(table, {entry.date for entry in old})}
        if not there.issuperset(entry.path for entry in old):
            return False
        try:
            lake.commit(table, new, old, note=newest_note(lake, table), data_change=False)
        except Conflict:
            lake.refresh(table)
        else:
            return True
    return False


def expired(lake: Lake, retention: Retention, today: date) -> dict[str, list[FileEntry]]:
    """Files of dates that are past their retention, by table."""
    found = {}
    for table in schemas.TABLES.values():
        days = retention.days_for(table)
        if days is None:
            continue
        first = str(today - timedelta(days=days))
        if old := [entry for entry in lake.entries(table) if entry.date < first]:
            found[table.path] = old
    return found


def prune(lake: Lake, retention: Retention, today: date) -> list[FileEntry]:
    """Drop dates that are past their retention; returns the removed files."""
    gone = []
    for path, old in expired(lake, retention, today).items():
        table = schemas.TABLES[path]
        try:
            lake.commit(table, [], old, note=newest_note(lake, table))
        except Conflict as exc:
            raise LakeTakenError(f"a run changed {path} meanwhile; start prune again") from exc
        gone += old
    return gone


def newest_note(lake: Lake, table: schemas.TableSchema) -> dict[str, object] | None:
    """The newest note, to repeat in a commit: logs are trimmed, and the offsets must not be lost."""
    return (lake.note() or None) if table is schemas.BRONZE_ATTEMPTS else None


def vacuum(lake: Lake, keep_hours: int = KEEP_HOURS) -> int:
    """Delete files that no version younger than ``keep_hours`` uses; returns how many."""
    gone = 0
    for table in schemas.TABLES.values():
        swept = lake.delta(table).vacuum(
            keep_hours, dry_run=False, enforce_retention_duration=False, full=True
        )
        gone += len(swept)
        lake.refresh(table)
    return gone
