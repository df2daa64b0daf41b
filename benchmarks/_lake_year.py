"""The log of a lake over years: the cost to commit one batch and to open a reader, as the log grows.

Commits are those of real batches, of all tables, by the pipeline's own code; data files are empty, since only
the log is looked at. Each day is joined to one file per table at its end, as a nightly ``compact`` does. The
last of the days is today, and each log is given the age that it would have: Delta drops old commits and
forgets removed files by their age.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from windlass.core.clock import SYSTEM_CLOCK, SystemClock
from windlass.core.ids import new_id
from windlass.pipeline import schemas
from windlass.pipeline.files import FileEntry
from windlass.pipeline.lake import TRIM_EVERY, Lake

DAY_MS = 86_400_000
#: The cost of a batch is the mean of this many: two rounds of checkpoints.
MEAN_OF = 2 * TRIM_EVERY


@dataclass
class DrivenDays(SystemClock):
    """A clock that is set to a day."""

    today_ms: int

    def now_ms(self) -> int:
        return self.today_ms

    @property
    def date(self) -> str:
        return str(datetime.fromtimestamp(self.today_ms / 1000, UTC).date())


def run(folder: Path, days: int, batches: int, looks: Sequence[int]) -> None:
    """``batches`` a day for ``days`` days; figures at the days in ``looks`` and the last one."""
    clock = DrivenDays(SYSTEM_CLOCK.now_ms() - days * DAY_MS)
    lake = Lake(str(folder), clock).create()
    print(f"\n  {batches} batches a day: what the log costs (mean of the last {MEAN_OF} batches)")
    print("     day    commits   CPU of a batch   to open    files    log", flush=True)
    number, costs = 0, deque[float](maxlen=MEAN_OF)
    for day in range(1, days + 1):
        clock.today_ms += DAY_MS
        for _ in range(batches):
            number += 1
            started = time.process_time()
            commit_batch(lake, clock, number)
            costs.append(time.process_time() - started)
        join_day(lake, clock)
        age_logs(folder, clock)
        if day in looks or day == days:
            show(lake, folder, day, number, sum(costs) / len(costs))


def commit_batch(lake: Lake, clock: DrivenDays, number: int) -> None:
    if number % TRIM_EVERY == 0:
        lake.trim_logs()
    latest = {"year": {"batch": number, "gaps": [], "seen_ms": 0}}
    note = {"offsets": {"year": {"mail": number}}, "latest": latest, "seen_ms": 0}
    for table in schemas.BATCHED:
        add = [] if table is schemas.BRONZE_GAPS else [empty_file(lake, table, clock)]
        first = table is schemas.BRONZE_ATTEMPTS
        lake.commit(table, add, batches={"year": number}, note=note if first else None)


def age_logs(folder: Path, clock: DrivenDays) -> None:
    """Set the file times of the day's commits to that day."""
    at = clock.today_ms / 1000
    for path in logs(folder):
        if path.stat().st_mtime > at:
            os.utime(path, (at, at))


def logs(folder: Path) -> Iterator[Path]:
    """The files of all logs."""
    return folder.glob("*/*/_delta_log/*")


def join_day(lake: Lake, clock: DrivenDays) -> None:
    """Replace the files of a day by one file."""
    for table in schemas.BATCHED:
        old = lake.entries(table, [clock.date])
        note = lake.note() if table is schemas.BRONZE_ATTEMPTS else None
        lake.commit(table, [empty_file(lake, table, clock)], old, note=note)


def empty_file(lake: Lake, table: schemas.TableSchema, clock: DrivenDays) -> FileEntry:
    path = f"date={clock.date}/part-{new_id()}.parquet"
    file = Path(lake.url) / table.path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    span: tuple[object, object] = (clock.today_ms, clock.today_ms)
    ranges = {name: ("year", "year") if name == "source" else span for name in table.ranged}
    return FileEntry(path, table.path, clock.date, 1_000, 0, ranges)


def show(lake: Lake, folder: Path, day: int, number: int, spent: float) -> None:
    started = time.process_time()
    opened = Lake(str(folder)).open().level()
    to_open = time.process_time() - started
    files = sum(len(opened.entries(table)) for table in schemas.TABLES.values())
    size = sum(path.stat().st_size for path in logs(folder) if path.is_file())
    print(
        f"  {day:>6,} {number * len(schemas.BATCHED):>10,} {1000 * spent:>12.1f} ms "
        f"{1000 * to_open:>8.0f} ms {files:>8,} {size >> 20:>4,} MiB   load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
