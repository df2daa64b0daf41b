"""A lake's log over years: what one batch costs to commit, and a reader to open, as days pile up.

Commits are those of real batches, of all tables, by the pipeline's own code; data files are empty, since only
the log is looked at. Each day is joined to one file per table at its end, as a nightly ``compact`` does.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from datetime import date, timedelta
from pathlib import Path

from windlass.core.ids import new_id
from windlass.pipeline import schemas
from windlass.pipeline.files import FileEntry
from windlass.pipeline.lake import Lake

FIRST = date(2025, 1, 1)
DAY_MS = 86_400_000
FIRST_MS = 1_735_689_600_000


def run(folder: Path, days: int, batches: int, looks: Sequence[int]) -> None:
    """``batches`` a day for ``days`` days; figures at the days in ``looks`` and the last one."""
    lake = Lake(str(folder)).create()
    print(f"\n  {batches} batches a day: what the log costs")
    print("     day    commits   CPU of a batch   to open    files    log", flush=True)
    number = 0
    for day in range(1, days + 1):
        started = time.process_time()
        for _ in range(batches):
            number += 1
            commit_batch(lake, day, number)
        spent = (time.process_time() - started) / batches
        join_day(lake, day, number)
        if day in looks or day == days:
            show(lake, folder, day, number, spent)


def commit_batch(lake: Lake, day: int, number: int) -> None:
    note = {
        "source": "year",
        "batch": number,
        "offsets": {"year": {"mail": number}},
        "gaps": [],
        "seen_ms": 0,
    }
    for table in schemas.BATCHED:
        add = [] if table is schemas.BRONZE_GAPS else [empty_file(lake, table, day)]
        first = table is schemas.BRONZE_ATTEMPTS
        lake.commit(table, add, batches={"year": number}, note=note if first else None)


def join_day(lake: Lake, day: int, number: int) -> None:
    """One file in place of the day's."""
    for table in schemas.BATCHED:
        old = lake.entries(table, [day_of(day)])
        note = lake.note() if table is schemas.BRONZE_ATTEMPTS else None
        lake.commit(table, [empty_file(lake, table, day)], old, note=note)


def empty_file(lake: Lake, table: schemas.Table, day: int) -> FileEntry:
    path = f"date={day_of(day)}/part-{new_id()}.parquet"
    file = Path(lake.url) / table.path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    at = FIRST_MS + day * DAY_MS
    span: tuple[object, object] = (at, at + DAY_MS)
    ranges = {name: ("year", "year") if name == "source" else span for name in table.ranged}
    return FileEntry(path, table.path, day_of(day), 1_000, 0, ranges)


def day_of(day: int) -> str:
    return str(FIRST + timedelta(days=day))


def show(lake: Lake, folder: Path, day: int, number: int, spent: float) -> None:
    started = time.process_time()
    opened = Lake(str(folder)).open().level()
    to_open = time.process_time() - started
    files = sum(len(opened.entries(table)) for table in schemas.TABLES.values())
    size = sum(path.stat().st_size for path in folder.rglob("_delta_log/*") if path.is_file())
    print(
        f"  {day:>6,} {number * len(schemas.BATCHED):>10,} {1000 * spent:>12.1f} ms "
        f"{1000 * to_open:>8.0f} ms {files:>8,} {size >> 20:>4,} MiB   load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
