"""Read and write tables of a lake with Spark, and count the files that this touches.

Tasks write Parquet files and return their names, sizes and ranges to the driver, which commits them. If Spark
runs a task again, it writes other files. The driver receives only those of the successful attempt, and
``vacuum`` deletes the rest.

Test points in tasks: ``task.written``, after the files and before the driver knows of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from pyspark.sql import DataFrame, SparkSession

from windlass.core.probe import reach
from windlass.pipeline.files import (
    ENTRY_COLUMNS,
    ROWS_PER_FILE,
    FileEntry,
    Place,
    TableWriter,
    pack_entries,
    read_entries,
    unpack_entries,
)
from windlass.pipeline.lake import Lake
from windlass.pipeline.schemas import TableSchema

if TYPE_CHECKING:
    import pyarrow as pa

Batches = Iterator["pa.RecordBatch"]
R = TypeVar("R")


class FileTraffic:
    """How many files, rows and bytes a change read and wrote, by table."""

    def __init__(self) -> None:
        self.read: dict[str, Counter[str]] = defaultdict(Counter)
        self.written: dict[str, Counter[str]] = defaultdict(Counter)

    def note_read(self, entries: Iterable[FileEntry]) -> None:
        _note(self.read, entries)

    def note_written(self, entries: Iterable[FileEntry]) -> None:
        _note(self.written, entries)

    def summary(self) -> dict[str, dict[str, dict[str, int]]]:
        return {
            side: {table: dict(counts) for table, counts in sorted(tables.items())}
            for side, tables in (("read", self.read), ("written", self.written))
        }


def _note(side: dict[str, Counter[str]], entries: Iterable[FileEntry]) -> None:
    for entry in entries:
        side[entry.table].update(files=1, rows=entry.rows, bytes=entry.bytes)


class Workbench:
    """A session, a lake, and counts of the files that one change reads and writes."""

    def __init__(self, spark: SparkSession, lake: Lake) -> None:
        self.spark = spark
        self.lake = lake
        self.traffic = FileTraffic()

    def read(self, table: TableSchema, entries: Sequence[FileEntry]) -> DataFrame:
        """Some files of a table, with its ``date`` column."""
        self.traffic.note_read(entries)
        return read_files(self.spark, self.lake, table, entries)

    def write(self, rows: DataFrame, table: TableSchema, files: int | None = 1) -> list[FileEntry]:
        """Write ``rows``, in ``files`` files per date (None: one per task)."""
        if files is not None:
            rows = rows.coalesce(1) if files == 1 else rows.repartition(files)
        packed = rows.select(*table.names).mapInArrow(_writer(self.lake.place, table), ENTRY_COLUMNS)
        written = sorted(unpack_entries(packed.collect()), key=_order)
        self.traffic.note_written(written)
        return written

    def run(self, tasks: Sequence[Callable[[], R]]) -> list[R]:
        """Run tasks with Spark and return their results. A few small tasks run as one."""
        if not tasks:
            return []
        return self.spark.sparkContext.parallelize(tasks, len(tasks)).map(_call).collect()

    def run_writers(self, tasks: Sequence[Callable[[], list[FileEntry]]]) -> list[FileEntry]:
        """Run tasks that write files, and return the files."""
        written = sorted((entry for entries in self.run(tasks) for entry in entries), key=_order)
        self.traffic.note_written(written)
        return written


def _call(task: Callable[[], R]) -> R:
    return task()


def _order(entry: FileEntry) -> tuple[str, str]:
    return entry.date, entry.path


def _writer(where: Place, table: TableSchema) -> Callable[[Batches], Batches]:
    def write(batches: Batches) -> Batches:
        import pyarrow as pa

        writer = TableWriter(where, table)
        for batch in batches:
            writer.write(pa.Table.from_batches([batch]))
        written = writer.close()
        reach("task.written")
        yield pack_entries(written)

    return write


# --- reading ----------------------------------------------------------------------------------------------


def read_files(
    spark: SparkSession, lake: Lake, table: TableSchema, entries: Sequence[FileEntry]
) -> DataFrame:
    """Files of a table with its schema. Columns that a file lacks are null.

    Spark reads local folders directly. Its wheel supports no object store, so Python workers read those.
    """
    if not entries:
        return spark.createDataFrame([], table.spark)
    if lake.place.is_folder:
        reader = spark.read.schema(table.spark).option("basePath", lake.place.table(table))
        return reader.parquet(*lake.uris(entries)).select(*table.names)
    tasks = min(len(entries), 4 * spark.sparkContext.defaultParallelism)
    groups = [list(entries[at::tasks]) for at in range(tasks)]
    numbers = spark.range(0, tasks, 1, tasks)
    return numbers.mapInArrow(_reader(lake.place, groups, table.names), table.spark)


def _reader(where: Place, groups: list[list[FileEntry]], names: list[str]) -> Callable[[Batches], Batches]:
    def read(batches: Batches) -> Batches:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from read_entries(where, groups[number], names)

    return read


def files_for(rows: int) -> int:
    """How many files to use for this number of rows."""
    return max(-(-rows // ROWS_PER_FILE), 1)
