"""``df.write.format("windlass")`` and ``writeStream``: every row becomes a job, exactly once.

Options: ``url``, ``queue``, ``task``, ``keys`` (the columns that name a row, separated by commas), ``sink``
(a name for this flow of rows; default: the task's), ``keepId`` (seconds, 7 days unless told),
``maxAttempts``, ``priority``. The task is called with the row's columns as keyword arguments.

The job's id is a hash of the sink's name and the key columns, and it is kept for ``keepId`` after the job is
gone. So a task that Spark runs twice, a batch that it replays and a run that somebody repeats within that
time add nothing. Rows with equal keys are one job; a null key is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from windlass.backend import requests as rq
from windlass.core.ids import check_queue_name, check_task_name
from windlass.core.job import NewJob
from windlass.core.options import JobOptions, StoredOptions, check_known
from windlass.core.outcome import AddOutcome
from windlass.core.probe import reach
from windlass.errors import ConfigError
from windlass.pipeline.store import ask_many
from windlass.serde import JSON, encode_payload

if TYPE_CHECKING:
    import pyarrow as pa

#: Jobs added in one step.
CHUNK = 1_000
#: How long an id is remembered: the horizon within which a repeated row adds nothing.
KEEP_ID_S = 7 * 86_400
_OPTIONS = ("url", "queue", "task", "keys", "sink", "keepid", "maxattempts", "priority")


@dataclass(frozen=True)
class SinkOptions:
    """The options of a write, checked."""

    url: str = field(repr=False)
    queue: str
    task: str
    sink: str
    keys: tuple[str, ...]
    priority: int
    stored: StoredOptions

    @classmethod
    def parse(cls, given: Mapping[str, str], columns: list[str], overwrite: bool) -> SinkOptions:
        """From Spark's options, or ``ConfigError``."""
        if overwrite:
            raise ConfigError("mode", "append: a queue cannot be overwritten")
        lower = {name.lower(): value for name, value in given.items()}
        check_known((name for name in lower if name != "checkpointlocation"), _OPTIONS, "option of the sink")
        for needed in ("url", "queue", "task", "keys"):
            if not lower.get(needed):
                raise ConfigError(needed, f"given: .option({needed!r}, ...)")
        keys = tuple(word.strip() for word in lower["keys"].split(",") if word.strip())
        for key in keys:
            if key not in columns:
                raise ConfigError("keys", f"columns of the rows ({', '.join(columns)})", key)
        options = JobOptions(
            keep_id=_number(lower, "keepId", KEEP_ID_S),
            max_attempts=_number(lower, "maxAttempts", 3),
            priority=_number(lower, "priority", 0),
        )
        return cls(
            lower["url"],
            check_queue_name(lower["queue"]),
            check_task_name(lower["task"]),
            lower.get("sink") or lower["task"],
            keys,
            options.priority,
            options.stored(),
        )


@dataclass
class Delivered(WriterCommitMessage):
    """What one task did: jobs added, and rows whose job was there already."""

    added: int = 0
    known: int = 0


class JobWriter(DataSourceArrowWriter):
    """A batch of rows as jobs."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return deliver(self.options, iterator)


class JobStreamWriter(DataSourceStreamArrowWriter):
    """The rows of each micro-batch as jobs."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return deliver(self.options, iterator)


def deliver(options: SinkOptions, batches: Iterator[pa.RecordBatch]) -> Delivered:
    """Add the rows of one task. Safe to repeat, whole or in part."""
    done = Delivered()
    with ask_many(options.url) as ask:
        for batch in batches:
            rows = batch.to_pylist()
            for first in range(0, len(rows), CHUNK):
                jobs = [to_job(options, row) for row in rows[first : first + CHUNK]]
                answers: list[rq.Added] = ask(rq.Add(jobs=jobs))
                added = sum(answer.outcome == AddOutcome.QUEUED for answer in answers)
                done.added += added
                done.known += len(jobs) - added
                reach("sink.added")
    return done


def to_job(options: SinkOptions, row: Mapping[str, Any]) -> NewJob:
    """The job of a row."""
    payload = encode_payload(JSON, {"kwargs": dict(row), "form": "object"})
    job_id = row_id(options.sink, {key: row[key] for key in options.keys})
    return NewJob(
        queue=options.queue,
        id=job_id,
        task=options.task,
        payload=payload,
        priority=options.priority,
        options=options.stored,
        request_id=job_id,
    )


def row_id(sink: str, keys: Mapping[str, Any]) -> str:
    """The id of the job for a row: the same for the same sink and key values, whatever their order."""
    for name, value in keys.items():
        if value is None:
            raise ConfigError("keys", "columns without null", name)
    text = JSON.encode([sink, sorted((name, value) for name, value in keys.items())])
    return f"row-{hashlib.blake2b(text, digest_size=16).hexdigest()}"


def _number(given: Mapping[str, str], option: str, default: int) -> int:
    text = given.get(option.lower())
    if text is None:
        return default
    try:
        return int(text)
    except ValueError:
        raise ConfigError(option, "a whole number", text) from None
