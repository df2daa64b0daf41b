"""Every table of the pipeline: the only place that defines names and types of columns.

A column is a name and one of a few type words. The Spark and Arrow schemas are built from them, and Delta's
from Arrow's. Columns are only ever appended, and ``SCHEMA_VERSION`` increases with them. Files that were
written before have null there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from windlass.pipeline.histogram import PERCENTILES

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

#: Incremented when a table gets a column.
SCHEMA_VERSION = 5
#: The partition column of every table: a UTC day.
PARTITION = "date"
#: How attempts end, as columns of roll-ups: outcome -> column.
OUTCOME_COLUMNS = {
    "completed": "completed",
    "failed": "failed",
    "retrying": "retried",
    "cancelled": "cancelled",
    "snoozed": "snoozed",
    "released": "released",
    "stalled": "stalled",
    "expired": "expired",
}
#: Outcomes after which a job does not run again (unless a user retries it).
FINAL_OUTCOMES = ("completed", "failed", "cancelled", "expired")
#: Measures that have a histogram in roll-ups.
MEASURES = ("wait", "duration")
#: Causes of queue time. The columns of an attempt are ``..._ms``, those of roll-ups ``..._sum_ms``. Null in
#: records of releases that did not measure it.
CAUSES = ("scheduled", "parked", "blocked", "in_line")
GRAINS = ("minute", "hour", "day")
_HOUR_MS = 3_600_000


class ColumnSpec(NamedTuple):
    """A column. ``kind``: text, int, long, double, bool, date, texts, histogram."""

    name: str
    kind: str
    nullable: bool = True


@dataclass(frozen=True)
class TableSchema:
    """A table of the lake. ``path`` is below the lake's root; ``keys`` are unique; ``date`` partitions it."""

    path: str
    columns: tuple[ColumnSpec, ...]
    keys: tuple[str, ...] = ()
    #: Columns whose range every commit records for each file: times, and the columns that identify a batch.
    #: Never a column that could identify a person, since the log outlives the file.
    ranged: tuple[str, ...] = ()
    #: Rows of one file lie within this many milliseconds of each other, by the first ranged column. So a
    #: batch that adds to the last hour of a day rewrites only the files of that hour.
    chunk_ms: int | None = None

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    @property
    def stored(self) -> list[str]:
        """The columns that are in files: all except the partition column."""
        return [column.name for column in self.columns if column.name != PARTITION]

    @cached_property
    def spark(self) -> StructType:
        from pyspark.sql.types import StructField, StructType

        return StructType([StructField(c.name, _spark_types()[c.kind](), c.nullable) for c in self.columns])

    @cached_property
    def arrow(self) -> pa.Schema:
        import pyarrow as pa

        return pa.schema([pa.field(c.name, _arrow_type(c.kind), c.nullable) for c in self.columns])


def _spark_types() -> dict[str, Callable[[], DataType]]:
    from pyspark.sql import types as T

    entry = T.StructType(
        [T.StructField("bucket", T.IntegerType(), False), T.StructField("count", T.LongType(), False)]
    )
    return {
        "text": T.StringType,
        "int": T.IntegerType,
        "long": T.LongType,
        "double": T.DoubleType,
        "bool": T.BooleanType,
        "date": T.DateType,
        "bytes": T.BinaryType,
        "texts": lambda: T.ArrayType(T.StringType(), True),
        "histogram": lambda: T.ArrayType(entry, False),
    }


def _arrow_type(kind: str) -> pa.DataType:
    import pyarrow as pa

    match kind:
        case "texts":
            return pa.list_(pa.string())
        case "histogram":
            entry = [pa.field("bucket", pa.int32(), False), pa.field("count", pa.int64(), False)]
            return pa.list_(pa.field("element", pa.struct(entry), False))
        case "bytes":
            return pa.binary()
    plain = {
        "text": pa.string(),
        "int": pa.int32(),
        "long": pa.int64(),
        "double": pa.float64(),
        "bool": pa.bool_(),
        "date": pa.date32(),
    }
    return plain[kind]


def _columns(text: str) -> tuple[ColumnSpec, ...]:
    """Parse columns from ``name:kind`` words. A trailing ``!`` means never null."""
    found = []
    for word in text.split():
        name, _, kind = word.partition(":")
        found.append(ColumnSpec(name, kind.rstrip("!"), not kind.endswith("!")))
    return tuple(found)


_ATTEMPT = (
    """
    run_id:text! job_id:text! attempt:int! delivery:int! queue:text! task:text! group:text tags:texts
    worker:text enqueued_ms:long! ready_ms:long! started_ms:long finished_ms:long! wait_ms:long
    duration_ms:long outcome:text! error_class:text error_fingerprint:text schema_version:int!
    max_attempts:int worker_version:text worker_host:text error_message:text priority:int schedule:text
    slot_ms:long parent:text root:text cost:int
    """
    + " ".join(f"{cause}_ms:long" for cause in CAUSES)
    + " "
)
#: Of the job, as its store held it when the attempt was read. Null unless the run keeps payloads.
_PAYLOADS = "args:text args_bytes:long result:text result_bytes:long "
PAYLOADS = tuple(column.name for column in _columns(_PAYLOADS))
_COUNTS = "attempts:long! " + " ".join(f"{name}:long!" for name in OUTCOME_COLUMNS.values())
_MEASURE_COLUMNS = " ".join(
    f"{m}_count:long! {m}_sum_ms:long! {m}_max_ms:long {m}_hist:histogram! {m}_avg_ms:double "
    + " ".join(f"{m}_{name}_ms:double" for name in PERCENTILES)
    for m in MEASURES
)
_CAUSE_COLUMNS = " ".join(f"{cause}_sum_ms:long" for cause in CAUSES)

#: What ``format("windlass")`` reads from a history log: one attempt per row.
HISTORY = TableSchema("history", _columns(_ATTEMPT), ("run_id",))

#: What ``format("windlass")`` reads with ``table=jobs``: the current records.
JOBS = TableSchema(
    "jobs",
    _columns(
        """
        queue:text! job_id:text! task:text! state:text! priority:int! tags:texts attempts:int! deliveries:int!
        enqueued_ms:long! ready_ms:long! due_ms:long started_ms:long finished_ms:long worker:text reason:text
        error_class:text error_message:text error_fingerprint:text codec:text! payload:bytes! result:bytes
        """
    ),
    ("queue", "job_id"),
)

BRONZE_ATTEMPTS = TableSchema(
    "bronze/attempts",
    _columns(_ATTEMPT + _PAYLOADS + "source:text! batch:long! date:date!"),
    ranged=("finished_ms", "enqueued_ms", "source", "batch"),
)

#: Records that were trimmed from a log before they were read, if the run was allowed to skip them.
BRONZE_GAPS = TableSchema(
    "bronze/gaps",
    _columns(
        """
        source:text! queue:text! after:long! until:long! seen_ms:long! schema_version:int! batch:long!
        date:date!
        """
    ),
    ranged=("seen_ms",),
)

#: ``batch`` is the batch of bronze that added the attempt; 0 in rows of a migrated lake.
SILVER_ATTEMPTS = TableSchema(
    "silver/attempts",
    _columns(_ATTEMPT + _PAYLOADS + "source:text! batch:long date:date!"),
    ("source", "run_id"),
    ranged=("finished_ms", "enqueued_ms", "ready_ms", "source", "batch"),
)

#: Attempts that were erased: the columns that roll-ups count, and none that names a job. ``run_id`` is a
#: hash that recognises a record that is read again.
SILVER_ERASED = TableSchema(
    "silver/erased",
    _columns(_ATTEMPT + "source:text! batch:long erased_ms:long! date:date!"),
    ("source", "run_id"),
    ranged=("finished_ms", "enqueued_ms", "ready_ms", "source"),
)

#: Hashes of jobs that were erased. A snapshot does not add them again.
SILVER_ERASED_JOBS = TableSchema(
    "silver/erased_jobs",
    _columns("source:text! job_hash:text! erased_ms:long! schema_version:int! date:date!"),
    ("source", "job_hash"),
    ranged=("erased_ms",),
)

#: One row per job that has a record in the log or was seen in its store; ``date`` is the day it was added.
#: ``state``, ``due_ms``: as of the newest record or snapshot; ``seen_ms``: when a snapshot last saw it.
SILVER_JOBS = TableSchema(
    "silver/jobs",
    _columns(
        """
        source:text! queue:text! job_id:text! enqueued_ms:long! task:text! group:text tags:texts records:long!
        attempts:int! deliveries:int! first_ready_ms:long first_started_ms:long finished_ms:long
        run_ms:long! outcome:text final:bool! worker:text error_class:text error_fingerprint:text
        last_run_id:text schema_version:int! max_attempts:int error_message:text priority:int schedule:text
        slot_ms:long parent:text root:text cost:int
        """
        + _PAYLOADS
        + "state:text due_ms:long seen_ms:long date:date!"
    ),
    ("source", "queue", "job_id", "enqueued_ms"),
    ranged=("enqueued_ms", "finished_ms"),
)


def _rollup(grain: str) -> TableSchema:
    text = f"source:text! window_start:long! queue:text! task:text! {_COUNTS} {_MEASURE_COLUMNS}"
    columns = _columns(f"{text} {_CAUSE_COLUMNS} schema_version:int! date:date!")
    keys = ("source", "window_start", "queue", "task")
    chunk_ms = {"minute": _HOUR_MS, "hour": 4 * _HOUR_MS}.get(grain)
    return TableSchema(f"gold/{grain}", columns, keys, ranged=("window_start",), chunk_ms=chunk_ms)


#: Attempts by the minute, hour and day in which they ended. ``window_start`` is in milliseconds UTC.
GOLD_MINUTE, GOLD_HOUR, GOLD_DAY = (_rollup(grain) for grain in GRAINS)

#: One row for errors of a day that differ only in numbers and quoted values.
GOLD_ERRORS = TableSchema(
    "gold/errors",
    _columns(
        """
        source:text! queue:text! task:text! error_fingerprint:text! error_class:text occurrences:long!
        failed:long! first_ms:long! last_ms:long! last_job_id:text! last_run_id:text! schema_version:int!
        last_message:text date:date!
        """
    ),
    ("date", "source", "queue", "task", "error_fingerprint"),
    ranged=("last_ms",),
)

#: What each worker did in an hour. ``busy_ms`` / 3,600,000 is the average number of busy slots.
GOLD_WORKERS = TableSchema(
    "gold/workers",
    _columns(
        """
        source:text! window_start:long! worker:text! queue:text! attempts:long! completed:long! failed:long!
        stalled:long! busy_ms:long! first_ms:long! last_ms:long! schema_version:int! date:date!
        """
    ),
    ("source", "window_start", "worker", "queue"),
    ranged=("window_start",),
    chunk_ms=4 * _HOUR_MS,
)

#: By minute: attempts that became ready, and attempts that stopped waiting (started, or ended unstarted).
#: The running sum of ``ready - departed`` is the backlog, as far as its work has been settled since.
GOLD_BACKLOG = TableSchema(
    "gold/backlog",
    _columns(
        """
        source:text! window_start:long! queue:text! ready:long! departed:long! wait_sum_ms:long!
        wait_max_ms:long schema_version:int! date:date!
        """
    ),
    ("source", "window_start", "queue"),
    ranged=("window_start",),
    chunk_ms=_HOUR_MS,
)

#: The outcome of each row given to a sink; not part of a lake. ``queue`` is null if the sink refused the row.
SINK_ANSWERS = TableSchema(
    "answers",
    _columns(
        """
        sink:text! queue:text job_id:text! keys:text! outcome:text! reason:text at_ms:long!
        schema_version:int! date:date!
        """
    ),
    ranged=("at_ms",),
)

ROLLUPS = {"minute": GOLD_MINUTE, "hour": GOLD_HOUR, "day": GOLD_DAY}
GOLD = (GOLD_MINUTE, GOLD_HOUR, GOLD_DAY, GOLD_ERRORS, GOLD_WORKERS, GOLD_BACKLOG)
#: The tables that every batch commits to, bronze first.
BATCHED = (BRONZE_ATTEMPTS, BRONZE_GAPS, SILVER_ATTEMPTS, SILVER_JOBS, *GOLD)
#: Every table of a lake, by path.
TABLES = {table.path: table for table in (*BATCHED, SILVER_ERASED, SILVER_ERASED_JOBS)}
