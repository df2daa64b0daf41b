"""The pipeline under load: ingest, roll-ups beside DuckDB, and what a new day costs in an old lake.

    scripts/bench spark                     10,000,000 attempt records
    scripts/bench spark --records 200000    a quick look

Records are written straight into the history log of an SQLite store, since running ten million jobs first
would measure something else. Times are of this machine, with its other load; the last table counts files,
rows and bytes and does not depend on it.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import resource
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from windlass.backend import requests as rq
from windlass.backend.urls import open_backend
from windlass.backends.sqlite.rows import LOG_KEY
from windlass.backends.sqlite.statements import table
from windlass.core.job import AttemptOutcome, AttemptRecord, NewJob

DAY_MS = 86_400_000
FIRST_DAY = 1_735_689_600_000  # 2025-01-01
CHUNK = 1_000
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


def measure_ingest(spark: Any, url: str, folder: Path, records: int) -> float:
    """Log to bronze Parquet; returns records per second."""
    from windlass.pipeline.transforms.attempts import as_bronze

    frame = spark.read.format("windlass").option("url", url).option("recordsPerPartition", 500_000).load()
    started = time.perf_counter()
    frame.transform(as_bronze(source="bench", batch=1)).write.partitionBy("date").parquet(str(folder))
    return records / (time.perf_counter() - started)


def measure_rollups(spark: Any, folder: Path) -> dict[str, float]:
    """Minute, hour and day roll-ups of the same Parquet: Spark, and DuckDB with the same histograms."""
    from windlass.pipeline.transforms import rollups

    seconds: dict[str, float] = {}
    out = folder.parent / "rollups"
    for name in ("spark, first", "spark, again"):
        shutil.rmtree(out, ignore_errors=True)
        started = time.perf_counter()
        parts = rollups.attempt_parts(spark.read.parquet(str(folder)))
        rows = rollups.rollups_of(parts)
        rows.write.partitionBy("grain", "date").parquet(str(out))
        seconds[name] = time.perf_counter() - started
    for name in ("duckdb, first", "duckdb, again"):
        started = time.perf_counter()
        _duckdb_rollup(folder)
        seconds[name] = time.perf_counter() - started
    return seconds


def _duckdb_rollup(folder: Path) -> None:
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


def measure_whole(spark: Any, url: str, lake: Path, max_records: int) -> tuple[float, int]:
    """Everything: bronze, silver and gold; returns seconds and batches."""
    from windlass.pipeline.run import Pipeline, RunOptions

    pipeline = Pipeline(spark, RunOptions(url=url, lake=str(lake), source="bench", max_records=max_records))
    pipeline.open()
    started = time.perf_counter()
    batches = len(
        pipeline.run_once(lambda batch: print(f"    {batch.behind:>12,} records to go", flush=True))
    )
    return time.perf_counter() - started, batches


def measure_new_day(spark: Any, folder: Path, days: int, per_queue: int) -> dict[str, Any]:
    """What one new day reads and writes in a lake of ``days`` days."""
    from windlass.pipeline.run import Pipeline, RunOptions

    path = folder / f"days-{days}.db"
    url = make_store(path)
    for day in range(366 - days, 366):
        append_history(path, per_queue, day_records(day, per_queue))
    pipeline = Pipeline(spark, RunOptions(url=url, lake=str(folder / f"days-{days}"), max_records=10**9))
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
            same = same and all(cells[0][what] == cells[1][what] for what in ("files", "rows"))
            numbers = "".join(f"{c['files']:>9,}{c['rows']:>8,}{c['bytes']:>10,}" for c in cells)
            print(f"  {side:8}{name:18}{numbers}")
    print("  files and rows are the same" if same else "  NOT the same")
    return same


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--days", type=int, default=365, help="age of the old lake in the last table")
    parser.add_argument("--day-records", type=int, default=250, help="records per queue and day there")
    parser.add_argument("--max-records", type=int, default=2_000_000)
    parser.add_argument("--master", default="local[2]")
    args = parser.parse_args()
    from windlass.pipeline.session import SessionOptions, session

    folder = Path(tempfile.mkdtemp(prefix="windlass-bench-"))
    try:
        with session(SessionOptions(master=args.master)) as spark:
            measure(spark, folder, args)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(spark: Any, folder: Path, args: argparse.Namespace) -> None:
    per_queue = args.records // len(QUEUES)
    records = per_queue * len(QUEUES)
    url = make_store(folder / "big.db")
    started = time.perf_counter()
    append_history(folder / "big.db", per_queue, day_records(0, per_queue))
    print(f"  {records:,} records made in {time.perf_counter() - started:.1f} s", flush=True)
    spark.range(1_000).selectExpr("sum(id)").collect()
    rate = measure_ingest(spark, url, folder / "bronze", records)
    size = sum(path.stat().st_size for path in (folder / "bronze").rglob("*.parquet"))
    print(f"  into bronze      {rate:>12,.0f} records/s ({size / records:.1f} bytes each)", flush=True)
    for name, seconds in measure_rollups(spark, folder / "bronze").items():
        print(f"  roll-up, {name:15} {seconds:6.2f} s", flush=True)
    seconds, batches = measure_whole(spark, url, folder / "lake", args.max_records)
    print(f"  bronze, silver and gold {records / seconds:>8,.0f} records/s in {batches} batches", flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"  driver (Python) peak {peak} MiB; JVM heap bounded by spark.driver.memory = 2g", flush=True)
    one = measure_new_day(spark, folder, 1, args.day_records)
    many = measure_new_day(spark, folder, args.days, args.day_records)
    print_new_day(one, many, args.days)


if __name__ == "__main__":
    main()
