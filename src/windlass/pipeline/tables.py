"""Reading and writing tables of a lake with Spark, and counting what that touches.

Tasks write Parquet files and hand their names, sizes and ranges to the driver, which commits them. A task
that Spark runs again writes other files; only those of the run that Spark took reach the driver, and what
the others left is swept by ``vacuum``.

Test points in tasks: ``task.written``, after the files and before the driver knows of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from windlass.core.probe import reach
from windlass.pipeline.files import (
    ENTRY_COLUMNS,
    ROWS_PER_FILE,
    FileEntry,
    Place,
    pack_entries,
    read_entries,
    unpack_entries,
    write_rows,
)
from windlass.pipeline.lake import Lake
from windlass.pipeline.schemas import Table

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

Batches = Iterator["pa.RecordBatch"]


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
        return {
            side: {table: dict(vars(traffic)) for table, traffic in sorted(tables.items())}
            for side, tables in (("read", self.read), ("written", self.written))
        }


def _note(side: dict[str, Traffic], entries: Iterable[FileEntry]) -> None:
    for entry in entries:
        side.setdefault(entry.table, Traffic()).count([entry])


class Workbench:
    """A session, a lake and a change under way."""

    def __init__(self, spark: SparkSession, lake: Lake) -> None:
        self.spark = spark
        self.lake = lake
        self.ledger = Ledger()

    def read(self, table: Table, entries: Sequence[FileEntry], *more: str) -> DataFrame:
        """Some files of a table, with its ``date`` column, and ``file`` if asked for."""
        self.ledger.note_read(entries)
        return read_files(self.spark, self.lake, table, entries, *more)

    def read_rollups(
        self, entries: Mapping[str, Sequence[FileEntry]], tables: Mapping[str, Table]
    ) -> DataFrame:
        """Some files of the roll-ups, by grain, as one frame; ``grain`` is the name of each row's."""
        parts = [
            self.read(tables[grain], of_grain).withColumn("grain", F.lit(grain))
            for grain, of_grain in entries.items()
            if of_grain
        ]
        return reduce(DataFrame.unionByName, parts)

    def write(self, rows: DataFrame, table: Table, files: int | None = 1) -> list[FileEntry]:
        """Write ``rows``, in ``files`` files per date (None: one per task)."""
        if files is not None:
            rows = rows.coalesce(1) if files == 1 else rows.repartition(files)
        return self.write_each(rows.select(*table.names), {table.path: table})

    def write_each(self, rows: DataFrame, tables: Mapping[str, Table]) -> list[FileEntry]:
        """Write rows of several tables, separated by ``grain``, as they are spread over tasks."""
        return self.gather(rows.mapInArrow(_writer(self.lake.place, dict(tables)), ENTRY_COLUMNS))

    def run_tasks(self, count: int, work: Callable[[int], Iterator[pa.RecordBatch]]) -> list[FileEntry]:
        """``count`` tasks that write files by themselves; ``work`` is given each one's number."""
        numbers = self.spark.range(0, count, 1, count)
        return self.gather(numbers.mapInArrow(_numbered(work), ENTRY_COLUMNS))

    def gather(self, packed: DataFrame) -> list[FileEntry]:
        written = sorted(unpack_entries(packed.collect()), key=lambda entry: (entry.date, entry.path))
        self.ledger.note_written(written)
        return written


def _writer(where: Place, tables: dict[str, Table]) -> Callable[[Batches], Batches]:
    def write(batches: Batches) -> Batches:
        written = write_rows(where, tables, batches)
        reach("task.written")
        yield pack_entries(written)

    return write


def _numbered(work: Callable[[int], Iterator[pa.RecordBatch]]) -> Callable[[Batches], Batches]:
    def run(batches: Batches) -> Batches:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from work(number)

    return run


# --- reading ----------------------------------------------------------------------------------------------


def read_files(
    spark: SparkSession, lake: Lake, table: Table, entries: Sequence[FileEntry], *more: str
) -> DataFrame:
    """Files of a table under its schema; columns that a file lacks are null.

    Spark reads folders by itself. Its wheel knows no object store, so elsewhere Python workers read.
    """
    names = [*table.names, *more]
    if not entries:
        return spark.createDataFrame([], _with_file(table, more))
    if lake.place.is_folder:
        reader = spark.read.schema(table.spark).option("basePath", lake.place.table(table))
        rows = reader.parquet(*lake.uris(entries))
        return rows.select(*table.names, *(F.col("_metadata.file_name").alias(name) for name in more))
    tasks = min(len(entries), 4 * spark.sparkContext.defaultParallelism)
    groups = [list(entries[at::tasks]) for at in range(tasks)]
    numbers = spark.range(0, tasks, 1, tasks)
    return numbers.mapInArrow(_reader(lake.place, groups, names), _with_file(table, more))


def _with_file(table: Table, more: Sequence[str]) -> StructType:
    from pyspark.sql.types import StringType, StructField, StructType

    fields: list[Any] = [*table.spark.fields, *(StructField(name, StringType()) for name in more)]
    return StructType(fields)


def _reader(where: Place, groups: list[list[FileEntry]], names: list[str]) -> Callable[[Batches], Batches]:
    def read(number: int) -> Batches:
        return read_entries(where, groups[number], names)

    return _numbered(read)


def files_for(rows: int) -> int:
    """How many files that many rows should fill."""
    return max(-(-rows // ROWS_PER_FILE), 1)
