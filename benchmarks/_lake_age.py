"""What a batch costs in lakes of different ages: the commits, beside the library alone, and whole batches.

Each lake has one file per table and day, as after a nightly ``compact``; the files of its past are empty,
since no batch opens them. The lakes take turns, so that all of them meet the same load of the machine.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks._lake_year import DAY_MS, DrivenDays, commit_batch, empty_file
from windlass.pipeline import schemas
from windlass.pipeline.files import FileEntry
from windlass.pipeline.lake import Lake

#: Commits of the library alone go to a table with these columns.
_BARE = schemas.GOLD_BACKLOG
#: Batches that warm the JVM up, in each lake.
WARM_UP = 2


def past_files(lake: Lake, table: schemas.TableSchema, before: date, days: int) -> list[FileEntry]:
    """An empty file for each day of the past."""
    first = empty_file(lake, table, DrivenDays(0))
    found = []
    for back in range(1, days + 1):
        day = before - timedelta(days=back)
        at_ms = (day - date(1970, 1, 1)).days * DAY_MS
        # No batch has the number 0, so none is looked for in these files.
        spans = {"source": ("past", "past"), "batch": (0, 0)}
        ranges = {name: spans.get(name, (at_ms, at_ms)) for name in table.ranged}
        path = first.path.replace(first.date, str(day))
        file = Path(lake.url) / table.path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        found.append(FileEntry(path, table.path, str(day), 1_000, 1, ranges))
    return found


def old_lake(folder: Path, before: date, days: int) -> Lake:
    """A lake that is this many days old."""
    lake = Lake(str(folder)).create()
    for table in schemas.BATCHED:
        if table is not schemas.BRONZE_GAPS:
            note = {"offsets": {}, "latest": {}, "seen_ms": 0}
            files = past_files(lake, table, before, days)
            lake.commit(table, files, note=note if table is schemas.BRONZE_ATTEMPTS else None)
        lake.delta(table).create_checkpoint()
    return lake


class BareTable:
    """The library alone: one added file per commit, then the new version is looked at."""

    def __init__(self, folder: Path, before: date, days: int) -> None:
        self._lake = Lake(str(folder)).create()
        self._lake.commit(_BARE, past_files(self._lake, _BARE, before, days))
        self._delta = self._lake.delta(_BARE)
        self._schema = self._delta.schema()

    def commit(self, clock: DrivenDays) -> None:
        from deltalake.transaction import AddAction

        entry = empty_file(self._lake, _BARE, clock)
        action = AddAction(entry.path, 0, {"date": entry.date}, clock.today_ms, True, entry.statistics)
        self._delta.create_write_transaction([action], "append", self._schema, ["date"])
        self._delta.update_incremental()


def run(folder: Path, ages: Sequence[int], rounds: int) -> None:
    """Commits only: the mean and the median over ``rounds`` batches."""
    clock = DrivenDays(int(time.time() * 1000))
    today = date.fromisoformat(clock.date)
    lakes = {age: old_lake(folder / f"lake-{age}", today, age) for age in ages}
    bare = {age: BareTable(folder / f"bare-{age}", today, age) for age in ages}
    ours: dict[int, list[float]] = {age: [] for age in ages}
    theirs: dict[int, list[float]] = {age: [] for age in ages}
    for number in range(1, rounds + 1):
        for age in ages:
            theirs[age].append(spent(partial(bare[age].commit, clock)))
            batch = spent(partial(_batch, lakes[age], clock, number))
            ours[age].append(batch / len(schemas.BATCHED))
    print(f"\n  CPU of one commit over {rounds} batches of {len(schemas.BATCHED)} tables, in turns")
    print("    files in a table   the library alone (mean, median)   ours (mean, median)")
    for age in ages:
        cells = [f"{1000 * f(costs[age]):.1f} ms" for costs in (theirs, ours) for f in _FIGURES]
        print(f"    {age:>16,}   {cells[0]:>14} {cells[1]:>10} {cells[2]:>17} {cells[3]:>10}", flush=True)
    print(f"  load {os.getloadavg()[0]:.1f}", flush=True)


_FIGURES: tuple[Callable[[list[float]], float], ...] = (statistics.fmean, statistics.median)


def _batch(lake: Lake, clock: DrivenDays, number: int) -> None:
    """The reads and commits of the driver of a batch."""
    for table in schemas.BATCHED:
        lake.done(table, "year")
        lake.entries(table, [clock.date])
    commit_batch(lake, clock, number)


def spent(work: Callable[[], object]) -> float:
    """CPU seconds of this process, all threads."""
    started = time.process_time()
    work()
    return time.process_time() - started


def run_batches(
    spark: Any,
    folder: Path,
    url: str,
    first_day: date,
    ages: Sequence[int],
    records: int,
    rounds: int,
    cpu_seconds: Callable[[], float],
) -> None:
    """Whole batches of ``records``: the same records into each lake, in turns."""
    from windlass.pipeline.run import Pipeline, RunOptions

    pipelines = {}
    for age in ages:
        old_lake(folder / f"whole-{age}", first_day, age)
        options = RunOptions(url=url, lake=str(folder / f"whole-{age}"), max_records=records)
        pipelines[age] = Pipeline(spark, options)
        pipelines[age].open()
    costs: dict[int, list[float]] = {age: [] for age in ages}
    for turn in range(rounds + WARM_UP):
        for age in ages if turn % 2 else reversed(ages):
            before = cpu_seconds()
            result = pipelines[age].run_batch()
            assert result is not None and result.records == records
            if turn >= WARM_UP:
                costs[age].append(1e6 * (cpu_seconds() - before) / records)
    print(f"\n  CPU of a record in {rounds} batches of {records:,}, in turns")
    for age in ages:
        # Batches of one round, with the same records and much the same load.
        ratios = [cost / first for cost, first in zip(costs[age], costs[ages[0]], strict=True)]
        each = ", ".join(f"{cost:.1f}" for cost in costs[age])
        print(
            f"    {age:>6,} days: median {statistics.median(costs[age]):.1f} us, "
            f"{100 * (statistics.median(ratios) - 1):+.1f} % in the same round   {each}",
            flush=True,
        )
    print(f"  load {os.getloadavg()[0]:.1f}", flush=True)
