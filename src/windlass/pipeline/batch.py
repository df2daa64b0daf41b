"""One batch: new records of a store's log become rows of every table, each table by a commit of its own.

Bronze comes first and is what was read, with the offsets in its commit. All else follows from bronze alone:
silver takes from it the attempts it does not have, gold adds the new silver rows to the dates that they
touch. So a run that finds tables which lack a batch of bronze works them out just as the run that died
would have, and skips those that have it.

Test points: ``pipeline.bronze``, ``pipeline.silver``, after these tables are committed; ``task.read``, in
tasks, after each piece of a log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from windlass.core.clock import SYSTEM_CLOCK
from windlass.core.probe import reach
from windlass.errors import HistoryTrimmedError
from windlass.pipeline import schemas
from windlass.pipeline.files import FileEntry, Place, TableWriter, pack_entries, read_entries
from windlass.pipeline.lake import TRIES, Conflict, Lake, LakeTakenError
from windlass.pipeline.source import (
    HistoryRange,
    Positions,
    advance,
    check_start,
    log_bounds,
    read_range,
    split_ranges,
)
from windlass.pipeline.store import ask_many
from windlass.pipeline.tables import Workbench
from windlass.pipeline.transforms import attempts as attempts_of
from windlass.pipeline.transforms import gold, jobs, rollups
from windlass.pipeline.transforms.grains import GRAIN_MS

if TYPE_CHECKING:
    import pyarrow as pa

OnGap = Literal["fail", "skip"]
#: Up to this many days, all of them are taken as touched; beyond, the rows are asked.
_FEW_DAYS = 3
#: Up to this many rows, one task writes a table; beyond, it pays to look which jobs left several records ...
_LARGE = 50_000
#: ... unless these are more than every task should be handed.
_FEW_HASHES = 200_000
#: A task reads this many records at least.
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
    """What a batch will read. ``behind``: records that are left for later batches."""

    start: Positions
    end: Positions
    gaps: tuple[Gap, ...] = ()
    behind: int = 0

    @property
    def records(self) -> int:
        return sum(until - self.start.get(queue, 0) for queue, until in self.end.items())


@dataclass
class BatchResult:
    """What a batch did."""

    source: str
    #: Its number, from 1, among those of its source.
    number: int
    records: int
    attempts: int
    behind: int
    traffic: dict[str, Any] = field(default_factory=dict)


def plan_batch(url: str, done: Positions, most: int, on_gap: OnGap = "fail") -> BatchPlan:
    """How far the next batch goes. ``HistoryTrimmedError`` for a gap unless ``on_gap`` is ``skip``."""
    with ask_many(url) as ask:
        bounds = log_bounds(ask, done)
    start, gaps = dict(done), []
    for queue, bound in bounds.items():
        # What was trimmed before the first run is no gap; a queue that appeared since is read from its start.
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


#: What a step of a batch brings to a table: new files, and those that they replace.
Change = tuple[list[FileEntry], Sequence[FileEntry]]


def run_batch(spark: SparkSession, lake: Lake, url: str, source: str, plan: BatchPlan) -> BatchResult:
    """Read a batch into bronze, then bring every other table up to it."""
    number = lake.done(schemas.BRONZE_ATTEMPTS, source) + 1
    bench = Workbench(spark, lake)
    files = copy_records(bench, url, source, number, plan) if plan.records else []
    _commit_bronze(lake, files, source, number, plan)
    reach("pipeline.bronze")
    fresh = LakeBatch(bench, source, number).derive()
    return BatchResult(source, number, plan.records, fresh, plan.behind, bench.ledger.summary())


def finish_batches(spark: SparkSession, lake: Lake) -> list[tuple[str, int]]:
    """Bring every table up to the batches that bronze has; returns those that were not everywhere."""
    finished = []
    for source, number in lake.sources().items():
        if min(lake.done(table, source) for table in schemas.BATCHED) < number:
            LakeBatch(Workbench(spark, lake), source, number).derive()
            finished.append((source, number))
    return finished


def _commit_bronze(lake: Lake, files: list[FileEntry], source: str, number: int, plan: BatchPlan) -> None:
    for _ in range(TRIES):
        note = {
            "source": source,
            "batch": number,
            "offsets": {**lake.offsets(), source: plan.end},
            "gaps": [[gap.queue, gap.after, gap.until] for gap in plan.gaps],
            "seen_ms": SYSTEM_CLOCK.now_ms(),
        }
        try:
            lake.commit(schemas.BRONZE_ATTEMPTS, files, batches={source: number}, note=note)
            return
        except Conflict as exc:
            lake.refresh(schemas.BRONZE_ATTEMPTS)
            if lake.done(schemas.BRONZE_ATTEMPTS, source) >= number:
                message = f"another run writes source {source!r} to {lake.url}; this one ends here"
                raise LakeTakenError(message) from exc
    raise LakeTakenError(f"{lake.url}: other writers were always quicker")


# --- bronze -----------------------------------------------------------------------------------------------


def copy_records(bench: Workbench, url: str, source: str, number: int, plan: BatchPlan) -> list[FileEntry]:
    """Tasks that read ranges of the log and write them down at once; nothing passes through the JVM."""
    cores = bench.spark.sparkContext.defaultParallelism
    size = max(-(-plan.records // cores), _LEAST_PER_TASK)
    ranges = split_ranges(plan.start, plan.end, size)
    if plan.records <= _LARGE:
        return bench.run_tasks(1, _copier(bench.lake.place, url, source, number, [ranges]))
    return bench.run_tasks(len(ranges), _copier(bench.lake.place, url, source, number, [[r] for r in ranges]))


def _copier(
    where: Place, url: str, source: str, number: int, shares: list[list[HistoryRange]]
) -> Callable[[int], Iterator[pa.RecordBatch]]:
    def copy(task: int) -> Iterator[pa.RecordBatch]:
        writer = TableWriter(where, schemas.BRONZE_ATTEMPTS)
        for wanted in shares[task]:
            for batch in read_range(url, wanted):
                writer.write(attempts_of.as_bronze(batch, source, number))
                reach("task.read")
        written = writer.close()
        reach("task.written")
        yield pack_entries(written)

    return copy


def _job_copier(
    where: Place, shares: list[tuple[FileEntry, bool]], batch: tuple[str, int], apart: pa.Table
) -> Callable[[int], Iterator[pa.RecordBatch]]:
    """Rows of jobs for the attempts of ``batch`` in one file each, less those of the jobs in ``apart``."""

    def copy(task: int) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        import pyarrow.compute as pc

        entry, is_own = shares[task]
        writer = TableWriter(where, schemas.SILVER_JOBS)
        for found in read_entries(where, [entry], [*jobs.PART_COLUMNS, "batch"]):
            rows = pa.Table.from_batches([found])
            if not is_own:
                wanted = pc.and_(pc.equal(rows["source"], batch[0]), pc.equal(rows["batch"], batch[1]))
                rows = rows.filter(wanted)
            writer.write(jobs.arrow_parts(jobs.without_jobs(rows, apart)))
        written = writer.close()
        reach("task.written")
        yield pack_entries(written)

    return copy


# --- what follows from bronze -----------------------------------------------------------------------------


class LakeBatch:
    """A batch that bronze has, on its way into the other tables."""

    def __init__(self, bench: Workbench, source: str, number: int) -> None:
        self.bench = bench
        self.lake = bench.lake
        self.source = source
        self.number = number

    def derive(self) -> int:
        """Bring every table that lacks the batch up to it; returns how many attempts are new in silver."""
        self._step([schemas.BRONZE_GAPS], self._gap_rows)
        self._step([schemas.SILVER_ATTEMPTS], self._silver)
        reach("pipeline.silver")
        entries = self._of_batch(schemas.SILVER_ATTEMPTS)
        fresh = self._rows_of(schemas.SILVER_ATTEMPTS, entries)
        steps: list[tuple[list[schemas.Table], Callable[..., dict[str, Change]]]] = [
            (list(schemas.ROLLUPS.values()), partial(self._rollups, fresh, entries)),
            ([schemas.SILVER_JOBS], partial(self._jobs, fresh, entries)),
            ([schemas.GOLD_ERRORS], partial(self._errors, fresh, entries)),
            ([schemas.GOLD_WORKERS], partial(self._workers, fresh, entries)),
            ([schemas.GOLD_BACKLOG], partial(self._backlog, fresh, entries)),
        ]
        # Independent of each other, so Spark may plan one while it runs another.
        with ThreadPoolExecutor(max_workers=3, thread_name_prefix="windlass-pipeline") as pool:
            for future in [pool.submit(self._step, *step) for step in steps]:
                future.result()
        return sum(entry.rows for entry in entries)

    def _step(
        self, tables: list[schemas.Table], work: Callable[[list[schemas.Table]], dict[str, Change]]
    ) -> None:
        """Commit the batch to those of ``tables`` that lack it; anew when one changed meanwhile.

        Another run may have done so by then, with the same outcome. The next commit of bronze decides which
        of the two continues.
        """
        for _ in range(TRIES):
            lacking = [table for table in tables if self.lake.done(table, self.source) < self.number]
            if not lacking:
                return
            changes = work(lacking)
            for table in lacking:
                add, remove = changes.get(table.path, ([], []))
                try:
                    self.lake.commit(table, add, remove, batches={self.source: self.number})
                except Conflict:
                    self.lake.refresh(table)
        raise LakeTakenError(f"{self.lake.url}: other writers were always quicker")

    def _of_batch(self, table: schemas.Table) -> list[FileEntry]:
        """Files that may hold rows of this batch."""
        return [
            entry
            for entry in self.lake.entries(table)
            if entry.overlaps("batch", self.number, self.number)
            and entry.overlaps("source", self.source, self.source)
        ]

    def _rows_of(self, table: schemas.Table, entries: Sequence[FileEntry]) -> DataFrame:
        rows = self.bench.read(table, entries)
        return rows.where((F.col("source") == self.source) & (F.col("batch") == self.number))

    def _gap_rows(self, tables: list[schemas.Table]) -> dict[str, Change]:
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

    def _silver(self, tables: list[schemas.Table]) -> dict[str, Change]:
        """Attempts that silver does not have yet. Reads silver only where times overlap."""
        entries = self._of_batch(schemas.BRONZE_ATTEMPTS)
        if not entries:
            return {}
        rows = attempts_of.as_silver(self._rows_of(schemas.BRONZE_ATTEMPTS, entries))
        overlapping = self._overlapping(entries)
        known = self.bench.read(schemas.SILVER_ATTEMPTS, overlapping) if overlapping else None
        if self._is_new(rows, known) and all(map(self._is_own, entries)):
            written = [self.lake.place.copy(entry, schemas.SILVER_ATTEMPTS) for entry in entries]
            self.bench.ledger.note_written(written)
        else:
            rows = without_erased(self.bench, rows).transform(attempts_of.unique_attempts(known))
            small = sum(entry.rows for entry in entries) <= _LARGE
            written = self.bench.write(rows, schemas.SILVER_ATTEMPTS, files=1 if small else None)
        return {schemas.SILVER_ATTEMPTS.path: (written, [])}

    def _is_new(self, rows: DataFrame, known: DataFrame | None) -> bool:
        """Whether all rows go into silver as they are: none comes twice, and nothing was ever erased."""
        if self.lake.entries(schemas.SILVER_ERASED):
            return False
        keys = list(schemas.SILVER_ATTEMPTS.keys)
        both = rows.select(*keys)
        both = both if known is None else both.unionByName(known.select(*keys))
        return both.transform(attempts_of.repeated(keys)).isEmpty()

    def _is_own(self, entry: FileEntry) -> bool:
        """Whether a file holds rows of this batch only."""
        found = entry.ranges.get("source"), entry.ranges.get("batch")
        return found == ((self.source, self.source), (self.number, self.number))

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
        self, fresh: DataFrame, entries: Sequence[FileEntry], tables: list[schemas.Table]
    ) -> dict[str, Change]:
        """New jobs are appended; a file is written anew only when it holds a job that ran again."""
        if not entries:
            return {}
        spans = _spans(fresh, entries, "enqueued_ms")
        candidates = [
            entry
            for day, (low, high) in spans.items()
            for entry in self.lake.entries(schemas.SILVER_JOBS, [day])
            if entry.overlaps("enqueued_ms", low, high)
        ]
        touched = self._holding(candidates, fresh)
        stored = self.bench.read(schemas.SILVER_JOBS, touched)
        large = sum(entry.rows for entry in (*touched, *entries)) > _LARGE
        repeated = self._repeated_jobs(fresh, stored) if large else None
        if repeated is None:
            merged = jobs.merge_jobs(jobs.job_parts(fresh).unionByName(stored))
            if not large:  # in order, so that the same rows are the same bytes
                merged = merged.coalesce(1).sortWithinPartitions("date", *schemas.SILVER_JOBS.keys)
            written = self.bench.write(merged, schemas.SILVER_JOBS, files=None)
        else:
            written = self._jobs_one_by_one(fresh, stored, entries, repeated)
        return {schemas.SILVER_JOBS.path: (written, touched)}

    def _repeated_jobs(self, fresh: DataFrame, stored: DataFrame) -> DataFrame | None:
        """Hashes of jobs that left several rows; None when they are many."""
        keys = list(schemas.SILVER_JOBS.keys)
        both = fresh.select(*keys).unionByName(stored.select(*keys))
        found = both.transform(attempts_of.repeated(keys)).limit(_FEW_HASHES + 1).collect()
        if len(found) > _FEW_HASHES:
            return None
        return self.bench.spark.createDataFrame([(row["hash"],) for row in found], "hash long")

    def _jobs_one_by_one(
        self, fresh: DataFrame, stored: DataFrame, entries: Sequence[FileEntry], repeated: DataFrame
    ) -> list[FileEntry]:
        """Most jobs left one record: tasks make their rows file by file, and only the others are merged."""
        several = jobs.of_hashes(fresh, repeated)
        merged_apart = several.select(*schemas.SILVER_JOBS.keys).distinct().toArrow()
        shares = [(entry, self._is_own(entry)) for entry in entries]
        work = _job_copier(self.lake.place, shares, (self.source, self.number), merged_apart)
        written = self.bench.run_tasks(len(shares), work)
        merged = jobs.merge_jobs(jobs.job_parts(several).unionByName(stored))
        return written + self.bench.write(merged, schemas.SILVER_JOBS, files=None)

    def _holding(self, candidates: Sequence[FileEntry], fresh: DataFrame) -> list[FileEntry]:
        """Those files that hold a job of the new attempts."""
        if not candidates:
            return []
        keys = list(schemas.SILVER_JOBS.keys)
        stored = self.bench.read(schemas.SILVER_JOBS, candidates, "file").select(*keys, "file")
        found = stored.join(fresh.select(*keys), keys, "left_semi").select("file").distinct().collect()
        names = {row["file"] for row in found}
        return [entry for entry in candidates if entry.path.rpartition("/")[2] in names]

    # --- gold ---------------------------------------------------------------------------------------------

    def _rollups(
        self, fresh: DataFrame, entries: Sequence[FileEntry], tables: list[schemas.Table]
    ) -> dict[str, Change]:
        """Minute, hour and day in one pass: parts of the batch plus the rows of the dates that they touch."""
        if not entries:
            return {}
        grains = {grain: table for grain, table in schemas.ROLLUPS.items() if table in tables}
        dates = {entry.date for entry in entries}
        parts = rollups.attempt_parts(fresh)
        span = _span(entries, "finished_ms")
        old = {grain: self._windows(table, dates, span, GRAIN_MS[grain]) for grain, table in grains.items()}
        if any(old.values()):
            parts = rollups.with_stored(parts, self.bench.read_rollups(old, grains))
        merged = rollups.rollups_of(parts)
        if len(grains) < len(schemas.ROLLUPS):
            merged = merged.where(F.col("grain").isin(*grains))
        written = self.bench.write_each(merged, grains)
        return {
            table.path: ([entry for entry in written if entry.table == table.path], old[grain])
            for grain, table in grains.items()
        }

    def _windows(
        self, table: schemas.Table, dates: set[str], span: tuple[int, int], width_ms: int
    ) -> list[FileEntry]:
        """Files of a table that may hold a window of the batch."""
        low, high = span[0] - span[0] % width_ms, span[1]
        return [
            entry for entry in self.lake.entries(table, dates) if entry.overlaps("window_start", low, high)
        ]

    def _errors(self, fresh: DataFrame, entries: Sequence[FileEntry], tables: Any) -> dict[str, Change]:
        old = self.lake.entries(schemas.GOLD_ERRORS, {entry.date for entry in entries})
        return self._merged(schemas.GOLD_ERRORS, gold.error_parts(fresh), gold.merge_errors, entries, old)

    def _workers(self, fresh: DataFrame, entries: Sequence[FileEntry], tables: Any) -> dict[str, Change]:
        old = self.lake.entries(schemas.GOLD_WORKERS, {entry.date for entry in entries})
        return self._merged(schemas.GOLD_WORKERS, gold.worker_parts(fresh), gold.merge_workers, entries, old)

    def _backlog(self, fresh: DataFrame, entries: Sequence[FileEntry], tables: Any) -> dict[str, Change]:
        spans = _spans(fresh, entries, "ready_ms", "started_ms", "finished_ms")
        old = [
            entry
            for day, span in spans.items()
            for entry in self._windows(schemas.GOLD_BACKLOG, {day}, span, GRAIN_MS["minute"])
        ]
        return self._merged(schemas.GOLD_BACKLOG, gold.backlog_parts(fresh), gold.merge_backlog, entries, old)

    def _merged(
        self,
        table: schemas.Table,
        parts: DataFrame,
        merge: Callable[[DataFrame], DataFrame],
        entries: Sequence[FileEntry],
        old: list[FileEntry],
    ) -> dict[str, Change]:
        """New rows added to those of the files that they touch."""
        if not entries:
            return {}
        if old:
            parts = parts.unionByName(self.bench.read(table, old).select(*parts.columns))
        # In order, so that the same rows are the same bytes.
        rows = merge(parts).coalesce(1).sortWithinPartitions("date", *table.keys)
        return {table.path: (self.bench.write(rows, table), old)}


def without_erased(bench: Workbench, rows: DataFrame) -> DataFrame:
    """Rows less those that were erased: a record that comes again stays away."""
    erased = bench.lake.entries(schemas.SILVER_ERASED)
    if not erased:
        return rows
    gone = bench.read(schemas.SILVER_ERASED, erased).select("source", F.col("run_id").alias("hash"))
    hashed = rows.withColumn("hash", attempts_of.hashed(F.col("run_id")))
    return hashed.join(gone, ["source", "hash"], "left_anti").select(*rows.columns)


def write_literal(where: Place, table: schemas.Table, rows: list[dict[str, Any]]) -> list[FileEntry]:
    """A few rows from the driver itself."""
    import pyarrow as pa

    writer = TableWriter(where, table)
    filled = [{"schema_version": schemas.SCHEMA_VERSION, **row} for row in rows]
    writer.write(pa.Table.from_pylist(filled, schema=table.arrow))
    return writer.close()


def _span(entries: Sequence[FileEntry], low: str, high: str | None = None) -> tuple[int, int]:
    """Smallest and largest time in files; everything when one does not say."""
    everything = (-(2**62), 2**62)
    first = min(entry.ranges.get(low, everything)[0] for entry in entries)
    return first, max(entry.ranges.get(high or low, everything)[1] for entry in entries)


def _spans(fresh: DataFrame, entries: Sequence[FileEntry], *columns: str) -> dict[str, tuple[int, int]]:
    """The days that times of the new attempts fall on, each with its smallest and largest time.

    ``columns`` from the earliest to the latest. Known from the files when they span few days; a batch
    with old jobs in it is asked for its exact days.
    """
    if not entries:
        return {}
    first, last = _span(entries, columns[0], columns[-1])
    if last - first <= _FEW_DAYS * _DAY_MS and len(days := _days(first, last)) <= _FEW_DAYS:
        return dict.fromkeys(days, (first, last))
    times = fresh.select(F.explode(F.array(*columns)).alias("ms")).where("ms is not null")
    rows = times.groupBy(attempts_of.day_of(F.col("ms")).alias("date")).agg(
        F.min("ms").alias("low"), F.max("ms").alias("high")
    )
    return {str(row["date"]): (row["low"], row["high"]) for row in rows.collect()}


def _days(first_ms: int, last_ms: int) -> list[str]:
    """The UTC days between two times."""
    days = range(_EPOCH + first_ms // _DAY_MS, _EPOCH + last_ms // _DAY_MS + 1)
    return [str(date.fromordinal(day)) for day in days]
