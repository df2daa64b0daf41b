"""The pipeline under load: ingest, roll-ups beside DuckDB, and what a new day costs in an old lake.

    scripts/bench spark                     10,000,000 attempt records
    scripts/bench spark --records 200000    a quick look
    scripts/bench spark --against 13a842a   an older revision first, with its own code, then this one
    scripts/bench spark --log-days 3650     only the log: batches committed for ten years, without data
    scripts/bench spark --ages 1 365 3650   only a batch and its commits, in lakes of so many days
    scripts/bench spark --smoke             tiny: does everything run? its figures mean nothing

Records are written straight into the history log of an SQLite store, since running ten million jobs first
would measure something else. Times are of this machine, with its other load: beside each stands the CPU time
that this program took for it, of the driver, its JVM and all Python workers. The last table counts files,
rows and bytes and does not depend on load.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psutil

from benchmarks import _lake_age, _lake_year
from windlass.backend import requests as rq
from windlass.backend.urls import open_backend
from windlass.backends.sqlite.rows import LOG_KEY
from windlass.backends.sqlite.statements import table
from windlass.core.job import AttemptOutcome, AttemptRecord, NewJob

DAY_MS = 86_400_000
FIRST_DAY = 1_735_689_600_000  # 2025-01-01
CHUNK = 1_000
#: How an old lake is filled for the last table.
DAYS_PER_BATCH = 40
QUEUES = ("mail", "pdf", "pay", "sync")
TASKS = ("send", "render", "charge", "pull", "index")
OUTCOMES = [AttemptOutcome.COMPLETED] * 93 + [AttemptOutcome.RETRYING] * 5 + [AttemptOutcome.FAILED] * 2


# --- a store with a long history --------------------------------------------------------------------------


def make_store(path: Path) -> str:
    """An SQLite store that knows the queues."""
    url = f"sqlite:///{path}"

    async def prepare() -> None:
        backend = open_backend(url)
        await backend.open()
        jobs = [NewJob(queue=queue, id="first", task="send", payload=b"{}") for queue in QUEUES]
        await backend.execute(rq.Add(jobs=jobs))
        await backend.close()

    asyncio.run(prepare())
    return url


def append_history(
    path: Path, per_queue: int, records: Callable[[str, int], Iterator[AttemptRecord]]
) -> None:
    """Append records to every queue's log, in chunks, as the store itself would."""
    pack = msgspec.msgpack.encode
    queues, history = table("default", "queue"), table("default", "history")
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        known = connection.execute(f"SELECT name, num, last_history FROM {queues}").fetchall()
        for name, num, last in known:
            made = records(name, last)
            for first in range(0, per_queue, CHUNK):
                part = [next(made) for _ in range(min(CHUNK, per_queue - first))]
                last += len(part)
                row = (num * LOG_KEY + last, last - len(part) + 1, part[-1].finished_ms, pack(part))
                connection.execute(
                    f"INSERT INTO {history} (key, first_id, at_ms, records) VALUES (?,?,?,?)", row
                )
            connection.execute(f"UPDATE {queues} SET last_history = ? WHERE num = ?", (last, num))
    connection.close()


def day_records(day: int, per_queue: int) -> Callable[[str, int], Iterator[AttemptRecord]]:
    """Attempts spread evenly over one day; the same for the same day."""

    def records(queue: str, last: int) -> Iterator[AttemptRecord]:
        rng = random.Random(f"{queue}-{day}")
        start = FIRST_DAY + day * DAY_MS
        gap = DAY_MS / per_queue
        for n in range(per_queue):
            wait, run = int(rng.expovariate(1 / 40)), int(rng.lognormvariate(4, 1.2))
            finished = start + int(n * gap)
            outcome = OUTCOMES[int(rng.random() * 100)]
            failed = outcome is not AttemptOutcome.COMPLETED
            yield AttemptRecord(
                f"{queue}{day:04d}{n:010d}.1",
                f"j{day:04d}{n:010d}",
                1,
                1,
                queue,
                TASKS[n % len(TASKS)],
                None,
                (),
                f"worker-{n % 8}",
                finished - run - wait,
                finished - run - wait,
                finished - run,
                finished,
                wait,
                run,
                outcome,
                "ValueError" if failed else None,
                "f00d" if failed else None,
            )

    return records


# --- watching ourselves -----------------------------------------------------------------------------------


def family() -> list[psutil.Process]:
    """This process, its JVM and their Python workers."""
    me = psutil.Process()
    return [me, *me.children(recursive=True)]


def cpu_seconds() -> float:
    """CPU time of the family, of members that are gone too."""
    total = 0.0
    for process in family():
        try:
            total += sum(process.cpu_times()[:4])
        except psutil.Error:
            continue  # ended meanwhile: its parent has its time
    return total


class PeakMemory:
    """The largest resident size of the family, and of its largest member, looked at twice a second."""

    def __init__(self) -> None:
        self.together = self.largest = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.5):
            sizes = []
            for process in family():
                try:
                    sizes.append(process.memory_info().rss)
                except psutil.Error:
                    continue
            self.together = max(self.together, sum(sizes))
            self.largest = max(self.largest, *sizes)

    def __str__(self) -> str:
        jvm, all_of_them = self.largest >> 20, self.together >> 20
        return f"JVM {jvm:,} MiB, with the driver and all Python workers {all_of_them:,} MiB"


@contextmanager
def timed(what: str, records: int) -> Iterator[None]:
    """Print how long a block took, and how many records that is a second."""
    started, cpu = time.perf_counter(), cpu_seconds()
    yield
    seconds, cpu = time.perf_counter() - started, cpu_seconds() - cpu
    print(
        f"  {what:34}{seconds:8.1f} s {records / seconds:>10,.0f}/s   CPU {cpu:7.1f} s, "
        f"{1e6 * cpu / records:5.1f} us each, {os.cpu_count()} free cores {records * 2 / cpu:>9,.0f}/s"
        f"   load {os.getloadavg()[0]:.1f}",
        flush=True,
    )


# --- what is measured -------------------------------------------------------------------------------------


def ingest(spark: Any, url: str, folder: Path) -> None:
    """Log to the Parquet files of bronze, which no commit names."""
    from windlass.pipeline.batch import copy_records, plan_batch
    from windlass.pipeline.lake import Lake
    from windlass.pipeline.tables import Workbench

    plan = plan_batch(url, {}, 10**9)
    copy_records(Workbench(spark, Lake(str(folder))), url, "bench", 1, plan)


def spark_rollup(spark: Any, folder: Path) -> None:
    """Every gold table from bronze Parquet, written as Parquet: minute, hour and day among them."""
    from windlass.pipeline import schemas
    from windlass.pipeline.batch import gold_shares, merge_gold
    from windlass.pipeline.digest import joined
    from windlass.pipeline.files import FileEntry
    from windlass.pipeline.lake import Lake
    from windlass.pipeline.tables import Workbench
    from windlass.pipeline.work import DigestFiles

    bench, path = Workbench(spark, Lake(str(folder))), schemas.BRONZE_ATTEMPTS.path
    files = [
        FileEntry(f"{file.parent.name}/{file.name}", path, file.parent.name.removeprefix("date="), 0, 0)
        for file in sorted((folder / path).rglob("*.parquet"))
    ]
    digest = joined(bench.run([DigestFiles(bench.lake.place, [file]) for file in files]))
    merge_gold(bench, gold_shares(digest, schemas.GOLD), {})


def duckdb_rollup(folder: Path) -> None:
    """The minute with the same counts and histograms, from the same files, kept in memory."""
    import duckdb

    from windlass.pipeline.histogram import EXACT, GROWTH

    def bucket(column: str) -> str:
        steps = f"floor(ln({column} / {EXACT}.0) / ln({GROWTH}))"
        return f"histogram(CASE WHEN {column} < {EXACT} THEN {column} ELSE {EXACT} + {steps} END)"

    counts = ", ".join(
        f"count(*) FILTER (outcome = '{name}')" for name in ("completed", "failed", "retrying")
    )
    with duckdb.connect() as connection:
        connection.execute(
            f"""
            CREATE TABLE minute AS
            SELECT finished_ms // 60000 AS minute, queue, task, count(*), {counts}, sum(wait_ms),
                   max(wait_ms), sum(duration_ms), max(duration_ms), {bucket("wait_ms")},
                   {bucket("duration_ms")}
            FROM read_parquet('{folder}/**/*.parquet') GROUP BY ALL
            """
        )


def whole(spark: Any, url: str, lake: Path, records: int, max_records: int) -> None:
    """Bronze, silver and gold of the first ``records``."""
    from windlass.pipeline.run import Pipeline, RunOptions

    pipeline = Pipeline(spark, RunOptions(url=url, lake=str(lake), source="bench", max_records=max_records))
    pipeline.open()
    each: list[float] = []
    for done in range(0, records, max_records):  # the last costs what the first did: the lake has grown
        count, before = min(max_records, records - done), cpu_seconds()
        with timed(f"  batch at {done:,}", count):
            pipeline.run_batch()
        each.append(1e6 * (cpu_seconds() - before) / count)
    # The first one warms the JVM up.
    warm = each[1:] or each
    apart = 100 * (max(warm) / min(warm) - 1)
    print(f"  CPU of a record: {min(warm):.1f} to {max(warm):.1f} us, {apart:.0f} % apart", flush=True)


def measure_new_day(spark: Any, folder: Path, days: int, per_queue: int) -> dict[str, Any]:
    """What one new day reads and writes in a lake of ``days`` days."""
    from windlass.pipeline.run import Pipeline, RunOptions

    path = folder / f"days-{days}.db"
    url = make_store(path)
    for day in range(366 - days, 366):
        append_history(path, per_queue, day_records(day, per_queue))
    batch = DAYS_PER_BATCH * per_queue * len(QUEUES)
    pipeline = Pipeline(spark, RunOptions(url=url, lake=str(folder / f"days-{days}"), max_records=batch))
    pipeline.open()
    pipeline.run_once()
    append_history(path, per_queue, day_records(366, per_queue))
    (result,) = pipeline.run_once()
    return result.traffic


def print_new_day(one: dict[str, Any], many: dict[str, Any], days: int) -> bool:
    """The counts side by side; True when they are the same."""
    print(f"\n  one new day in a lake of       1 day                      {days} days")
    print("                                 files    rows     bytes    files    rows     bytes")
    same = True
    for side in ("read", "written"):
        for name in sorted({*one[side], *many[side]}):
            cells = [which[side].get(name, {"files": 0, "rows": 0, "bytes": 0}) for which in (one, many)]
            same = same and cells[0] == cells[1]
            numbers = "".join(f"{c['files']:>9,}{c['rows']:>8,}{c['bytes']:>10,}" for c in cells)
            print(f"  {side:8}{name:18}{numbers}")
    print("  files, rows and bytes are the same" if same else "  NOT the same")
    return same


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--days", type=int, default=365, help="age of the old lake in the last table")
    parser.add_argument("--day-records", type=int, default=250, help="records per queue and day there")
    parser.add_argument("--whole-records", type=int, help="how many go through all layers (default: all)")
    parser.add_argument("--max-records", type=int, default=2_000_000)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--against", metavar="REV", help="run this revision's benchmark first")
    parser.add_argument("--ages", type=int, nargs="+", help="only lakes of so many days, side by side")
    parser.add_argument("--age-rounds", type=int, default=5, help="whole batches in each of them")
    parser.add_argument("--smoke", action="store_true", help="tiny, to see that everything runs")
    parser.add_argument("--log-days", type=int, help="only commit empty batches for so many days")
    parser.add_argument("--log-batches", type=int, default=10, help="how many a day")
    args = parser.parse_args(_small(sys.argv[1:]))
    if args.log_days is not None:
        with tempfile.TemporaryDirectory(prefix="windlass-bench-") as room:
            _lake_year.run(Path(room), args.log_days, args.log_batches, (1, 10, 30, 100, 365, 1_000))
        return
    if args.ages is not None:
        measure_ages(args)
        return
    from windlass.pipeline.session import SessionOptions, session

    folder = Path(tempfile.mkdtemp(prefix="windlass-bench-"))
    try:
        if args.against is not None:
            arguments = without_option(_small(sys.argv[1:]), "--against")
            run_older(args.against, folder / "older", arguments)
            print(f"\nthis tree, beside {args.against} above", flush=True)
        with session(SessionOptions(master=args.master)) as spark:
            measure(spark, folder, args)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


#: What ``--smoke`` stands for: options that earlier revisions know too.
_SMALL = "--records 8000 --max-records 4000 --days 3 --day-records 10".split()


def _small(arguments: list[str]) -> list[str]:
    """Arguments with those of ``--smoke`` in its place."""
    return [word for one in arguments for word in (_SMALL if one == "--smoke" else [one])]


def measure_ages(args: argparse.Namespace) -> None:
    """Lakes of different ages beside each other; ``--max-records`` is the size of a whole batch."""
    from windlass.pipeline.session import SessionOptions, session

    with tempfile.TemporaryDirectory(prefix="windlass-bench-") as room:
        folder = Path(room)
        _lake_age.run(folder, args.ages, rounds=_lake_year.MEAN_OF)
        per_queue = args.max_records * (args.age_rounds + 1) // len(QUEUES)
        url = make_store(folder / "ages.db")
        append_history(folder / "ages.db", per_queue, day_records(0, per_queue))
        first = date.fromordinal(date(1970, 1, 1).toordinal() + FIRST_DAY // DAY_MS)
        with session(SessionOptions(master=args.master)) as spark:
            _lake_age.run_batches(
                spark, folder, url, first, args.ages, args.max_records, args.age_rounds, cpu_seconds
            )


def run_older(revision: str, folder: Path, arguments: list[str]) -> None:
    """The same benchmark as it was in ``revision``, on the code of that revision."""
    folder.mkdir()
    tree = subprocess.run(
        ["git", "archive", revision, "src", "benchmarks"], check=True, stdout=subprocess.PIPE
    )
    with tarfile.open(fileobj=BytesIO(tree.stdout)) as archive:
        archive.extractall(folder, filter="data")
    path = os.pathsep.join([str(folder / "src"), str(folder)])
    print(f"{revision}", flush=True)
    command = [sys.executable, str(folder / "benchmarks" / "spark.py"), *arguments]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": path})


def without_option(arguments: list[str], name: str) -> list[str]:
    """Arguments less an option and its value."""
    kept, skip = [], False
    for word in arguments:
        if not skip and word != name and not word.startswith(f"{name}="):
            kept.append(word)
        skip = word == name
    return kept


def measure(spark: Any, folder: Path, args: argparse.Namespace) -> None:
    per_queue = args.records // len(QUEUES)
    records = per_queue * len(QUEUES)
    url, bronze = make_store(folder / "big.db"), folder / "only" / "bronze" / "attempts"
    with timed("records made", records):
        append_history(folder / "big.db", per_queue, day_records(0, per_queue))
    with PeakMemory() as peak:
        with timed("into bronze", records):
            ingest(spark, url, folder / "only")
        size = sum(path.stat().st_size for path in bronze.rglob("*.parquet"))
        print(f"  bronze has {size / records:.1f} bytes for each", flush=True)
        for turn in ("first", "again"):
            with timed(f"all of gold, Spark, {turn}", records):
                spark_rollup(spark, folder / "only")
            with timed(f"roll-up, DuckDB (minute), {turn}", records):
                duckdb_rollup(bronze)
        many = min(args.whole_records or records, records)
        with timed(f"bronze, silver and gold of {many:,}", many):
            whole(spark, url, folder / "lake", many, args.max_records)
    print(f"  peak memory: {peak}", flush=True)
    one = measure_new_day(spark, folder, 1, args.day_records)
    old = measure_new_day(spark, folder, args.days, args.day_records)
    print_new_day(one, old, args.days)


if __name__ == "__main__":
    main()
