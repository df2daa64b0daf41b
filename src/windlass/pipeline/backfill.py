"""Working silver and gold out again from bronze, for some days or for all.

For what batches cannot do: a corrected transform, a new column, a damaged lake. Each day is one
change. Rows of other days are read where a job or a wait spans midnight, and come out as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import date

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from windlass.pipeline import schemas
from windlass.pipeline.lake import FileEntry, Lake
from windlass.pipeline.tables import Staged, Workbench, files_for
from windlass.pipeline.transforms import attempts, gold, jobs, rollups
from windlass.pipeline.transforms.grains import GRAIN_MS

_DAY_MS = GRAIN_MS["day"]
_EPOCH = date(1970, 1, 1).toordinal()


def bronze_dates(lake: Lake, since: date | None = None, until: date | None = None) -> list[str]:
    """The days that bronze still holds, within bounds."""
    days = {entry.date for entry in lake.state.of(schemas.BRONZE_ATTEMPTS)}
    low, high = str(since or date.min), str(until or date.max)
    return sorted(day for day in days if low <= day <= high)


def rebuild(
    spark: SparkSession,
    lake: Lake,
    since: date | None = None,
    until: date | None = None,
    progress: Callable[[str], None] = lambda day: None,
) -> list[str]:
    """Work out every day within bounds; returns them."""
    days = bronze_dates(lake, since, until)
    for day in days:
        DayRebuild(spark, lake, day).run()
        progress(day)
    return days


class DayRebuild:
    """One change that replaces what follows from one day of bronze."""

    def __init__(self, spark: SparkSession, lake: Lake, day: str) -> None:
        self.bench = Workbench(spark, lake)
        self.lake = lake
        self.day = day
        self.start_ms = (date.fromisoformat(day).toordinal() - _EPOCH) * _DAY_MS

    def run(self) -> None:
        """Silver first; everything else from silver."""
        parts = [self._attempts()]
        rows = self.bench.staged(schemas.SILVER_ATTEMPTS, "silver")
        parts += self._rollups(rows)
        parts.append(self._replaced(schemas.GOLD_ERRORS, gold.merge_errors(gold.error_parts(rows))))
        parts.append(self._replaced(schemas.GOLD_WORKERS, gold.merge_workers(gold.worker_parts(rows))))
        around = self._with_other_days(rows)
        backlog = gold.backlog_parts(around).where(F.col("date") == self.day)
        parts.append(self._replaced(schemas.GOLD_BACKLOG, gold.merge_backlog(backlog)))
        job_rows = jobs.job_parts(around).where(F.col("date") == self.day)
        parts.append(self._replaced(schemas.SILVER_JOBS, jobs.merge_jobs(job_rows)))
        self.bench.take(parts)
        self.lake.commit(self.bench.txn, "backfill", {}, {"date": self.day, **self.bench.ledger.summary()})

    def _attempts(self) -> Staged:
        bronze = self._of(schemas.BRONZE_ATTEMPTS)
        rows = attempts.as_silver(self.bench.read(schemas.BRONZE_ATTEMPTS, bronze))
        unique = rows.transform(attempts.unique_attempts(None))
        files = files_for(sum(entry.rows for entry in bronze))
        folder = self.bench.stage(unique, "silver", files)
        return Staged(schemas.SILVER_ATTEMPTS, folder, self._of(schemas.SILVER_ATTEMPTS))

    def _with_other_days(self, rows: DataFrame) -> DataFrame:
        """The day's attempts and those of other days whose jobs were added, ready or started on it."""
        end_ms = self.start_ms + _DAY_MS - 1
        others = [
            entry
            for entry in self.lake.state.of(schemas.SILVER_ATTEMPTS)
            if entry.date != self.day
            and entry.overlaps("enqueued_ms", -(2**62), end_ms)
            and entry.overlaps("finished_ms", self.start_ms, 2**62)
        ]
        return rows.unionByName(self.bench.read(schemas.SILVER_ATTEMPTS, others)) if others else rows

    def _rollups(self, rows: DataFrame) -> Iterable[Staged]:
        merged = rollups.rollups_of(rollups.attempt_parts(rows))
        merged.write.partitionBy("grain", "date").parquet(self.bench.txn.target("rollups"))
        folder = self.bench.txn.folder("rollups")
        return [
            Staged(table, f"{folder}/grain={grain}", self._of(table))
            for grain, table in schemas.ROLLUPS.items()
        ]

    def _replaced(self, table: schemas.Table, rows: DataFrame) -> Staged:
        return Staged(table, self.bench.stage(rows, table.path.replace("/", "-")), self._of(table))

    def _of(self, table: schemas.Table) -> list[FileEntry]:
        return self.lake.state.of(table, [self.day])
