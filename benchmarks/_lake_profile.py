"""Where the CPU time of a record goes: the steps of one batch, one after the other, in this process.

The steps are those of the tasks of a batch and of its driver, by the pipeline's own code, without Spark. What
a whole batch takes beyond their sum is Spark's: starting tasks, and handing over files and digests.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from windlass.backend import requests as rq
from windlass.pipeline import hashsets, schemas
from windlass.pipeline.arrow_records import attempts_batch
from windlass.pipeline.digest import (
    COLUMNS,
    JOB_HASH,
    RUN_HASH,
    Digest,
    added_days,
    gold_parts,
    hash_column,
    hashes,
    joined,
)
from windlass.pipeline.files import FileEntry, TableWriter
from windlass.pipeline.lake import Lake
from windlass.pipeline.lake_batch import gold_shares
from windlass.pipeline.source import PAGE, log_bounds
from windlass.pipeline.spark_tasks import HashFile, MergeGold, WriteJobs
from windlass.pipeline.store_requests import ask_many
from windlass.pipeline.transforms import gold_rows
from windlass.pipeline.transforms.attempts import as_bronze
from windlass.pipeline.transforms.sql import engine


class Costs:
    """CPU seconds by step, of all threads of this process."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)

    @contextmanager
    def of(self, step: str) -> Iterator[None]:
        started = time.process_time()
        yield
        self.spent[step] += time.process_time() - started

    def show(self, records: int) -> None:
        total = sum(self.spent.values())
        print(f"\n  CPU of a record, step by step, in a batch of {records:,}")
        for step, seconds in self.spent.items():
            print(f"    {step:44}{1e6 * seconds / records:6.2f} us {100 * seconds / total:4.0f} %")
        print(
            f"    {'together':44}{1e6 * total / records:6.2f} us   load {os.getloadavg()[0]:.1f}", flush=True
        )


def run(folder: Path, url: str) -> None:
    """One batch of everything in the log, after a small one that loads the libraries."""
    batch(Lake(str(folder / "first")).create(), url, 1_000)
    costs, records = batch(Lake(str(folder / "profile")).create(), url, None)
    costs.show(records)


def batch(lake: Lake, url: str, most: int | None) -> tuple[Costs, int]:
    """Up to ``most`` records of each queue, then the hashes that the next batch would ask for."""
    costs = Costs()
    files: list[FileEntry] = []
    digests: list[Digest] = []
    with ask_many(url) as ask:
        bounds = log_bounds(ask, {})
    for queue, bound in bounds.items():
        written, pieces = copy_queue(costs, lake, url, queue, min(bound.newest, most or bound.newest))
        files += written
        digests += [digest_piece(costs, piece) for piece in pieces]
    digest = joined(digests)
    with costs.of("silver/attempts: link to the file of bronze"):
        silver = [lake.place.copy(entry, schemas.SILVER_ATTEMPTS) for entry in files]
    find_repeats(costs, digest)
    with costs.of("silver/jobs: read, make rows, write Parquet"):
        for entry in silver:
            WriteJobs(lake.place, [entry], ("bench", 1), hashes(b""))()
    for key, parts in gold_shares(digest, schemas.GOLD).items():
        with costs.of(f"{key[0]}: merge and write Parquet"):
            MergeGold(lake.place, schemas.TABLES[key[0]], parts, [])()
    with costs.of("next batch: hashes of a file that overlaps"):
        HashFile(lake.place, silver[0], RUN_HASH)()
    return costs, sum(entry.rows for entry in files)


def copy_queue(
    costs: Costs, lake: Lake, url: str, queue: str, newest: int
) -> tuple[list[FileEntry], list[Any]]:
    """The log of a queue into bronze; returns the files, and the rows in pieces to digest."""
    import pyarrow as pa

    writer, waiting, after = TableWriter(lake.place, schemas.BRONZE_ATTEMPTS), [], 0
    with ask_many(url) as ask:
        while after < newest:
            with costs.of("log: read and decode records"):
                page = ask(rq.ReadHistory(queue=queue, after=after, limit=min(PAGE, newest - after)))
            with costs.of("log: records to Arrow"):
                rows = as_bronze(attempts_batch(page.records), "bench", 1)
            with costs.of("bronze/attempts: write Parquet"):
                writer.write(rows)
            waiting.append(rows.select(COLUMNS))
            after = page.last
    with costs.of("bronze/attempts: write Parquet"):
        files = writer.close()
    return files, [pa.concat_tables(waiting[at : at + 25]) for at in range(0, len(waiting), 25)]


def digest_piece(costs: Costs, rows: Any) -> Digest:
    with engine(attempts=rows) as connection:
        with costs.of("digest: hashes of attempts and jobs"):
            added = added_days(connection)
            runs, jobs = (hash_column(connection, sql) for sql in (RUN_HASH, JOB_HASH))
        parts = []
        rollups = tuple(schemas.ROLLUPS.values())  # together: they share what is worked out of attempts
        for tables in (rollups, *((table,) for table in schemas.GOLD if table not in rollups)):
            with costs.of(f"{', '.join(table.path for table in tables)}: rows of a task"):
                for table, found in zip(
                    tables, gold_rows.attempt_rows(connection, rows, tables), strict=True
                ):
                    parts += list(gold_parts(table, found))
    return Digest(joined([]).engine, runs, jobs, added, parts)


def find_repeats(costs: Costs, digest: Digest) -> None:
    """What the driver does with the hashes."""
    with costs.of("driver: look for repeats among the hashes"):
        hashsets.unique(hashes(digest.runs))
        hashsets.counted(hashes(digest.jobs))
