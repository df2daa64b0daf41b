"""One batch: new records of a store's log become rows of every table. Each table has its own commit.

Bronze is committed first: the records as they were read, with the offsets in the commit. All other tables
are derived from bronze alone. Silver adds the attempts that it does not have yet. Gold adds the figures of
these attempts to the dates that they touch. If a run dies, the next one finds the tables that lack a batch of
bronze and derives them as the first run would have. It skips tables that have the batch.

Rows are read once: the tasks that copy the log also compute a digest of it (see ``digest``), which already
has the rows for gold. The driver holds the digests, about 30 bytes for each record, and passes them to the
tasks that write gold. A run that finishes the batch of another run digests the files first.

Test points: ``pipeline.bronze``, ``pipeline.silver``, after these tables are committed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from typing import Any, Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from windlass.core.clock import SYSTEM_CLOCK
from windlass.core.probe import reach
from windlass.errors import HistoryTrimmedError
from windlass.pipeline import hashsets, schemas
from windlass.pipeline.digest import JOB_HASH, RUN_HASH, Digest, Part, hashes, joined
from windlass.pipeline.files import FileEntry, Place, TableWriter
from windlass.pipeline.lake import TRIES, TRIM_EVERY, Conflict, Lake, LakeTakenError, snapshot_of
from windlass.pipeline.payloads import Payloads
from windlass.pipeline.source import Positions, advance, check_start, log_bounds, split_ranges
from windlass.pipeline.spark_tasks import CopyLog, DigestFiles, HashFile, MergeGold, MergeJobs, WriteJobs
from windlass.pipeline.store_requests import ask_many
from windlass.pipeline.transforms import attempts as attempts_of
from windlass.pipeline.workbench import Workbench

OnGap = Literal["fail", "skip"]
#: Up to this many rows, one task writes a table.
LARGE = 50_000
#: Rows that one task merges, at most.
PER_MERGE = 500_000
#: Records that one task reads, at least.
_LEAST_PER_TASK = 20_000
_DAY_MS = 86_400_000
_EPOCH = date(1970, 1, 1).toordinal()


@dataclass(frozen=True)
class Gap:
    """Records of a queue that were trimmed before they were read."""

    queue: str
    after: int
    until: int


@dataclass(frozen=True)
class BatchPlan:
    """The range that a batch reads. ``behind``: records that are left for later batches."""

    start: Positions
    end: Positions
    gaps: tuple[Gap, ...] = ()
    behind: int = 0

    @property
    def records(self) -> int:
        return sum(until - self.start.get(queue, 0) for queue, until in self.end.items())


@dataclass
class BatchResult:
    """The figures of a finished batch."""

    source: str
    #: Counted from 1 for each source.
    number: int
    records: int
    attempts: int
    behind: int
    traffic: dict[str, Any] = field(default_factory=dict)


def plan_batch(url: str, done: Positions, most: int, on_gap: OnGap = "fail") -> BatchPlan:
    """Decide how far the next batch reads. Raises ``HistoryTrimmedError`` if ``on_gap`` is ``fail``."""
    with ask_many(url) as ask:
        bounds = log_bounds(ask, done)
    start, gaps = dict(done), []
    for queue, bound in bounds.items():
        # Records trimmed before the first run are no gap. A queue that appeared later is read from its start.
        after = done.get(queue, 0) if done else bound.oldest - 1
        start[queue] = after
        try:
            check_start(queue, after, bound)
        except HistoryTrimmedError:
            if on_gap != "skip":
                raise
            gaps.append(Gap(queue, after, bound.oldest - 1))
            start[queue] = bound.oldest - 1
    newest = {queue: bound.newest for queue, bound in bounds.items()}
    end = advance(start, newest, most)
    behind = sum(max(newest[queue] - end[queue], 0) for queue in newest)
    return BatchPlan(start, end, tuple(gaps), behind)


#: The change of one table by a batch: new files, and the files that they replace.
Change = tuple[list[FileEntry], Sequence[FileEntry]]


def run_batch(
    spark: SparkSession,
    lake: Lake,
    url: str,
    source: str,
    plan: BatchPlan,
    payloads: Payloads | None = None,
) -> BatchResult:
    """Read a batch into bronze, then derive every other table from it."""
    number = lake.done(schemas.BRONZE_ATTEMPTS, source) + 1
    if number % TRIM_EVERY == 0:
        lake.trim_logs()
    bench = Workbench(spark, lake)
    files, digest = copy_records(bench, url, source, number, plan, payloads)
    _commit_bronze(lake, files, source, number, plan)
    reach("pipeline.bronze")
    fresh = LakeBatch(bench, source, number, digest, files).derive()
    return BatchResult(source, number, plan.records, fresh, plan.behind, bench.traffic.summary())


def finish_batches(spark: SparkSession, lake: Lake) -> list[tuple[str, int]]:
    """Derive every table from the batches that bronze has. Returns the batches that some table lacked."""
    finished = []
    for source, number in lake.sources().items():
        if min(lake.done(table, source) for table in schemas.BATCHED) < number:
            LakeBatch(Workbench(spark, lake), source, number).derive()
            finished.append((source, number))
    return finished


def _commit_bronze(lake: Lake, files: list[FileEntry], source: str, number: int, plan: BatchPlan) -> None:
    for _ in range(TRIES):
        gaps = [[gap.queue, gap.after, gap.until] for gap in plan.gaps]
        own = {"batch": number, "gaps": gaps, "seen_ms": SYSTEM_CLOCK.now_ms()}
        # Each note covers all sources, because the log may be trimmed up to it.
        note = {
            "offsets": {**lake.offsets(), source: plan.end},
            "latest": {**lake.note().get("latest", {}), source: own},
            "seen_ms": own["seen_ms"],
        }
        try:
            lake.commit(schemas.BRONZE_ATTEMPTS, files, batches={source: number}, note=note)
            return
        except Conflict as exc:
            lake.refresh(schemas.BRONZE_ATTEMPTS)
            if lake.done(schemas.BRONZE_ATTEMPTS, source) >= number:
                message = f"another run writes source {source!r} to {lake.url}; this one ends here"
                raise LakeTakenError(message) from exc
    raise lake.conflict_error()


# --- bronze -----------------------------------------------------------------------------------------------


def copy_records(
    bench: Workbench,
    url: str,
    source: str,
    number: int,
    plan: BatchPlan,
    payloads: Payloads | None = None,
) -> tuple[list[FileEntry], Digest]:
    """Copy ranges of the log to files, in Spark tasks. No row passes through the JVM."""
    cores = bench.spark.sparkContext.defaultParallelism
    size = max(-(-plan.records // cores), _LEAST_PER_TASK)
    ranges = split_ranges(plan.start, plan.end, size)
    shares = [ranges] if plan.records <= LARGE else [[one] for one in ranges]
    batch = (source, number)
    done = bench.run([CopyLog(bench.lake.place, url, batch, share, payloads) for share in shares if share])
    written = [entry for entries, _ in done for entry in entries]
    bench.traffic.note_written(written)
    return written, joined([digest for _, digest in done])


# --- derived from bronze -------------------------------------------------------------------------------


class LakeBatch:
    """A batch that is in bronze, to be added to the other tables.

    ``digest`` and ``files`` describe its rows in bronze, if this run has read them.
    """

    def __init__(
        self,
        bench: Workbench,
        source: str,
        number: int,
        digest: Digest | None = None,
        files: list[FileEntry] | None = None,
    ) -> None:
        self.bench = bench
        self.lake = bench.lake
        self.source = source
        self.number = number
        #: Describes the rows in bronze, and later the rows that were added to silver, once they are known.
        self.digest = digest
        self._files = files

    def derive(self) -> int:
        """Add the batch to every table that lacks it; returns how many attempts are new in silver."""
        self._step([schemas.BRONZE_GAPS], self._gap_rows)
        if self.lake.done(schemas.SILVER_ATTEMPTS, self.source) >= self.number:
            self.digest = None
        taken = self._step([schemas.SILVER_ATTEMPTS], self._silver).get(schemas.SILVER_ATTEMPTS.path)
        reach("pipeline.silver")
        entries = self._of_batch(schemas.SILVER_ATTEMPTS) if taken is None else taken
        steps: list[tuple[list[schemas.TableSchema], Callable[..., dict[str, Change]]]] = []
        if entries:
            digest = self.digest or self._digest(entries)
            steps = [
                (list(schemas.GOLD), partial(self._gold, digest)),
                ([schemas.SILVER_JOBS], partial(self._jobs, digest, entries)),
            ]
        else:
            steps = [([schemas.SILVER_JOBS, *schemas.GOLD], lambda tables: {})]
        # The steps are independent, so one can commit while tasks of the other run.
        with ThreadPoolExecutor(max_workers=2, thread_name_prefix="windlass-pipeline") as pool:
            for future in [pool.submit(self._step, *step) for step in steps]:
                future.result()
        return sum(entry.rows for entry in entries)

    def _digest(self, entries: Sequence[FileEntry]) -> Digest:
        """Read the batch's rows in ``entries`` again and digest them."""
        self.bench.traffic.note_read(entries)
        batch = (self.source, self.number)
        shares = [list(entries)] if _count(entries) <= LARGE else [[entry] for entry in entries]
        return joined(self.bench.run([DigestFiles(self.lake.place, share, batch) for share in shares]))

    def _step(
        self,
        tables: list[schemas.TableSchema],
        work: Callable[[list[schemas.TableSchema]], dict[str, Change]],
    ) -> dict[str, list[FileEntry]]:
        """Commit the batch to those of ``tables`` that lack it. Starts again if a table changed meanwhile.

        Another run may have committed the same batch by then, with the same rows. The next commit of bronze
        decides which of the two runs continues. Returns the new files by table, for tables that this run
        committed to.
        """
        committed: dict[str, list[FileEntry]] = {}
        for _ in range(TRIES):
            lacking = [table for table in tables if self.lake.done(table, self.source) < self.number]
            if not lacking:
                return committed
            changes = work(lacking)
            for table in lacking:
                add, remove = changes.get(table.path, ([], []))
                try:
                    self.lake.commit(table, add, remove, batches=self._transactions(table))
                    committed[table.path] = add
                except Conflict:
                    self.lake.refresh(table)
        raise self.lake.conflict_error()

    def _transactions(self, table: schemas.TableSchema) -> dict[str, int]:
        """The transactions that a commit names.

        For jobs this includes the newest snapshot: a later one may add jobs that the batch takes for new.
        """
        if table is not schemas.SILVER_JOBS:
            return {self.source: self.number}
        seen_ms = self.lake.last_snapshot(self.source)
        return {self.source: self.number, snapshot_of(self.source): seen_ms}

    def _of_batch(self, table: schemas.TableSchema) -> list[FileEntry]:
        """Files that may hold rows of this batch."""
        return [
            entry
            for entry in self.lake.entries(table)
            if entry.overlaps("batch", self.number, self.number)
            and entry.overlaps("source", self.source, self.source)
        ]

    def _rows_of(self, table: schemas.TableSchema, entries: Sequence[FileEntry]) -> DataFrame:
        rows = self.bench.read(table, entries)
        return rows.where((F.col("source") == self.source) & (F.col("batch") == self.number))

    def _gap_rows(self, tables: list[schemas.TableSchema]) -> dict[str, Change]:
        note = self.lake.note(self.source, self.number)
        if not note["gaps"]:
            return {}
        day = date.fromordinal(_EPOCH + note["seen_ms"] // _DAY_MS)
        facts = {"source": self.source, "batch": self.number, "seen_ms": note["seen_ms"], "date": day}
        rows = [
            {**facts, "queue": queue, "after": after, "until": until} for queue, after, until in note["gaps"]
        ]
        return {schemas.BRONZE_GAPS.path: (write_literal(self.lake.place, schemas.BRONZE_GAPS, rows), [])}

    # --- silver -------------------------------------------------------------------------------------------

    def _silver(self, tables: list[schemas.TableSchema]) -> dict[str, Change]:
        """Attempts that silver does not have yet. Reads only files of silver whose times overlap."""
        entries = self._of_batch(schemas.BRONZE_ATTEMPTS) if self._files is None else self._files
        if not entries:
            return {}
        digest, overlapping = self.digest or self._digest(entries), self._overlapping(entries)
        is_own = all(entry.holds_only(self.source, self.number) for entry in entries)
        if is_own and self._is_new(digest, overlapping):
            written = [self.lake.place.copy(entry, schemas.SILVER_ATTEMPTS) for entry in entries]
            self.bench.traffic.note_written(written)
            self.digest = digest
        else:
            rows = attempts_of.as_silver(self._rows_of(schemas.BRONZE_ATTEMPTS, entries))
            known = self.bench.read(schemas.SILVER_ATTEMPTS, overlapping) if overlapping else None
            rows = without_erased(self.bench, rows).transform(attempts_of.unique_attempts(known))
            small = _count(entries) <= LARGE
            written = self.bench.write(rows, schemas.SILVER_ATTEMPTS, files=1 if small else None)
            self.digest = None
        return {schemas.SILVER_ATTEMPTS.path: (written, [])}

    def _is_new(self, digest: Digest, overlapping: Sequence[FileEntry]) -> bool:
        """Whether all rows can go into silver as they are: none is a duplicate, and none was ever erased."""
        if self.lake.entries(schemas.SILVER_ERASED):
            return False
        own = hashsets.unique(runs := hashes(digest.runs))
        return len(own) == len(runs) and not any(
            hashsets.have_common(own, known) for known in self._hashes(overlapping, RUN_HASH)
        )

    def _hashes(self, entries: Sequence[FileEntry], sql: str) -> list[Any]:
        """The hashes in each file."""
        self.bench.traffic.note_read(entries)
        return self.bench.run([HashFile(self.lake.place, entry, sql) for entry in entries])

    def _overlapping(self, entries: Sequence[FileEntry]) -> list[FileEntry]:
        low, high = _span(entries, "finished_ms")
        found = self.lake.entries(schemas.SILVER_ATTEMPTS, {entry.date for entry in entries})
        return [
            entry
            for entry in found
            if entry.overlaps("finished_ms", low, high) and entry.overlaps("source", self.source, self.source)
        ]

    # --- jobs ---------------------------------------------------------------------------------------------

    def _jobs(
        self, digest: Digest, entries: Sequence[FileEntry], tables: list[schemas.TableSchema]
    ) -> dict[str, Change]:
        """Append new jobs, and rewrite a file only if it holds a job that ran again."""
        import numpy as np

        own, counts = hashsets.counted(hashes(digest.jobs))
        candidates = job_files(self.lake, digest)
        again = [own[hashsets.is_in(own, held)] for held in self._hashes(candidates, JOB_HASH)]
        touched = [entry for entry, jobs in zip(candidates, again, strict=True) if len(jobs)]
        self.bench.traffic.note_read(touched)
        where, batch = self.lake.place, (self.source, self.number)
        tasks: list[Any]
        if _count([*touched, *entries]) <= LARGE:  # sorted, so that equal rows give equal bytes
            tasks = [MergeJobs(where, entries, batch, None, touched)]
        else:
            # Most jobs have one record. Tasks write their rows file by file, and only other jobs are merged.
            several = hashsets.unique(np.concatenate([own[counts > 1], *again]))
            tasks = [WriteJobs(where, [entry], batch, several) for entry in entries]
            if len(several):
                shards = -(-(len(several) + _count(touched)) // PER_MERGE)
                tasks += [
                    MergeJobs(where, entries, batch, several, touched, shard, shards)
                    for shard in range(shards)
                ]
        return {schemas.SILVER_JOBS.path: (self.bench.run_writers(tasks), touched)}

    # --- gold ---------------------------------------------------------------------------------------------

    def _gold(self, digest: Digest, tables: list[schemas.TableSchema]) -> dict[str, Change]:
        """The batch's gold rows, merged with the files that they touch, for each table and date."""
        shares = gold_shares(digest, tables)
        stored = {key: self._touched(key[0], parts) for key, parts in shares.items()}
        changes = merge_gold(self.bench, shares, stored)
        return {table.path: (changes.get(table.path, []), _of_table(stored, table.path)) for table in tables}

    def _touched(self, path: str, parts: Sequence[Part]) -> list[FileEntry]:
        """Files of a table and date with rows that may change."""
        table = schemas.TABLES[path]
        entries = self.lake.entries(table, [parts[0].date])
        if "window_start" not in table.keys:
            return entries
        low, high = min(part.low for part in parts), max(part.high for part in parts)
        return [entry for entry in entries if entry.overlaps("window_start", low, high)]


def job_files(lake: Lake, digest: Digest) -> list[FileEntry]:
    """Files that may hold the jobs of a digest."""
    return [
        entry
        for day, (low, high) in digest.added.items()
        for entry in lake.entries(schemas.SILVER_JOBS, [day])
        if entry.overlaps("enqueued_ms", low, high)
    ]


#: Gold rows by table and date.
Shares = dict[tuple[str, str], list[Part]]


def gold_shares(digest: Digest, tables: Sequence[schemas.TableSchema], only: str | None = None) -> Shares:
    """The parts of a digest for ``tables``, largest first; with ``only``, those of one date."""
    shares: Shares = {}
    for part in digest.parts:
        if schemas.TABLES[part.table] in tables and only in (None, part.date):
            shares.setdefault((part.table, part.date), []).append(part)
    return dict(sorted(shares.items(), key=lambda item: -sum(len(part.body) for part in item[1])))


def merge_gold(
    bench: Workbench, shares: Shares, stored: dict[tuple[str, str], list[FileEntry]]
) -> dict[str, list[FileEntry]]:
    """Merge shares with the stored files that they touch; returns the new files by table."""
    for entries in stored.values():
        bench.traffic.note_read(entries)
    tasks = [
        MergeGold(bench.lake.place, schemas.TABLES[key[0]], parts, stored.get(key, []))
        for key, parts in shares.items()
    ]
    written: dict[str, list[FileEntry]] = {}
    for entry in bench.run_writers(tasks):
        written.setdefault(entry.table, []).append(entry)
    return written


def _of_table(stored: dict[tuple[str, str], list[FileEntry]], path: str) -> list[FileEntry]:
    return [entry for (table, _), entries in stored.items() if table == path for entry in entries]


def _count(entries: Sequence[FileEntry]) -> int:
    return sum(entry.rows for entry in entries)


def without_erased(bench: Workbench, rows: DataFrame) -> DataFrame:
    """Drop rows of attempts that were erased, so that a record that is read again does not return."""
    erased = bench.lake.entries(schemas.SILVER_ERASED)
    if not erased:
        return rows
    gone = bench.read(schemas.SILVER_ERASED, erased).select("source", F.col("run_id").alias("hash"))
    hashed = rows.withColumn("hash", attempts_of.hashed(F.col("run_id")))
    return hashed.join(gone, ["source", "hash"], "left_anti").select(*rows.columns)


def write_literal(where: Place, table: schemas.TableSchema, rows: list[dict[str, Any]]) -> list[FileEntry]:
    """Write a few rows from the driver."""
    import pyarrow as pa

    writer = TableWriter(where, table)
    filled = [{"schema_version": schemas.SCHEMA_VERSION, **row} for row in rows]
    writer.write(pa.Table.from_pylist(filled, schema=table.arrow))
    return writer.close()


def _span(entries: Sequence[FileEntry], name: str) -> tuple[int, int]:
    """The smallest and largest value of a column in files; an unbounded span if one file has no range."""
    spans = [entry.ranges.get(name, (-(2**62), 2**62)) for entry in entries]
    return min(low for low, _ in spans), max(high for _, high in spans)
