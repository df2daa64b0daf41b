"""One batch: new records of a store's log become rows of every table, in one change of the lake.

Bronze is what was read. Silver takes from it the attempts it does not have. Gold adds the new silver rows
to the dates that they touch. Offsets go with them, so the three layers never disagree, and a repeated or
interrupted batch counts once.
"""

from __future__ import annotations

import json
from collections.abc import Callable
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
from windlass.pipeline import schemas
from windlass.pipeline.lake import Commit, FileEntry, Lake
from windlass.pipeline.source import Positions, advance, check_start, log_bounds
from windlass.pipeline.store import ask_many
from windlass.pipeline.tables import Staged, Workbench
from windlass.pipeline.transforms import attempts as attempts_of
from windlass.pipeline.transforms import gold, jobs, rollups

OnGap = Literal["fail", "skip"]
#: Up to so many days, all of them are taken as touched; beyond, the rows are asked.
_FEW_DAYS = 3
#: Up to so many rows, one task writes a table; beyond, it pays to look which jobs left several records ...
_LARGE = 50_000
#: ... unless these are more than every task should be handed.
_FEW_HASHES = 200_000
_DAY_MS = 86_400_000
_EPOCH = date(1970, 1, 1).toordinal()


@dataclass(frozen=True)
class Gap:
    """Records of a queue that were trimmed before they were read."""

    queue: str
    after: int
    until: int


@dataclass(frozen=True)
class Plan:
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

    commit: Commit
    records: int
    attempts: int
    behind: int
    traffic: dict[str, Any] = field(default_factory=dict)


def plan_batch(url: str, done: Positions, most: int, on_gap: OnGap = "fail") -> Plan:
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
    return Plan(start, end, tuple(gaps), behind)


class Batch:
    """One change of the lake, from one store."""

    def __init__(self, spark: SparkSession, lake: Lake, url: str, source: str) -> None:
        self.bench = Workbench(spark, lake)
        self.lake = lake
        self.url = url
        self.source = source

    def run(self, plan: Plan) -> BatchResult:
        """Read, derive, commit."""
        parts = [self._gap_rows(plan.gaps)] if plan.gaps else []
        fresh = self._new_attempts(plan) if plan.records else 0
        if fresh:
            parts += self._derived()
        self.bench.take(parts)
        traffic = self.bench.ledger.summary()
        info = {"records": plan.records, "attempts": fresh, **traffic}
        commit = self.lake.commit(self.bench.txn, "batch", {self.source: plan.end}, info)
        return BatchResult(commit, plan.records, fresh, plan.behind, traffic)

    def _new_attempts(self, plan: Plan) -> int:
        """Bronze and silver; returns how many attempts silver did not have."""
        read = self.bench.take([self._bronze(plan)])[schemas.BRONZE_ATTEMPTS.path]
        reach("pipeline.bronze")
        if not read:
            return 0
        fresh = self.bench.take([self._silver()])[schemas.SILVER_ATTEMPTS.path]
        reach("pipeline.silver")
        return fresh

    # --- bronze -------------------------------------------------------------------------------------------

    def _bronze(self, plan: Plan) -> Staged:
        spark = self.bench.spark
        cores = spark.sparkContext.defaultParallelism
        history = (
            spark.read.format("windlass")
            .option("url", self.url)
            .option("startingOffsets", json.dumps(plan.start))
            .option("endingOffsets", json.dumps(plan.end))
            .option("recordsPerPartition", max(-(-plan.records // cores), 20_000))
            .load()
        )
        rows = history.transform(attempts_of.as_bronze(source=self.source, batch=self.bench.txn.version))
        small = plan.records <= _LARGE
        folder = self.bench.stage(rows, "bronze", files=1 if small else None)
        return Staged(schemas.BRONZE_ATTEMPTS, folder, label=self.source)

    def _gap_rows(self, gaps: tuple[Gap, ...]) -> Staged:
        now_ms, version = SYSTEM_CLOCK.now_ms(), schemas.SCHEMA_VERSION
        today = date.fromordinal(_EPOCH + now_ms // _DAY_MS)
        rows = [
            (self.source, gap.queue, gap.after, gap.until, now_ms, version, self.bench.txn.version, today)
            for gap in gaps
        ]
        frame = self.bench.spark.createDataFrame(rows, schemas.BRONZE_GAPS.spark)
        return Staged(schemas.BRONZE_GAPS, self.bench.stage(frame, "gaps"), label=self.source)

    # --- silver -------------------------------------------------------------------------------------------

    def _silver(self) -> Staged:
        """Attempts that silver does not have yet. Reads silver only where times overlap."""
        bronze = self.bench.staged(schemas.BRONZE_ATTEMPTS, "bronze")
        rows = attempts_of.as_silver(bronze)
        entries = [entry for entry in self.bench.txn.add if entry.table == schemas.BRONZE_ATTEMPTS.path]
        overlapping = self._overlapping(entries)
        known = self.bench.read(schemas.SILVER_ATTEMPTS, overlapping) if overlapping else None
        ids = rows.select("run_id")
        both = ids if known is None else ids.unionByName(known.select("run_id"))
        if not both.transform(attempts_of.repeated(["run_id"])).isEmpty():
            rows = rows.transform(attempts_of.unique_attempts(known))
        small = sum(entry.rows for entry in entries) <= _LARGE
        folder = self.bench.stage(rows, "silver", files=1 if small else None)
        return Staged(schemas.SILVER_ATTEMPTS, folder)

    def _overlapping(self, entries: list[FileEntry]) -> list[FileEntry]:
        spans = [entry.ranges["finished_ms"] for entry in entries]
        low, high = min(span[0] for span in spans), max(span[1] for span in spans)
        dates = {entry.date for entry in entries}
        found = self.lake.state.of(schemas.SILVER_ATTEMPTS, dates)
        return [entry for entry in found if entry.overlaps("finished_ms", low, high)]

    # --- what follows from new silver rows ------------------------------------------------------------------

    def _derived(self) -> list[Staged]:
        """Jobs and gold. Independent of each other, so Spark may plan one while it runs another."""
        fresh = self.bench.staged(schemas.SILVER_ATTEMPTS, "silver")
        dates = self._taken_dates()
        work: list[Callable[[], list[Staged]]] = [
            partial(self._rollups, fresh, dates),
            partial(self._jobs, fresh),
            partial(self._errors, fresh, dates),
            partial(self._workers, fresh, dates),
            partial(self._backlog, fresh),
        ]
        with ThreadPoolExecutor(max_workers=3, thread_name_prefix="windlass-pipeline") as pool:
            futures = [pool.submit(step) for step in work]
            return [staged for future in futures for staged in future.result()]

    def _jobs(self, fresh: DataFrame) -> list[Staged]:
        """New jobs are appended; a file is written anew only when it holds a job that ran again."""
        spans = self._spans(fresh, "enqueued_ms")
        candidates = [
            entry
            for date, (low, high) in spans.items()
            for entry in self.lake.state.of(schemas.SILVER_JOBS, [date])
            if entry.overlaps("enqueued_ms", low, high)
        ]
        touched = self._holding(candidates, fresh)
        rows = jobs.job_parts(fresh)
        if touched:
            rows = rows.unionByName(self.bench.read(schemas.SILVER_JOBS, touched))
        most = sum(entry.rows for entry in (*touched, *self._taken()))
        merged = self._merged_jobs(rows, most)
        if most <= _LARGE:  # in order, so that the same rows are the same bytes
            merged = merged.coalesce(1).sortWithinPartitions("date", *schemas.SILVER_JOBS.keys)
        return [Staged(schemas.SILVER_JOBS, self.bench.stage(merged, "jobs", files=None), touched)]

    def _merged_jobs(self, rows: DataFrame, most: int) -> DataFrame:
        """One row per job. In a large batch, only the rows of jobs that left several are brought together."""
        if most <= _LARGE:
            return jobs.merge_jobs(rows)
        hashes = rows.transform(attempts_of.repeated(schemas.SILVER_JOBS.keys))
        few = [row["hash"] for row in hashes.limit(_FEW_HASHES + 1).collect()]
        if len(few) > _FEW_HASHES:
            return jobs.merge_jobs(rows)
        hashes = self.bench.spark.createDataFrame([(value,) for value in few], "hash long")
        return jobs.merge_repeated_jobs(rows, hashes)

    def _holding(self, candidates: list[FileEntry], fresh: DataFrame) -> list[FileEntry]:
        """Those files that hold a job of the new attempts."""
        if not candidates:
            return []
        self.bench.ledger.note_read(candidates)
        keys = list(schemas.SILVER_JOBS.keys)
        stored = self.bench.spark.read.schema(schemas.SILVER_JOBS.spark).parquet(*self.lake.paths(candidates))
        found = (
            stored.select(*keys, F.col("_metadata.file_name").alias("file"))
            .join(fresh.select(*keys), keys, "left_semi")
            .select("file")
            .distinct()
            .collect()
        )
        names = {row["file"] for row in found}
        return [entry for entry in candidates if entry.path.rpartition("/")[2] in names]

    def _rollups(self, fresh: DataFrame, dates: set[str]) -> list[Staged]:
        """Minute, hour and day in one pass: parts of the batch plus the rows of the dates that they touch."""
        parts = rollups.attempt_parts(fresh)
        old = {grain: self.lake.state.of(table, dates) for grain, table in schemas.ROLLUPS.items()}
        if any(old.values()):
            parts = rollups.with_stored(parts, self.bench.read_rollups(old))
        merged = rollups.rollups_of(parts)
        merged.write.partitionBy("grain", "date").parquet(self.bench.txn.target("rollups"))
        folder = self.bench.txn.folder("rollups")
        return [
            Staged(table, f"{folder}/grain={grain}", old[grain]) for grain, table in schemas.ROLLUPS.items()
        ]

    def _errors(self, fresh: DataFrame, dates: set[str]) -> list[Staged]:
        return self._merged(schemas.GOLD_ERRORS, gold.error_parts(fresh), gold.merge_errors, dates)

    def _workers(self, fresh: DataFrame, dates: set[str]) -> list[Staged]:
        return self._merged(schemas.GOLD_WORKERS, gold.worker_parts(fresh), gold.merge_workers, dates)

    def _backlog(self, fresh: DataFrame) -> list[Staged]:
        dates = set(self._spans(fresh, "ready_ms", "started_ms", "finished_ms"))
        return self._merged(schemas.GOLD_BACKLOG, gold.backlog_parts(fresh), gold.merge_backlog, dates)

    def _merged(
        self,
        table: schemas.Table,
        parts: DataFrame,
        merge: Callable[[DataFrame], DataFrame],
        dates: set[str],
    ) -> list[Staged]:
        """New rows added to those of the dates that they touch."""
        old = self.lake.state.of(table, dates)
        if old:
            parts = parts.unionByName(self.bench.read(table, old).select(*parts.columns))
        # In order, so that the same rows are the same bytes.
        rows = merge(parts).coalesce(1).sortWithinPartitions("date", *table.keys)
        return [Staged(table, self.bench.stage(rows, table.path.replace("/", "-")), old)]

    def _spans(self, fresh: DataFrame, *columns: str) -> dict[str, tuple[int, int]]:
        """The days that times of the new attempts fall on, each with its smallest and largest time.

        ``columns`` from the earliest to the latest. Known from the files when they span few days; a batch
        with old jobs in it is asked for its exact days.
        """
        entries = self._taken()
        first = min(entry.ranges[columns[0]][0] for entry in entries)
        last = max(entry.ranges[columns[-1]][1] for entry in entries)
        days = _days(first, last)
        if len(days) <= _FEW_DAYS:
            return dict.fromkeys(days, (first, last))
        times = fresh.select(F.explode(F.array(*columns)).alias("ms")).where("ms is not null")
        rows = times.groupBy(attempts_of.day_of(F.col("ms")).alias("date")).agg(
            F.min("ms").alias("low"), F.max("ms").alias("high")
        )
        return {str(row["date"]): (row["low"], row["high"]) for row in rows.collect()}

    def _taken(self) -> list[FileEntry]:
        return [entry for entry in self.bench.txn.add if entry.table == schemas.SILVER_ATTEMPTS.path]

    def _taken_dates(self) -> set[str]:
        return {entry.date for entry in self._taken()}


def _days(first_ms: int, last_ms: int) -> list[str]:
    """The UTC days between two times, at most one more than are few."""
    last = _EPOCH + last_ms // _DAY_MS
    start = _EPOCH + first_ms // _DAY_MS
    return [str(date.fromordinal(day)) for day in range(start, min(last, start + _FEW_DAYS) + 1)]
