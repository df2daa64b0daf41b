"""The Spark tasks of the pipeline: callables that read and write files of a lake on any executor.

Rows stay in Arrow and never pass through the JVM.

Test points: ``task.read``, after each piece of a log; ``task.written``, after files are written and before
the driver knows of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from windlass.core.job import JobRecord
from windlass.core.probe import reach
from windlass.core.states import FINISHED, JobState
from windlass.pipeline import schemas
from windlass.pipeline.digest import (
    COLUMNS,
    JOB_HASH,
    RUN_HASH,
    Digest,
    Digester,
    Part,
    job_digest,
    joined,
    rows_of,
)
from windlass.pipeline.files import FileEntry, Place, TableWriter, read_entries
from windlass.pipeline.hashes import job_hash
from windlass.pipeline.payloads import Payloads
from windlass.pipeline.source import HistoryRange, JobsOf, list_jobs, read_range
from windlass.pipeline.store_requests import ask_many
from windlass.pipeline.transforms import gold_rows, job_rows
from windlass.pipeline.transforms.attempts import as_bronze, days_of
from windlass.pipeline.transforms.snapshots import snapshot_rows
from windlass.pipeline.transforms.sql import ask, engine

if TYPE_CHECKING:
    import pyarrow as pa

#: The source and number of a batch.
BatchId = tuple[str, int]


@dataclass(frozen=True)
class CopyLog:
    """Copy ranges of a log to bronze, and digest them."""

    where: Place
    url: str = field(repr=False)
    batch: BatchId
    ranges: Sequence[HistoryRange]
    #: Which arguments and results to keep; None: none.
    payloads: Payloads | None = None

    def __call__(self) -> tuple[list[FileEntry], Digest]:
        writer, digester = TableWriter(self.where, schemas.BRONZE_ATTEMPTS), Digester()
        for records in self._records():
            rows = as_bronze(records, *self.batch)
            writer.write(rows)
            digester.add(rows)
            reach("task.read")
        written = writer.close()
        reach("task.written")
        return written, digester.close()

    def _records(self) -> Iterator[pa.RecordBatch | pa.Table]:
        found = (records for wanted in self.ranges for records in read_range(self.url, wanted))
        if self.payloads is None:
            yield from found
            return
        with ask_many(self.url) as ask_store:
            for records in found:
                yield from self.payloads.of_attempts(ask_store, records)


@dataclass(frozen=True)
class AddPayloads:
    """Rewrite a file of bronze, with arguments and results that its rows of a source lacked.

    Returns the same file if the store has none of them. ``vacuum`` then deletes the new file.
    """

    where: Place
    url: str = field(repr=False)
    source: str
    entry: FileEntry
    payloads: Payloads

    def __call__(self) -> list[FileEntry]:
        import pyarrow as pa

        writer, found = TableWriter(self.where, schemas.BRONZE_ATTEMPTS), 0
        with ask_many(self.url) as ask_store:
            for batch in read_entries(self.where, [self.entry], schemas.BRONZE_ATTEMPTS.names):
                rows = pa.Table.from_batches([batch])
                found += rows.column("args_bytes").null_count
                for piece in self.payloads.of_bronze(ask_store, rows, self.source):
                    found -= piece.column("args_bytes").null_count
                    writer.write(piece)
        written = writer.close()
        reach("task.written")
        return written if found else [self.entry]


@dataclass(frozen=True)
class DaysWithPayloads:
    """The days on which those jobs were added whose arguments a file of attempts holds."""

    where: Place
    entry: FileEntry

    def __call__(self) -> set[str]:
        import pyarrow.compute as pc

        days: set[str] = set()
        for rows in read_entries(self.where, [self.entry], ["enqueued_ms", "args_bytes"]):
            added = rows.column("enqueued_ms").filter(pc.is_valid(rows.column("args_bytes")))
            days.update(str(day) for day in pc.unique(days_of(added)))
        return days


@dataclass(frozen=True)
class DigestFiles:
    """Digest files of attempts; with ``batch``, only the rows of this batch."""

    where: Place
    entries: Sequence[FileEntry]
    batch: BatchId | None = None

    def __call__(self) -> Digest:
        digester = Digester()
        for rows in _attempts(self.where, self.entries, COLUMNS, self.batch):
            digester.add(rows)
        return digester.close()


@dataclass(frozen=True)
class HashFile:
    """The hashes of a file's attempts (``RUN_HASH``) or jobs (``JOB_HASH``).

    ``only``: SQL that selects the rows. For jobs, it may use the column ``final``.
    """

    where: Place
    entry: FileEntry
    sql: str
    only: str = "true"

    def __call__(self) -> Any:
        names = ["source", "run_id"] if self.sql == RUN_HASH else [*schemas.SILVER_JOBS.keys, "final"]
        with engine(rows=_table(self.where, [self.entry], names)) as connection:
            found = ask(connection, f"SELECT {self.sql} AS hash FROM rows WHERE {self.only}")
            return found.column("hash").to_numpy()


@dataclass(frozen=True)
class MergeGold:
    """Merge new rows of a gold table and date with those of the files that they touch."""

    where: Place
    table: schemas.TableSchema
    parts: Sequence[Part]
    stored: Sequence[FileEntry]

    def __call__(self) -> list[FileEntry]:
        import pyarrow as pa

        old = [_table(self.where, self.stored, self.table.names)] if self.stored else []
        rows = pa.concat_tables([*rows_of(self.parts), *(rows.cast(self.table.arrow) for rows in old)])
        return _written(self.where, self.table, [gold_rows.merged_rows(self.table, rows)])


@dataclass(frozen=True)
class WriteJobs:
    """Write a row for each attempt in some files, except for jobs in ``several``, which have more rows."""

    where: Place
    entries: Sequence[FileEntry]
    batch: BatchId
    several: Any

    def __call__(self) -> list[FileEntry]:
        found = _attempts(self.where, self.entries, job_rows.PART_COLUMNS, self.batch)
        rows = (job_rows.job_parts(_by_hash(piece, self.several, "NOT IN")) for piece in found)
        return _written(self.where, schemas.SILVER_JOBS, rows)


@dataclass(frozen=True)
class MergeJobs:
    """Merge rows of jobs that have several, together with all rows of the stored files that it replaces.

    ``several`` None: merge all jobs. ``shard`` of ``shards`` selects jobs by their hash.
    """

    where: Place
    entries: Sequence[FileEntry]
    batch: BatchId
    several: Any
    stored: Sequence[FileEntry] = ()
    shard: int = 0
    shards: int = 1

    def __call__(self) -> list[FileEntry]:
        import pyarrow as pa

        found = _attempts(self.where, self.entries, job_rows.PART_COLUMNS, self.batch)
        mine = [job_rows.job_parts(self._of_shard(_by_hash(piece, self.several, "IN"))) for piece in found]
        alone = []
        if self.stored:
            old = self._of_shard(_table(self.where, self.stored, schemas.SILVER_JOBS.names))
            mine.append(_by_hash(old, self.several, "IN").cast(schemas.SILVER_JOBS.arrow))
            if self.several is not None:
                alone = [_by_hash(old, self.several, "NOT IN")]
        return _written(
            self.where, schemas.SILVER_JOBS, [*alone, job_rows.merged_jobs(pa.concat_tables(mine))]
        )

    def _of_shard(self, rows: pa.Table) -> pa.Table:
        return _of_shard(rows, self.shard, self.shards)


@dataclass(frozen=True)
class SnapshotJobs:
    """List the jobs of some queues and states, and write rows for them, except for jobs in ``erased``.

    Returns the files, and digests of the jobs that are alive and of those that have ended.
    """

    where: Place
    url: str = field(repr=False)
    source: str
    seen_ms: int
    parts: Sequence[JobsOf]
    erased: frozenset[str] = frozenset()
    payloads: Payloads | None = None

    def __call__(self) -> tuple[list[FileEntry], Digest, Digest]:
        writer = TableWriter(self.where, schemas.SILVER_JOBS)
        alive: list[Digest] = []
        ended: list[Digest] = []
        for part in self.parts:
            for jobs_listed in list_jobs(self.url, part):
                kept = [job for job in jobs_listed if not self._is_erased(job)]
                if kept:
                    rows = snapshot_rows(kept, self.source, self.seen_ms, self.payloads)
                    writer.write(rows)
                    (ended if JobState(part.state) in FINISHED else alive).append(job_digest(rows))
        written = writer.close()
        reach("task.written")
        return written, joined(alive), joined(ended)

    def _is_erased(self, job: JobRecord) -> bool:
        return bool(self.erased) and (
            job_hash(self.source, job.queue, job.id, job.enqueued_ms) in self.erased
        )


@dataclass(frozen=True)
class MergeSnapshot:
    """Write all rows of stored files, which it replaces, merged with new rows of listed jobs.

    ``several``: jobs with more than one row, which become one. ``skipped``: jobs whose new row is not needed.
    ``shard`` of ``shards`` selects jobs by their hash.
    """

    where: Place
    listed: Sequence[FileEntry]
    stored: Sequence[FileEntry]
    several: Any
    skipped: Any
    shard: int = 0
    shards: int = 1

    def __call__(self) -> list[FileEntry]:
        import pyarrow as pa

        names, schema = schemas.SILVER_JOBS.names, schemas.SILVER_JOBS.arrow
        seen = _by_hash(_table(self.where, self.listed, names), self.skipped, "NOT IN")
        old = [_table(self.where, self.stored, names)] if self.stored else []
        rows = pa.concat_tables([part.cast(schema) for part in (*old, seen)])
        rows = _of_shard(rows, self.shard, self.shards)
        merged = job_rows.merged_jobs(_by_hash(rows, self.several, "IN"))
        return _written(self.where, schemas.SILVER_JOBS, [_by_hash(rows, self.several, "NOT IN"), merged])


def _of_shard(rows: pa.Table, shard: int, shards: int) -> pa.Table:
    """Rows of the jobs in one of several shards."""
    if shards == 1:
        return rows
    with engine(rows=rows) as connection:
        return ask(connection, f"FROM rows WHERE {JOB_HASH} % {shards} = {shard}").cast(rows.schema)


def _by_hash(rows: pa.Table, several: Any, which: str) -> pa.Table:
    """Rows whose job is ``IN`` or ``NOT IN`` ``several``; all of them if there is nothing to compare with."""
    import pyarrow as pa

    if several is None:
        return rows if which == "IN" else rows.slice(0, 0)
    if not len(several):
        return rows if which == "NOT IN" else rows.slice(0, 0)
    with engine(rows=rows, several=pa.table({"hash": several})) as connection:
        sql = f"FROM rows WHERE {JOB_HASH} {which} (SELECT hash FROM several)"
        return ask(connection, sql).cast(rows.schema)


def _attempts(
    where: Place, entries: Sequence[FileEntry], names: Sequence[str], batch: BatchId | None
) -> Iterator[pa.Table]:
    """Rows of attempts; with ``batch``, only those of this batch."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if batch is not None and all(entry.holds_only(*batch) for entry in entries):
        batch = None  # the files hold no other batch
    columns = [*names, *(name for name in ("source", "batch") if batch and name not in names)]
    for found in read_entries(where, entries, columns):
        rows = pa.Table.from_batches([found])
        if batch is not None:
            own = pc.and_(pc.equal(rows["source"], batch[0]), pc.equal(rows["batch"], batch[1]))
            rows = rows.filter(own)
        yield rows.select(names)


def _table(where: Place, entries: Sequence[FileEntry], names: Sequence[str]) -> pa.Table:
    import pyarrow as pa

    return pa.Table.from_batches(list(read_entries(where, entries, names)))


def _written(where: Place, table: schemas.TableSchema, pieces: Any) -> list[FileEntry]:
    writer = TableWriter(where, table)
    for rows in pieces:
        if rows.num_rows:
            writer.write(rows)
    written = writer.close()
    reach("task.written")
    return written
