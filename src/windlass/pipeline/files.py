"""The location of a lake, and the Parquet files of its tables, for the driver and for tasks.

A lake is a folder or a URL that ``deltalake`` supports, such as ``s3://bucket/lake``. Python workers of Spark
use the same library, so that no Hadoop file system has to be set up. Credentials come from the driver's
environment, in the variables that other tools of the object store use, and are sent with the tasks. They
never appear in a message.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from windlass.core.ids import new_id
from windlass.errors import ConfigError
from windlass.pipeline.schemas import PARTITION, TABLES, TableSchema

if TYPE_CHECKING:
    import pyarrow as pa

#: Maximum number of rows in one file, and in one row group.
ROWS_PER_FILE = 1_000_000
_ROWS_PER_GROUP = 128_000
#: Maximum size in memory of one row group, in bytes: rows with arguments may be long.
_BYTES_PER_GROUP = 64 << 20
#: Bytes that are written to an object store at once.
_CHUNK_BYTES = 4 << 20
#: Files that one task writes in parallel.
_OPEN_FILES = 32
#: Columns whose values rarely repeat: a dictionary doubles their size and the time to write them.
_WITHOUT_DICTIONARY = {
    "run_id", "job_id", "last_run_id", "enqueued_ms", "ready_ms", "started_ms", "finished_ms",
    "first_ready_ms", "first_started_ms",
}  # fmt: skip
#: Prefixes of environment variables by the kind of object store.
_VARIABLES = {
    "s3": "AWS_",
    "s3a": "AWS_",
    "az": "AZURE_",
    "abfs": "AZURE_",
    "abfss": "AZURE_",
    "gs": "GOOGLE_",
}


@dataclass(frozen=True)
class Place:
    """The location of a lake, and how to access it."""

    url: str
    #: Settings of the object store, including secrets.
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def is_folder(self) -> bool:
        return "://" not in self.url

    def create_folder(self) -> None:
        """Create the folder of a new lake, for its user alone. An existing one keeps its mode."""
        if self.is_folder:
            Path(self.url).parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                Path(self.url).mkdir(mode=0o700)

    def table(self, table: TableSchema) -> str:
        """The URL of a table."""
        return f"{self.url}/{table.path}"

    def files(self, table: TableSchema) -> Any:
        """The files of a table as a pyarrow file system. Paths are those in its log."""
        from pyarrow import fs

        if self.is_folder:
            return fs.SubTreeFileSystem(self.table(table), fs.LocalFileSystem())
        from deltalake.fs import DeltaStorageHandler

        return fs.PyFileSystem(DeltaStorageHandler(self.table(table), dict(self.options)))

    def copy(self, entry: FileEntry, table: TableSchema) -> FileEntry:
        """Copy a file to another table with the same columns. In a folder this makes a hard link."""
        target = f"{entry.path.rpartition('/')[0]}/part-{new_id()}.parquet"
        if self.is_folder:
            _link(Path(self.url) / entry.table / entry.path, Path(self.url) / table.path / target)
        else:  # copy_file of deltalake 1.6 always fails
            source = self.files(TABLES[entry.table]).open_input_file(entry.path)
            with source, open_output(self.files(table), target) as stream:
                shutil.copyfileobj(source, stream, _CHUNK_BYTES)
        return msgspec.structs.replace(entry, path=target, table=table.path)

    def sync(self, paths: Iterable[str]) -> None:
        """Flush files to disk, so that they survive a power loss. Object stores need no call for this."""
        if self.is_folder:
            for path in paths:
                _sync(path)


def open_output(files: Any, path: str) -> Any:
    """Open a new file. The buffer passes on ``bytes``, the only type that deltalake's streams accept."""
    import pyarrow as pa

    files.create_dir(path.rpartition("/")[0], recursive=True)
    return pa.BufferedOutputStream(files.open_output_stream(path), 2 * _CHUNK_BYTES)


def place(text: str | os.PathLike[str]) -> Place:
    """Parse a folder or URL. Raises ``ConfigError`` if it contains a password."""
    text = os.fspath(text).rstrip("/") or "/"
    parts = urlsplit(text)
    if "://" not in text:
        return Place(str(Path(text).absolute()))
    if parts.username or parts.password:
        raise ConfigError(
            "lake", message="the URL of the lake contains a user or a password: give them in the environment"
        )
    if parts.scheme == "file":
        return Place(parts.path)
    prefix = _VARIABLES.get(parts.scheme)
    options = {
        name: value for name, value in os.environ.items() if prefix is not None and name.startswith(prefix)
    }
    if prefix == "AWS_":  # a second commit of the same version must fail
        options.setdefault("aws_conditional_put", "etag")
    return Place(text, options)


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:  # the file system has no hard links
        shutil.copyfile(source, target)


def _sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class FileEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A data file. ``path`` is relative to its table's folder; ``ranges``: bounds of values by column."""

    path: str
    table: str
    date: str
    rows: int
    bytes: int
    ranges: dict[str, tuple[Any, Any]] = {}

    def overlaps(self, column: str, low: Any, high: Any) -> bool:
        """Whether the file may hold a value from ``low`` to ``high``. True if the range is unknown."""
        found = self.ranges.get(column)
        return found is None or (found[0] <= high and found[1] >= low)

    def holds_only(self, source: str, batch: int) -> bool:
        """Whether all rows are known to be from one batch."""
        found = self.ranges.get("source"), self.ranges.get("batch")
        return found == ((source, source), (batch, batch))

    @property
    def statistics(self) -> str:
        """The ranges as JSON in the form of Delta's log."""
        low = {name: span[0] for name, span in self.ranges.items()}
        high = {name: span[1] for name, span in self.ranges.items()}
        return json.dumps({"numRecords": self.rows, "minValues": low, "maxValues": high, "nullCount": {}})


# --- writing ----------------------------------------------------------------------------------------------


class TableWriter:
    """Writes rows as new files of a table, by date. Readers see them only after a commit.

    ``parted``: also split by the parts of a day that the table defines.
    """

    def __init__(
        self, where: Place, table: TableSchema, *, parted: bool = True, rows_per_file: int = ROWS_PER_FILE
    ) -> None:
        import pyarrow as pa

        self.table = table
        self._chunk_ms = table.chunk_ms if parted else None
        self._rows_per_file = rows_per_file
        self._files = where.files(table)
        self._schema = pa.schema([table.arrow.field(name) for name in table.stored])
        self._open: dict[Any, _File] = {}
        self._done: list[FileEntry] = []

    def write(self, rows: pa.Table) -> None:
        """Add rows that have all columns of the table, including ``date``. Other columns are dropped."""
        import pyarrow as pa
        import pyarrow.compute as pc

        kept = rows.select(self.table.stored).cast(self._schema)
        days = place = rows.column(PARTITION)
        if self._chunk_ms is not None:  # the key combines the day and the part of the day
            part = pc.divide(rows.column(self.table.ranged[0]), self._chunk_ms)
            place = pc.add(pc.multiply(pc.cast(pc.cast(days, pa.int32()), pa.int64()), 10**9), part)
        found = pc.unique(place)
        for value in found:
            chosen = pc.equal(place, value)
            part, day = (kept, days) if len(found) == 1 else (kept.filter(chosen), days.filter(chosen))
            file = self._file(value, day[0])
            file.add(part)
            if file.rows >= self._rows_per_file:
                self._close(value)

    def close(self) -> list[FileEntry]:
        """Close all files and return their entries."""
        for key in list(self._open):
            self._close(key)
        return self._done

    def _file(self, key: Any, day: Any) -> _File:
        if key not in self._open:
            if len(self._open) >= _OPEN_FILES:
                self._close(next(iter(self._open)))
            self._open[key] = _File(self._files, str(day), self._schema)
        return self._open[key]

    def _close(self, key: Any) -> None:
        file = self._open.pop(key)
        size, footer = file.close()
        ranges = footer_ranges(footer, self.table.ranged)
        self._done.append(FileEntry(file.path, self.table.path, file.day, footer.num_rows, size, ranges))


class _File:
    """One Parquet file being written, in row groups of suitable size."""

    def __init__(self, files: Any, day: str, schema: pa.Schema) -> None:
        import pyarrow.parquet as pq

        self.day = day
        self.path = f"{PARTITION}={day}/part-{new_id()}.parquet"
        self.rows = 0
        self._waiting: list[pa.Table] = []
        self._waits = self._bytes = 0
        self._footers: list[Any] = []
        self._stream = open_output(files, self.path)
        self._writer = pq.ParquetWriter(
            self._stream,
            schema,
            compression="zstd",
            use_dictionary=[leaf for column in schema for leaf in _with_dictionary(column)],
            metadata_collector=self._footers,
        )

    def add(self, rows: pa.Table) -> None:
        self._waiting.append(rows)
        self._waits += rows.num_rows
        self._bytes += rows.nbytes
        self.rows += rows.num_rows
        if self._waits >= _ROWS_PER_GROUP or self._bytes >= _BYTES_PER_GROUP:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        if self._waits:
            self._writer.write_table(pa.concat_tables(self._waiting))
        self._waiting, self._waits, self._bytes = [], 0, 0

    def close(self) -> tuple[int, Any]:
        """Finish the file; returns its size and its footer."""
        self._flush()
        self._writer.close()
        size = self._stream.tell()
        self._stream.close()
        return size, self._footers[0]


def _with_dictionary(column: pa.Field) -> Iterator[str]:
    """The Parquet paths of a column that are written with a dictionary. Lists have an element path."""
    if column.name not in _WITHOUT_DICTIONARY:
        yield from _leaves(column.name, column.type)


def _leaves(path: str, kind: pa.DataType) -> Iterator[str]:
    import pyarrow as pa

    if pa.types.is_list(kind):
        yield from _leaves(f"{path}.list.element", kind.value_type)
    elif pa.types.is_struct(kind):
        for item in kind:
            yield from _leaves(f"{path}.{item.name}", item.type)
    else:
        yield path


def footer_ranges(footer: Any, names: Sequence[str]) -> dict[str, tuple[Any, Any]]:
    """The smallest and largest value of some columns, from a file's footer."""
    ranges = {}
    for at in range(footer.num_columns):
        name = footer.schema.column(at).path
        if name in names:
            parts = [footer.row_group(group).column(at).statistics for group in range(footer.num_row_groups)]
            if parts and all(part is not None and part.has_min_max for part in parts):
                ranges[name] = (min(part.min for part in parts), max(part.max for part in parts))
    return ranges


#: The schema in which a task returns file entries to the driver.
ENTRY_COLUMNS = "entry binary"


def pack_entries(entries: Iterable[FileEntry]) -> pa.RecordBatch:
    import pyarrow as pa

    packed = [msgspec.msgpack.encode(entry) for entry in entries]
    return pa.RecordBatch.from_arrays([pa.array(packed, pa.binary())], ["entry"])


def unpack_entries(rows: Iterable[Any]) -> list[FileEntry]:
    return [msgspec.msgpack.decode(bytes(row["entry"]), type=FileEntry) for row in rows]


# --- reading ----------------------------------------------------------------------------------------------


def read_entries(
    where: Place, entries: Sequence[FileEntry], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The rows of some files of one table, with these columns. Columns that a file lacks are null.

    ``date`` comes from the file's path.
    """
    import pyarrow as pa
    import pyarrow.dataset as ds

    if not entries:
        return
    table = TABLES[entries[0].table]
    schema = pa.schema([item.with_nullable(True) for item in table.arrow])
    days = ds.partitioning(pa.schema([schema.field(PARTITION)]), flavor="hive")
    paths = [entry.path for entry in entries]
    rows = ds.dataset(
        paths, schema=schema, format="parquet", filesystem=where.files(table), partitioning=days
    )
    yield from rows.to_batches(
        columns=list(columns),
        batch_size=_ROWS_PER_GROUP,
        batch_readahead=1,
        fragment_readahead=1,
        use_threads=False,
    )
