"""The pipeline under load: ingest, roll-ups beside DuckDB, and what a new day costs in an old lake.

    scripts/bench spark                     10,000,000 attempt records
    scripts/bench spark --records 200000    a quick look
    scripts/bench spark --against 13a842a   an older revision first, with its own code, then this one
    scripts/bench spark --log-days 3650     only the log: batches committed for ten years, without data
    scripts/bench spark --ages 1 365 3650   only a batch and its commits, in lakes of this age in days
    scripts/bench spark --batches 10        only ten batches of --max-records, into one day
    scripts/bench spark --rollups           only the roll-ups, beside DuckDB
    scripts/bench spark --profile           only one batch, step by step, without Spark: where does CPU go?
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
from collections.abc import Callable, Iterator
from datetime import date
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import _lake_age, _lake_profile, _lake_year
from benchmarks._family import PeakMemory, cpu_seconds, timed
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


# --- what is measured -------------------------------------------------------------------------------------


def ingest(spark: Any, url: str, folder: Path) -> None:
    """Log to the Parquet files of bronze, which no commit names."""
    from windlass.pipeline.lake import Lake
    from windlass.pipeline.lake_batch import copy_records, plan_batch
    from windlass.pipeline.workbench import Workbench

    plan = plan_batch(url, {}, 10**9)
    copy_records(Workbench(spark, Lake(str(folder))), url, "bench", 1, plan)


def bronze_files(folder: Path) -> list[Any]:
    """The files that ``ingest`` wrote."""
    from windlass.pipeline import schemas
    from windlass.pipeline.files import FileEntry

    path = schemas.BRONZE_ATTEMPTS.path
    return [
        FileEntry(f"{file.parent.name}/{file.name}", path, file.parent.name.removeprefix("date="), 0, 0)
        for file in sorted((folder / path).rglob("*.parquet"))
    ]


def spark_gold(spark: Any, folder: Path) -> None:
    """Every gold table, and what a batch needs to find repeats, from bronze Parquet to Parquet."""
    from windlass.pipeline import schemas
    from windlass.pipeline.digest import joined
    from windlass.pipeline.lake import Lake
    from windlass.pipeline.lake_batch import gold_shares, merge_gold
    from windlass.pipeline.spark_tasks import DigestFiles
    from windlass.pipeline.workbench import Workbench

    bench = Workbench(spark, Lake(str(folder)))
    digest = joined(bench.run([DigestFiles(bench.lake.place, [file]) for file in bronze_files(folder)]))
    merge_gold(bench, gold_shares(digest, schemas.GOLD), {})


def spark_minute(spark: Any, folder: Path) -> None:
    """The minute table alone, by the code of the pipeline, from bronze Parquet to Parquet."""
    from windlass.pipeline.digest import joined
    from windlass.pipeline.lake import Lake
    from windlass.pipeline.lake_batch import gold_shares, merge_gold
    from windlass.pipeline.schemas import GOLD_MINUTE
    from windlass.pipeline.workbench import Workbench

    bench, files = Workbench(spark, Lake(str(folder))), bronze_files(folder)
    tasks = spark.sparkContext.parallelize(files, len(files))
    parts = tasks.flatMap(partial(minute_parts, bench.lake.place)).collect()
    digest = msgspec.structs.replace(joined([]), parts=parts)
    merge_gold(bench, gold_shares(digest, [GOLD_MINUTE]), {})


def minute_parts(place: Any, file: Any) -> list[Any]:
    """Rows of the minute table from one file, in a task."""
    import pyarrow as pa

    from windlass.pipeline.digest import gold_parts
    from windlass.pipeline.files import read_entries
    from windlass.pipeline.schemas import CAUSES, GOLD_MINUTE
    from windlass.pipeline.transforms.gold_rows import attempt_rows
    from windlass.pipeline.transforms.sql import engine

    names = ["source", "queue", "task", "outcome", "finished_ms", "wait_ms", "duration_ms"]
    names += [f"{cause}_ms" for cause in CAUSES]
    found: list[Any] = []
    for batch in read_entries(place, [file], names):
        rows = pa.Table.from_batches([batch])
        with engine(attempts=rows) as connection:
            (minute,) = attempt_rows(connection, rows, [GOLD_MINUTE])
        found += gold_parts(GOLD_MINUTE, minute)
    return found


def duckdb_minute(bronze: Path, target: Path) -> None:
    """The minute table with the same counts, sums and histograms, less percentiles, by DuckDB alone."""
    import duckdb

    from windlass.pipeline.histogram import EXACT, GROWTH
    from windlass.pipeline.schemas import CAUSES, MEASURES, OUTCOME_COLUMNS

    def measure(name: str) -> str:
        column = f"{name}_ms"
        steps = f"floor(ln({column} / {EXACT}.0) / ln({GROWTH}))"
        bucket = f"(CASE WHEN {column} < {EXACT} THEN {column} ELSE {EXACT} + {steps} END)::INTEGER"
        return f"count({column}), sum({column}), max({column}), histogram({bucket})"

    columns = ["source", "finished_ms // 60000 AS minute", "queue", "task", "count(*)"]
    columns += [f"count(*) FILTER (outcome = '{name}')" for name in OUTCOME_COLUMNS]
    columns += [measure(name) for name in MEASURES] + [f"sum({name}_ms)" for name in CAUSES]
    sql = f"SELECT {', '.join(columns)} FROM read_parquet('{bronze}/**/*.parquet') GROUP BY ALL"
    with duckdb.connect() as connection:
        connection.execute(f"COPY ({sql}) TO '{target}' (FORMAT parquet, COMPRESSION zstd)")


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
    parser.add_argument("--max-records", type=int, help="of a batch (default: 2,000,000; of --ages: 300,000)")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--against", metavar="REV", help="run this revision's benchmark first")
    parser.add_argument("--ages", type=int, nargs="+", help="only compare lakes of these ages, in days")
    parser.add_argument("--age-rounds", type=int, default=7, help="whole batches in each of them")
    parser.add_argument("--age-commits", type=int, default=_lake_year.MEAN_OF, help="batches without data")
    parser.add_argument("--smoke", action="store_true", help="tiny, to check that everything runs")
    parser.add_argument("--log-days", type=int, help="only commit empty batches, for this many days")
    parser.add_argument("--log-batches", type=int, default=10, help="how many a day")
    parser.add_argument("--batches", type=int, help="only this many batches of --max-records")
    parser.add_argument("--rollups", action="store_true", help="only the roll-ups, beside DuckDB")
    parser.add_argument("--profile", action="store_true", help="only the steps of a batch of --max-records")
    args = parser.parse_args(_small(sys.argv[1:]))
    args.max_records = args.max_records or (2_000_000 if args.ages is None else 300_000)
    if args.log_days is not None:
        with tempfile.TemporaryDirectory(prefix="windlass-bench-") as room:
            _lake_year.run(Path(room), args.log_days, args.log_batches, (1, 10, 30, 100, 365, 1_000))
        return
    if args.ages is not None:
        measure_ages(args)
        return
    if args.profile:
        with tempfile.TemporaryDirectory(prefix="windlass-bench-") as room:
            url, per_queue = make_store(Path(room) / "steps.db"), args.max_records // len(QUEUES)
            append_history(Path(room) / "steps.db", per_queue, day_records(0, per_queue))
            _lake_profile.run(Path(room), url)
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
        _lake_age.run(folder, args.ages, rounds=args.age_commits)
        per_queue = args.max_records * (args.age_rounds + _lake_age.WARM_UP) // len(QUEUES)
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
    if args.batches is not None:
        args.records = args.batches * args.max_records
    per_queue = args.records // len(QUEUES)
    records = per_queue * len(QUEUES)
    url, bronze = make_store(folder / "big.db"), folder / "only" / "bronze" / "attempts"
    with timed("records made", records):
        append_history(folder / "big.db", per_queue, day_records(0, per_queue))
    if args.batches is not None:
        whole(spark, url, folder / "lake", records, args.max_records)
        return
    with PeakMemory() as peak:
        with timed("into bronze", records):
            ingest(spark, url, folder / "only")
        size = sum(path.stat().st_size for path in bronze.rglob("*.parquet"))
        print(f"  bronze has {size / records:.1f} bytes for each", flush=True)
        measure_rollups(spark, folder, records)
        if args.rollups:
            return
        many = min(args.whole_records or records, records)
        with timed(f"bronze, silver and gold of {many:,}", many):
            whole(spark, url, folder / "lake", many, args.max_records)
    print(f"  peak memory: {peak}", flush=True)
    one = measure_new_day(spark, folder, 1, args.day_records)
    old = measure_new_day(spark, folder, args.days, args.day_records)
    print_new_day(one, old, args.days)


def measure_rollups(spark: Any, folder: Path, records: int) -> None:
    """The same files by the pipeline and by DuckDB alone, in turns; the first turn loads libraries."""
    bronze = folder / "only" / "bronze" / "attempts"
    for turn in ("first", "again", "once more"):
        with timed(f"all of gold, ours, {turn}", records) as whole_gold:
            spark_gold(spark, folder / "only")
        with timed(f"minute table, ours, {turn}", records) as ours:
            spark_minute(spark, folder / "only")
        with timed(f"minute table, DuckDB alone, {turn}", records) as theirs:
            duckdb_minute(bronze, folder / "minute.parquet")
        for what, spent in (("minute table", ours), ("all of gold", whole_gold)):
            cpu, wall = spent.cpu / theirs.cpu, spent.wall / theirs.wall
            print(f"    {what}: {cpu:.1f} x DuckDB's minute table in CPU, {wall:.1f} x in time", flush=True)


if __name__ == "__main__":
    main()
