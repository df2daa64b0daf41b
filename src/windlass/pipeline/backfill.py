"""Working silver and gold out again from bronze, for some days or for all.

For what batches cannot do: a corrected transform, a new column, a damaged lake. Each day is one commit of
each table; one that is interrupted is simply started again. Rows of other days are read where a job or a
wait spans midnight, and come out as they were. Erased attempts count in gold as before, and stay away from
silver.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from windlass.pipeline import schemas
from windlass.pipeline.batch import without_erased
from windlass.pipeline.compact import carried
from windlass.pipeline.files import FileEntry
from windlass.pipeline.lake import Conflict, Lake, LakeTakenError
from windlass.pipeline.tables import Workbench, files_for
from windlass.pipeline.transforms import attempts, gold, jobs, rollups
from windlass.pipeline.transforms.grains import GRAIN_MS

_DAY_MS = GRAIN_MS["day"]
_EPOCH = date(1970, 1, 1).toordinal()


def bronze_dates(lake: Lake, since: date | None = None, until: date | None = None) -> list[str]:
    """The days that bronze still holds, within bounds."""
    days = {entry.date for entry in lake.entries(schemas.BRONZE_ATTEMPTS)}
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
        DayRebuild(spark, lake, day, lake.sources()).run()
        progress(day)
    return days


class DayRebuild:
    """What follows from one day of bronze, worked out again."""

    def __init__(self, spark: SparkSession, lake: Lake, day: str, batches: Mapping[str, int]) -> None:
        self.bench = Workbench(spark, lake)
        self.lake = lake
        self.day = day
        self.start_ms = (date.fromisoformat(day).toordinal() - _EPOCH) * _DAY_MS
        #: The newest of each source. Named in every commit, so that a batch which comes between is noticed
        #: by both.
        self.batches = batches

    def run(self) -> None:
        """Silver first; everything else from silver."""
        self._replace(schemas.SILVER_ATTEMPTS, *self._attempts())
        job_rows = jobs.job_parts(self._around_day()).where(F.col("date") == self.day)
        self._write(schemas.SILVER_JOBS, jobs.merge_jobs(job_rows))
        self.gold()

    def gold(self) -> None:
        """Gold of the day, from silver as it is."""
        rows = self._day()
        counted = rows.unionByName(self._erased(self._of(schemas.SILVER_ERASED)))
        self._rollups(counted)
        self._write(schemas.GOLD_ERRORS, gold.merge_errors(gold.error_parts(counted)))
        self._write(schemas.GOLD_WORKERS, gold.merge_workers(gold.worker_parts(counted)))
        erased = self._erased(self._around(schemas.SILVER_ERASED) + self._of(schemas.SILVER_ERASED))
        backlog = gold.backlog_parts(self._around_day().unionByName(erased)).where(F.col("date") == self.day)
        self._write(schemas.GOLD_BACKLOG, gold.merge_backlog(backlog))

    def _attempts(self) -> tuple[list[FileEntry], Sequence[FileEntry]]:
        bronze, old = self._of(schemas.BRONZE_ATTEMPTS), self._of(schemas.SILVER_ATTEMPTS)
        rows = attempts.as_silver(self.bench.read(schemas.BRONZE_ATTEMPTS, bronze))
        unique = without_erased(self.bench, rows).transform(attempts.unique_attempts(None))
        files = files_for(sum(entry.rows for entry in bronze))
        return self.bench.write(unique, schemas.SILVER_ATTEMPTS, files), old

    def _erased(self, entries: Sequence[FileEntry]) -> DataFrame:
        return attempts.as_silver(self.bench.read(schemas.SILVER_ERASED, entries))

    def _day(self) -> DataFrame:
        return self.bench.read(schemas.SILVER_ATTEMPTS, self._of(schemas.SILVER_ATTEMPTS))

    def _around_day(self) -> DataFrame:
        """The day's attempts and those of other days whose jobs were added, ready or started on it."""
        others = self.bench.read(schemas.SILVER_ATTEMPTS, self._around(schemas.SILVER_ATTEMPTS))
        return self._day().unionByName(others)

    def _around(self, table: schemas.Table) -> list[FileEntry]:
        end_ms = self.start_ms + _DAY_MS - 1
        return [
            entry
            for entry in self.lake.entries(table)
            if entry.date != self.day
            and entry.overlaps("enqueued_ms", -(2**62), end_ms)
            and entry.overlaps("finished_ms", self.start_ms, 2**62)
        ]

    def _rollups(self, rows: DataFrame) -> None:
        old = {table.path: self._of(table) for table in schemas.ROLLUPS.values()}
        written = self.bench.write_each(rollups.rollups_of(rollups.attempt_parts(rows)), schemas.ROLLUPS)
        for table in schemas.ROLLUPS.values():
            self._replace(table, [entry for entry in written if entry.table == table.path], old[table.path])

    def _write(self, table: schemas.Table, rows: DataFrame) -> None:
        old = self._of(table)
        self._replace(table, self.bench.write(rows, table), old)

    def _replace(self, table: schemas.Table, new: list[FileEntry], old: Sequence[FileEntry]) -> None:
        try:
            self.lake.commit(table, new, old, batches=self.batches, note=carried(self.lake, table))
        except Conflict as exc:
            raise LakeTakenError(f"a run changed {table.path} meanwhile; start backfill again") from exc

    def _of(self, table: schemas.Table) -> list[FileEntry]:
        return self.lake.entries(table, [self.day])
