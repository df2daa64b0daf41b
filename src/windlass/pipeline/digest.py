"""Digests: the summary of attempts that a task returns to the driver.

A digest holds the attempts' rows for every gold table, and a 64-bit hash of each attempt and each job, which
is used to find duplicates. It is built while the rows are in memory, from the log or from files, so that no
step reads them again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from windlass.errors import ConfigError
from windlass.pipeline import schemas
from windlass.pipeline.transforms import gold_rows
from windlass.pipeline.transforms.sql import ask, day, engine

if TYPE_CHECKING:
    import pyarrow as pa
    from duckdb import DuckDBPyConnection

#: Rows that are digested together. This bounds the memory of a task.
_ROWS = 250_000
#: The columns of an attempt that a digest uses.
COLUMNS = (
    "source", "queue", "task", "run_id", "job_id", "worker", "outcome", "enqueued_ms", "ready_ms",
    "started_ms", "finished_ms", "wait_ms", "duration_ms", "error_class", "error_fingerprint",
    "error_message", *(f"{cause}_ms" for cause in schemas.CAUSES), "date",
)  # fmt: skip
#: SQL for the 64-bit hash of an attempt, and of a job. Hashes may collide.
RUN_HASH = "hash(source, run_id)"
JOB_HASH = "hash(source, queue, job_id, enqueued_ms)"


class Part(msgspec.Struct, frozen=True):
    """Rows of one gold table and date as an Arrow stream, with the range of the table's ranged time."""

    table: str
    date: str
    low: int
    high: int
    body: bytes


class Digest(msgspec.Struct, frozen=True):
    """A summary of some attempts."""

    #: The version of DuckDB: other versions may compute other hashes.
    engine: str
    runs: bytes = b""
    jobs: bytes = b""
    #: The days on which their jobs were added, each with the smallest and largest time.
    added: dict[str, tuple[int, int]] = {}
    parts: list[Part] = []


class Digester:
    """Builds a digest from rows that arrive in pieces."""

    def __init__(self) -> None:
        self._waiting: list[pa.Table] = []
        self._waits = 0
        self._done: list[Digest] = []

    def add(self, rows: pa.Table) -> None:
        self._waiting.append(rows.select(COLUMNS))
        self._waits += rows.num_rows
        if self._waits >= _ROWS:
            self._flush()

    def close(self) -> Digest:
        self._flush()
        return joined(self._done)

    def _flush(self) -> None:
        import pyarrow as pa

        if self._waits:
            self._done.append(digest(pa.concat_tables(self._waiting)))
        self._waiting, self._waits = [], 0


def digest(attempts: pa.Table) -> Digest:
    """The digest of attempts that have at least ``COLUMNS``."""
    with engine(attempts=attempts) as connection:
        added = added_days(connection)
        runs, jobs = (hash_column(connection, sql) for sql in (RUN_HASH, JOB_HASH))
        found = gold_rows.attempt_rows(connection, attempts, schemas.GOLD)
    parts = [
        part for table, rows in zip(schemas.GOLD, found, strict=True) for part in gold_parts(table, rows)
    ]
    return Digest(_release(), runs, jobs, added, parts)


def job_digest(jobs: pa.Table) -> Digest:
    """The digest of rows that have the key columns of jobs, and the times at which these were added."""
    with engine(attempts=jobs) as connection:
        return Digest(_release(), b"", hash_column(connection, JOB_HASH), added_days(connection))


def added_days(connection: DuckDBPyConnection) -> dict[str, tuple[int, int]]:
    days = ask(
        connection,
        f"SELECT {day('enqueued_ms')}::VARCHAR AS date, min(enqueued_ms), max(enqueued_ms) "
        "FROM attempts GROUP BY 1",
    )
    return {at: (low, high) for at, low, high in zip(*(c.to_pylist() for c in days.columns), strict=True)}


def joined(digests: Sequence[Digest]) -> Digest:
    """Combine digests. Raises ``ConfigError`` if machines with different versions of DuckDB made them."""
    release = _release()
    if any(one.engine != release for one in digests):
        raise ConfigError(
            "duckdb",
            message=f"the driver has DuckDB {release}, but an executor has another release: install the same "
            "one everywhere",
        )
    added: dict[str, tuple[int, int]] = {}
    for one in digests:
        for at, (low, high) in one.added.items():
            before = added.get(at, (low, high))
            added[at] = min(before[0], low), max(before[1], high)
    return Digest(
        release,
        b"".join(one.runs for one in digests),
        b"".join(one.jobs for one in digests),
        added,
        [part for one in digests for part in one.parts],
    )


def hashes(body: bytes) -> Any:
    """The hashes of a digest as an array."""
    import numpy as np

    return np.frombuffer(body, np.uint64)


def rows_of(parts: Iterable[Part]) -> list[pa.Table]:
    """The rows in parts of the same table."""
    import pyarrow as pa

    return [pa.ipc.open_stream(part.body).read_all() for part in parts]


def _release() -> str:
    import duckdb

    return str(duckdb.__version__)


def hash_column(connection: DuckDBPyConnection, sql: str) -> bytes:
    column = ask(connection, f"SELECT {sql} AS hash FROM attempts").column("hash")
    return b"".join(chunk.to_numpy(zero_copy_only=False).tobytes() for chunk in column.chunks)


def gold_parts(table: schemas.TableSchema, rows: pa.Table) -> Iterable[Part]:
    import pyarrow as pa
    import pyarrow.compute as pc

    for at in pc.unique(rows.column(schemas.PARTITION)):
        own = rows.filter(pc.equal(rows.column(schemas.PARTITION), at))
        span = pc.min_max(own.column(table.ranged[0])).as_py()
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_stream(sink, own.schema, options=options) as stream:
            stream.write_table(own)
        yield Part(table.path, str(at), span["min"], span["max"], sink.getvalue().to_pybytes())
