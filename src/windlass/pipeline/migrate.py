"""Migrate a lake of the first format (Parquet files and our own commit log) to Delta tables.

The old lake is only read. A change that its writer had begun when it died counts as done, as it did in the
release that wrote it. Bronze is committed last. If a migration dies, start it again; it skips tables that
are done.

Gold had no ``source`` column. If silver shows that a day has one source, its rows are copied with that name.
A day of several sources is rebuilt from silver, source by source. A day that silver no longer holds gets the
name of the lake's only source, or ``several``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from windlass.core.clock import SYSTEM_CLOCK
from windlass.errors import ConfigError
from windlass.pipeline import schemas
from windlass.pipeline.files import FileEntry, TableWriter
from windlass.pipeline.lake import MIGRATING, Lake, Offsets

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_META = "_windlass"
_FORMAT = 1
#: The source of rows that belong to several sources and can no longer be separated.
SEVERAL = "several"
_COPIED = (schemas.BRONZE_GAPS, schemas.SILVER_ATTEMPTS, schemas.SILVER_JOBS)


class _Commit(msgspec.Struct, frozen=True):
    """One commit of an old lake, with the fields that we need."""

    version: int
    offsets: Offsets = {}
    add: list[FileEntry] = []
    remove: list[str] = []
    staged: list[str] = []


class _Identity(msgspec.Struct):
    lake_id: str
    format: int


class OldLake(msgspec.Struct):
    """The state of an old lake. Paths of files are relative to the root, unlike in the new format."""

    version: int = 0
    offsets: Offsets = {}
    files: dict[str, FileEntry] = {}
    root: str = ""
    lake_id: str = ""

    @classmethod
    def load(cls, root: str) -> OldLake:
        """Read the newest state. Raises ``ConfigError`` if there is no old lake."""
        meta = Path(root) / _META
        try:
            identity = msgspec.json.decode((meta / "lake.json").read_bytes(), type=_Identity)
        except FileNotFoundError:
            raise ConfigError(
                "from", message=f"there is no lake of the first format in {root}", got=root
            ) from None
        if identity.format != _FORMAT:
            raise ConfigError(
                "from",
                message=f"the lake in {root} has format {identity.format!r}, not {_FORMAT!r}",
                got=identity.format,
            )
        snapshots = sorted((meta / "snapshots").glob("*.json"))
        lake = msgspec.json.decode(snapshots[-1].read_bytes(), type=cls) if snapshots else cls()
        lake.root, lake.lake_id = root, identity.lake_id
        while True:
            name = f"{lake.version + 1:010d}.json"
            found = [path for folder in ("commits", "intents") if (path := meta / folder / name).exists()]
            if not found:
                return lake
            lake._apply(msgspec.json.decode(found[0].read_bytes(), type=_Commit))

    def _apply(self, commit: _Commit) -> None:
        for path in commit.remove:
            self.files.pop(path, None)
        for entry, staged in zip(
            commit.add, commit.staged or [entry.path for entry in commit.add], strict=True
        ):
            # If the change was interrupted, only some of its files have been moved to their final place.
            there = entry.path if (Path(self.root) / entry.path).exists() else staged
            self.files[entry.path] = msgspec.structs.replace(entry, path=there)
        for source, queues in commit.offsets.items():
            self.offsets.setdefault(source, {}).update(queues)
        self.version = commit.version

    def of(self, table: schemas.TableSchema) -> list[FileEntry]:
        return [entry for entry in self.files.values() if entry.table == table.path]

    def rows(self, entry: FileEntry) -> pa.Table:
        """The rows of one file, with those columns of its table that it has."""
        from datetime import date

        import pyarrow as pa
        import pyarrow.parquet as pq

        rows = pq.ParquetFile(Path(self.root) / entry.path).read()
        day = pa.scalar(date.fromisoformat(entry.date), pa.date32())
        rows = rows.append_column(schemas.PARTITION, pa.repeat(day, rows.num_rows))
        table = schemas.TABLES[entry.table]
        for name in table.names:
            if name not in rows.column_names:
                # Batch 0 for silver attempts: a file without a range would be read for every batch.
                value = pa.scalar(0 if name == "batch" else None, table.arrow.field(name).type)
                rows = rows.append_column(name, pa.repeat(value, rows.num_rows))
        return rows.select(table.names)


def migrate(
    old: OldLake,
    lake: Lake,
    spark: Callable[[], AbstractContextManager[SparkSession]],
    progress: Callable[[str], None] = lambda table: None,
) -> int:
    """Copy all tables; returns the number of rows.

    ``spark`` is called only if sources must be separated.
    """
    lake.create(old.lake_id)
    if not lake.is_migrating:
        if lake.delta(schemas.BRONZE_ATTEMPTS).version() > 0:
            raise ConfigError(
                "lake",
                message=f"the lake at {lake.url} already has rows: migrate to a new place",
                got=lake.url,
            )
        lake.commit(schemas.BRONZE_ATTEMPTS, [], note={MIGRATING: old.lake_id})
    move = _Move(old, lake)
    for table in _COPIED:
        move.copy(table, move.rows_of)
        progress(table.path)
    move.gold(spark)
    progress("gold")
    note = {"source": "", "batch": 0, "gaps": [], "seen_ms": SYSTEM_CLOCK.now_ms(), "offsets": old.offsets}
    move.copy(schemas.BRONZE_ATTEMPTS, move.rows_of, note)
    progress(schemas.BRONZE_ATTEMPTS.path)
    return sum(entry.rows for entry in old.files.values())


def steps() -> int:
    """How many times ``migrate`` reports progress."""
    return len(_COPIED) + 2


class _Move:
    def __init__(self, old: OldLake, lake: Lake) -> None:
        self.old = old
        self.lake = lake
        # New batches continue from these numbers, because rows of bronze hold the numbers of the old lake.
        self.batches = dict.fromkeys(old.offsets, old.version)

    def rows_of(self, entry: FileEntry) -> pa.Table:
        return self.old.rows(entry)

    def is_done(self, table: schemas.TableSchema) -> bool:
        return all(self.lake.done(table, source) >= number for source, number in self.batches.items())

    def copy(
        self,
        table: schemas.TableSchema,
        read: Callable[[FileEntry], pa.Table],
        note: dict[str, Any] | None = None,
        entries: Iterable[FileEntry] | None = None,
    ) -> None:
        """Copy a whole table in one commit, unless an earlier migration did."""
        if self.is_done(table) and note is None:
            return
        writer = TableWriter(self.lake.place, table)
        for entry in self.old.of(table) if entries is None else entries:
            writer.write(read(entry))
        self.lake.commit(table, writer.close(), batches=self.batches, note=note)

    # --- gold -------------------------------------------------------------------------------------------

    def gold(self, spark: Callable[[], AbstractContextManager[SparkSession]]) -> None:
        lacking = [table for table in schemas.GOLD if not self.is_done(table)]
        if not lacking:
            return
        of_day = self._sources_by_day()
        days = {entry.date for table in lacking for entry in self.old.of(table)}
        mixed = sorted(day for day in days if len(of_day.get(day, ())) > 1)
        if mixed:
            with spark() as session:
                self._work_out(session, mixed)
        for table in lacking:
            alone = [entry for entry in self.old.of(table) if entry.date not in mixed]
            self.copy(table, lambda entry: self._named(entry, of_day), entries=alone)

    def _work_out(self, spark: SparkSession, days: list[str]) -> None:
        from windlass.pipeline.backfill import DayRebuild

        for day in days:
            DayRebuild(spark, self.lake, day, {}).gold()

    def _named(self, entry: FileEntry, of_day: dict[str, set[str]]) -> pa.Table:
        """Rows of a gold file with the source of its day."""
        import pyarrow as pa

        rows = self.old.rows(entry)
        found = of_day.get(entry.date) or set(self.old.offsets)
        name = next(iter(found)) if len(found) == 1 else SEVERAL
        at = rows.column_names.index("source")
        return rows.set_column(at, "source", pa.repeat(name, rows.num_rows))

    def _sources_by_day(self) -> dict[str, set[str]]:
        """For each day, the sources with attempts that became ready, started or ended on it."""
        found: dict[str, set[str]] = {}
        for entry in self.old.of(schemas.SILVER_ATTEMPTS):
            for day, source in self._days_of(entry):
                found.setdefault(day, set()).add(source)
        return found

    def _days_of(self, entry: FileEntry) -> Iterator[tuple[str, str]]:
        import pyarrow as pa
        import pyarrow.compute as pc

        rows = self.old.rows(entry)
        for name in ("ready_ms", "started_ms", "finished_ms"):
            days = pc.cast(pc.divide(rows.column(name), 86_400_000), pa.int32())
            days = pc.cast(pc.cast(days, pa.date32()), pa.string())
            pairs = pa.table({"day": days, "source": rows.column("source")}).group_by(["day", "source"])
            for row in pairs.aggregate([]).to_pylist():
                if row["day"] is not None:
                    yield row["day"], row["source"]
