"""Reading and staging tables of a lake with Spark, and counting what that touches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from windlass.pipeline.lake import FileEntry, Lake, Transaction
from windlass.pipeline.schemas import GOLD_MINUTE, Table

#: Rows that one file should hold at most when a change writes many.
ROWS_PER_FILE = 1_000_000


@dataclass
class Traffic:
    """Files, rows and bytes of a table that a change read or wrote."""

    files: int = 0
    rows: int = 0
    bytes: int = 0

    def count(self, entries: Iterable[FileEntry]) -> None:
        for entry in entries:
            self.files += 1
            self.rows += entry.rows
            self.bytes += entry.bytes


@dataclass
class Ledger:
    """What a change read and wrote, by table."""

    read: dict[str, Traffic] = field(default_factory=dict)
    written: dict[str, Traffic] = field(default_factory=dict)

    def note_read(self, entries: Iterable[FileEntry]) -> None:
        _note(self.read, entries)

    def note_written(self, entries: Iterable[FileEntry]) -> None:
        _note(self.written, entries)

    def summary(self) -> dict[str, dict[str, dict[str, int]]]:
        """As kept in a commit."""
        return {
            side: {table: dict(vars(traffic)) for table, traffic in sorted(tables.items())}
            for side, tables in (("read", self.read), ("written", self.written))
        }


def _note(side: dict[str, Traffic], entries: Iterable[FileEntry]) -> None:
    for entry in entries:
        side.setdefault(entry.table, Traffic()).count([entry])


@dataclass
class Staged:
    """New files of a table, written but not yet part of a change, and the files that they replace."""

    table: Table
    folder: str
    replaces: Sequence[FileEntry] = ()
    label: str = "part"


class Workbench:
    """A session, a lake and a change under way."""

    def __init__(self, spark: SparkSession, lake: Lake) -> None:
        self.spark = spark
        self.lake = lake
        self.txn: Transaction = lake.begin()
        self.ledger = Ledger()

    def read(self, table: Table, entries: Sequence[FileEntry]) -> DataFrame:
        """Some files of a table, with its ``date`` column; columns that a file lacks are null."""
        if not entries:
            return self.spark.createDataFrame([], table.spark)
        self.ledger.note_read(entries)
        return read_files(self.spark, table, self.lake.root, self.lake.paths(entries))

    def read_rollups(self, entries: Mapping[str, Sequence[FileEntry]]) -> DataFrame:
        """Some files of the roll-ups, by grain, in one scan; ``grain`` is the name of each row's."""
        files = [entry for of_grain in entries.values() for entry in of_grain]
        self.ledger.note_read(files)
        rows = self.spark.read.schema(GOLD_MINUTE.spark).parquet(*self.lake.paths(files))
        grain = F.regexp_extract(F.col("_metadata.file_path"), r"/gold/(\w+)/date=[^/]+/[^/]+$", 1)
        return rows.withColumn("grain", grain)

    def stage(self, rows: DataFrame, name: str, files: int | None = 1) -> str:
        """Write ``rows`` under ``date=`` folders, in ``files`` files per date (None: one per task)."""
        if files is not None:
            rows = rows.coalesce(1) if files == 1 else rows.repartition(files)
        rows.write.partitionBy("date").parquet(self.txn.target(name))
        return self.txn.folder(name)

    def staged(self, table: Table, name: str) -> DataFrame:
        """What ``stage`` wrote."""
        target = self.txn.target(name)
        return read_files(self.spark, table, target, [target], base=target)

    def take(self, parts: Iterable[Staged]) -> Counter[str]:
        """Make staged files part of the change; returns new rows by table."""
        rows: Counter[str] = Counter()
        for part in parts:
            taken = self.txn.take(part.table, part.folder, part.label)
            self.txn.drop(part.replaces)
            self.ledger.note_written(taken)
            rows[part.table.path] += sum(entry.rows for entry in taken)
        return rows


def read_files(
    spark: SparkSession, table: Table, root: str, paths: list[str], base: str | None = None
) -> DataFrame:
    """Parquet files of a table below ``root``, under its schema."""
    reader = spark.read.schema(table.spark).option("basePath", base or f"{root}/{table.path}")
    return reader.parquet(*paths).select(*table.names)


def files_for(rows: int) -> int:
    """In how many files so many rows should lie."""
    return max(-(-rows // ROWS_PER_FILE), 1)
