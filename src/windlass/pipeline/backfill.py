"""Rebuild silver and gold from bronze, for some days or for all.

A backfill does what batches cannot: apply a corrected transform, fill a new column, repair a damaged lake.
Each day is one commit of each table. A backfill that was interrupted is started again. The attempts of all
days are rebuilt first, because jobs and gold also read attempts of other days where a job or a wait spans
midnight. Erased attempts are counted in gold as before, and are not added to silver again.

Arguments and results come from bronze too. Those that bronze lacks can be read from the store, as long as it
has the jobs; bronze is then the first table to be replaced. Jobs that were added on other days also get the
arguments and results of their attempts, even outside the bounds, because conditions of ``erase`` read jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from windlass.pipeline import schemas
from windlass.pipeline.compact import newest_note
from windlass.pipeline.digest import joined
from windlass.pipeline.files import FileEntry
from windlass.pipeline.lake import Conflict, Lake, LakeTakenError
from windlass.pipeline.lake_batch import gold_shares, merge_gold, without_erased
from windlass.pipeline.payloads import Payloads
from windlass.pipeline.spark_tasks import AddPayloads, DaysWithPayloads, DigestFiles
from windlass.pipeline.transforms import attempts, job_rows
from windlass.pipeline.transforms.grains import GRAIN_MS
from windlass.pipeline.workbench import Workbench, files_for

_DAY_MS = GRAIN_MS["day"]
_EPOCH = date(1970, 1, 1).toordinal()


@dataclass(frozen=True)
class StoredPayloads:
    """Where to read missing arguments and results: a store, its name in the lake, and which parts to keep."""

    url: str = field(repr=False)
    source: str
    payloads: Payloads


def bronze_dates(lake: Lake, since: date | None = None, until: date | None = None) -> list[str]:
    """The days within the bounds that bronze still holds."""
    days = {entry.date for entry in lake.entries(schemas.BRONZE_ATTEMPTS)}
    low, high = str(since or date.min), str(until or date.max)
    return sorted(day for day in days if low <= day <= high)


def rebuild(
    spark: SparkSession,
    lake: Lake,
    since: date | None = None,
    until: date | None = None,
    progress: Callable[[str], None] = lambda day: None,
    stored: StoredPayloads | None = None,
) -> list[str]:
    """Rebuild every day within the bounds and return these days.

    ``stored``: where to read arguments and results that bronze lacks. ``progress`` is called twice for each
    day: when its attempts are rebuilt, and when its jobs and gold are.
    """
    days = bronze_dates(lake, since, until)
    rebuilt = [DayRebuild(spark, lake, day, lake.sources()) for day in days]
    for one in rebuilt:
        if stored is not None:
            one.add_payloads(stored)
        one.attempts()
        progress(one.day)
    if stored is not None:
        for day in sorted(_days_with_payloads(spark, lake, days) - set(days)):
            DayRebuild(spark, lake, day, lake.sources()).jobs()
    for one in rebuilt:
        one.jobs()
        one.gold()
        progress(one.day)
    return days


def _days_with_payloads(spark: SparkSession, lake: Lake, days: Sequence[str]) -> set[str]:
    """The days on which jobs were added whose arguments bronze holds with the attempts of ``days``.

    This includes arguments that were there before: an interrupted backfill may have added them.
    """
    entries = lake.entries(schemas.BRONZE_ATTEMPTS, days)
    found = Workbench(spark, lake).run([DaysWithPayloads(lake.place, entry) for entry in entries])
    return set().union(*found)


class DayRebuild:
    """Rebuilds the tables that follow from one day of bronze."""

    def __init__(self, spark: SparkSession, lake: Lake, day: str, batches: Mapping[str, int]) -> None:
        self.bench = Workbench(spark, lake)
        self.lake = lake
        self.day = day
        self.start_ms = (date.fromisoformat(day).toordinal() - _EPOCH) * _DAY_MS
        #: The newest batch of each source. Every commit names it, so that a batch that commits meanwhile
        #: conflicts with this commit.
        self.batches = batches

    def add_payloads(self, stored: StoredPayloads) -> None:
        """Add arguments and results that bronze lacks, for the jobs that the store still has."""
        old = [
            entry
            for entry in self._of(schemas.BRONZE_ATTEMPTS)
            if entry.overlaps("source", stored.source, stored.source)
        ]
        found = self.bench.run(
            [AddPayloads(self.lake.place, stored.url, stored.source, entry, stored.payloads) for entry in old]
        )
        changed = [(entry, new) for entry, new in zip(old, found, strict=True) if new != [entry]]
        if changed:
            added = [entry for _, new in changed for entry in new]
            self.bench.traffic.note_written(added)
            self._replace(schemas.BRONZE_ATTEMPTS, added, [entry for entry, _ in changed])

    def attempts(self) -> None:
        """Rebuild the attempts that ended on the day, from bronze."""
        self._replace(schemas.SILVER_ATTEMPTS, *self._attempts())

    def jobs(self) -> None:
        """Rebuild the jobs that were added on the day, from the attempts in silver."""
        self._replace(schemas.SILVER_JOBS, self._jobs(), self._of(schemas.SILVER_JOBS))

    def gold(self) -> None:
        """Rebuild the day's gold from silver. Attempts of other days count only in its backlog."""
        tables = (schemas.SILVER_ATTEMPTS, schemas.SILVER_ERASED)
        files = [entry for table in tables for entry in self._around_day(table)]
        digest = joined(self.bench.run([DigestFiles(self.lake.place, [entry]) for entry in files]))
        written = merge_gold(self.bench, gold_shares(digest, schemas.GOLD, self.day), {})
        for table in schemas.GOLD:
            self._replace(table, written.get(table.path, []), self._of(table))

    def _attempts(self) -> tuple[list[FileEntry], Sequence[FileEntry]]:
        bronze, old = self._of(schemas.BRONZE_ATTEMPTS), self._of(schemas.SILVER_ATTEMPTS)
        rows = attempts.as_silver(self.bench.read(schemas.BRONZE_ATTEMPTS, bronze))
        unique = without_erased(self.bench, rows).transform(attempts.unique_attempts(None))
        files = files_for(sum(entry.rows for entry in bronze))
        return self.bench.write(unique, schemas.SILVER_ATTEMPTS, files), old

    def _jobs(self) -> list[FileEntry]:
        """Jobs that were added on the day, from all their attempts and from snapshots."""
        entries, old = self._around_day(schemas.SILVER_ATTEMPTS), self._of(schemas.SILVER_JOBS)
        rows = self.bench.read(schemas.SILVER_ATTEMPTS, entries).select(*job_rows.PART_COLUMNS)
        added = rows.where(F.col("enqueued_ms").between(self.start_ms, self.start_ms + _DAY_MS - 1))
        seen = self.bench.read(schemas.SILVER_JOBS, old).where(F.col("seen_ms").isNotNull())
        schema = schemas.SILVER_JOBS.spark
        parts = added.mapInArrow(job_rows.parts_of_partition, schema).union(
            seen.mapInArrow(job_rows.snapshot_parts_of_partition, schema)
        )
        files = files_for(sum(entry.rows for entry in entries))
        together = parts.repartition(files, *schemas.SILVER_JOBS.keys)
        return self.bench.write(
            together.mapInArrow(job_rows.merge_partition, schema), schemas.SILVER_JOBS, None
        )

    def _around_day(self, table: schemas.TableSchema) -> list[FileEntry]:
        """Files with attempts of the day, or of jobs that were added, ready or started on it."""
        end_ms = self.start_ms + _DAY_MS - 1
        return [
            entry
            for entry in self.lake.entries(table)
            if entry.date == self.day
            or (
                entry.overlaps("enqueued_ms", -(2**62), end_ms)
                and entry.overlaps("finished_ms", self.start_ms, 2**62)
            )
        ]

    def _replace(self, table: schemas.TableSchema, new: list[FileEntry], old: Sequence[FileEntry]) -> None:
        note = newest_note(self.lake, table)
        try:
            # Strict even for a day without files: a snapshot may have added some meanwhile.
            self.lake.commit(table, new, old, batches=self.batches, note=note, strict=True)
        except Conflict as exc:
            raise LakeTakenError(f"a run changed {table.path} meanwhile; start backfill again") from exc

    def _of(self, table: schemas.TableSchema) -> list[FileEntry]:
        return self.lake.entries(table, [self.day])
