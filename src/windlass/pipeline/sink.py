"""``df.write.format("windlass")`` and ``writeStream``: every row becomes a job, exactly once.

Options: ``url``, ``queue``, ``task``, ``keys`` (the columns that identify a row, separated by commas),
``sink`` (a name for this flow of rows; default: the task's), ``keepId`` (seconds; default: 7 days), every job
option that is one value for all rows (``maxAttempts``, ``priority``, ``timeout``, ...), ``options`` (options
that columns set for each row, see ``SinkOptions``), ``answers`` (a table with the outcome of each row). The
task is called with the other columns as keyword arguments.

The job's id is a hash of the sink's name and the key columns, and it is kept for ``keepId`` after the job is
removed. So a task that Spark runs twice, a batch that it replays and a run that is repeated within that time
add nothing. Rows with equal keys are one job. A null key is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from windlass.backend import requests as rq
from windlass.backend.store import check_jobs
from windlass.backend.urls import open_backend
from windlass.core.clock import SYSTEM_CLOCK
from windlass.core.ids import check_queue_name, check_task_name, new_id
from windlass.core.job import NewJob
from windlass.core.option_values import check_known, to_unique
from windlass.core.options import OPTION_NAMES, JobOptions, StoredOptions
from windlass.core.outcome import AddOutcome
from windlass.core.probe import reach
from windlass.errors import ConfigError, StorageError
from windlass.pipeline import schemas
from windlass.pipeline.files import FileEntry, Place, TableWriter, place
from windlass.pipeline.lake import append_files
from windlass.pipeline.store_requests import ask_many
from windlass.pipeline.transforms.grains import GRAIN_MS
from windlass.serde import JSON, encode_payload

if TYPE_CHECKING:
    import pyarrow as pa

#: Jobs that are added in one request.
CHUNK = 1_000
#: How long an id is kept: within this time a repeated row adds nothing.
KEEP_ID_S = 7 * 86_400
#: The options of the sink itself.
_OWN = ("url", "queue", "task", "keys", "sink", "options", "answers")
#: Job options that rows cannot set: the id follows from the keys, and rows do not refer to other jobs.
_NOT_HERE = {"job_id", "depends_on", "parent", "on_failure"}
#: Options that can be set for all rows; ``queue`` can also be set for single rows.
_CONSTANT = {name.replace("_", ""): name for name in OPTION_NAMES - _NOT_HERE}
_BY_ROW = (OPTION_NAMES - _NOT_HERE - {"keep_id"}) | {"queue"}
#: Options whose value is a text, even if it looks like a number.
_TEXTS = {"group", "unique", "result_codec"}


@dataclass(frozen=True)
class SinkOptions:
    """The validated options of a write.

    ``by_row``: pairs of a job option (or ``queue``) and the column that sets it for each row, from
    ``.option("options", "delay, group, tags=labels")``. Such a column is not an argument of the task unless
    it is also a key. If it is null in a row, the value for all rows applies.
    """

    url: str = field(repr=False)
    queue: str
    task: str
    sink: str
    keys: tuple[str, ...]
    by_row: tuple[tuple[str, str], ...]
    common: JobOptions
    #: The location of the table of answers, and its name there.
    answers: tuple[Place, str] | None = None
    #: Identifies this write. A repeated task of it gets the same answers; another write ``duplicate``.
    write_id: str = field(default_factory=lambda: new_id()[-12:])

    @classmethod
    def parse(cls, given: Mapping[str, str], columns: list[str], overwrite: bool) -> SinkOptions:
        """Parse Spark's options. Raises ``ConfigError``."""
        if overwrite:
            raise ConfigError("mode", message="a queue cannot be overwritten: use mode 'append'")
        lower = {name.lower().replace("_", ""): value for name, value in given.items()}
        lower.pop("checkpointlocation", None)
        check_known(lower, (*_OWN, *_CONSTANT), "option of the sink")
        for needed in ("url", "queue", "task", "keys"):
            if not lower.get(needed):
                raise ConfigError(needed, message=f"option {needed!r} is missing: .option({needed!r}, ...)")
        keys = tuple(_words(lower["keys"]))
        by_row = tuple(_pair(word) for word in _words(lower.get("options", "")))
        for option, names in (("keys", keys), ("options", [column for _, column in by_row])):
            for name in names:
                if name not in columns:
                    raise ConfigError(
                        option,
                        message=f"{option} names column {name!r}, which the rows do not have (columns: "
                        f"{', '.join(columns)})",
                        got=name,
                    )
        said = {_CONSTANT[name]: _constant(_CONSTANT[name], lower[name]) for name in lower.keys() & _CONSTANT}
        common = JobOptions(**{"keep_id": KEEP_ID_S, **said})
        common.check()
        return cls(
            lower["url"],
            check_queue_name(lower["queue"]),
            check_task_name(lower["task"]),
            lower.get("sink") or lower["task"],
            keys,
            by_row,
            common,
            _answers_place(lower["answers"]) if lower.get("answers") else None,
        )


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _pair(word: str) -> tuple[str, str]:
    option, _, column = (part.strip() for part in word.partition("="))
    check_known([option], _BY_ROW, "job option")
    return option, column or option


def _constant(name: str, text: str) -> Any:
    """The value of an option for all rows: parsed as JSON if it is valid, else a text."""
    if name in _TEXTS:
        return text
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _answers_place(text: str) -> tuple[Place, str]:
    whole = place(text)
    root, _, name = whole.url.rpartition("/")
    if not root or not name:
        raise ConfigError("answers", "a folder or URL for a table of its own", text)
    return Place(root, whole.options), name


@dataclass
class Delivered(WriterCommitMessage):
    """The result of one task: jobs added, rows whose job existed already, rows that were refused."""

    added: int = 0
    known: int = 0
    refused: int = 0
    #: Files of the table of answers.
    files: list[FileEntry] = field(default_factory=list)


class JobWriter(DataSourceArrowWriter):
    """Adds the rows of a batch as jobs."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return deliver(self.options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        commit_answers(self.options, messages)


class JobStreamWriter(DataSourceStreamArrowWriter):
    """Adds the rows of each micro-batch as jobs."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return deliver(self.options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        commit_answers(self.options, messages, batchId)


def deliver(options: SinkOptions, batches: Iterator[pa.RecordBatch]) -> Delivered:
    """Add the rows of one task. Safe to repeat, in whole or in part.

    If answers are kept, a refused row is recorded there. Otherwise it is an error.
    """
    done, answers = Delivered(), _Answers(options)
    capabilities = open_backend(options.url).capabilities
    name = options.url.partition(":")[0]
    with ask_many(options.url) as ask:
        for batch in batches:
            rows = batch.to_pylist()
            for first in range(0, len(rows), CHUNK):
                wanted = [_wanted(options, row) for row in rows[first : first + CHUNK]]
                jobs = [one for one in wanted if isinstance(one, NewJob)]
                check_jobs(name, capabilities, jobs)
                given: Iterator[rq.Added] = iter(ask(rq.Add(jobs=jobs)) if jobs else [])
                for row, one in zip(rows[first : first + CHUNK], wanted, strict=True):
                    outcome, why = (next(given).outcome, "") if isinstance(one, NewJob) else (_REFUSED, one)
                    done.added += outcome == AddOutcome.QUEUED
                    if outcome in (_REFUSED, AddOutcome.OUT_OF_ORDER):
                        done.refused += 1
                        why = why or "by the limits of its group"
                    answers.note(row, one, outcome, why)
                reach("sink.added")
    done.files = answers.close()
    done.known = answers.rows - done.added - done.refused
    return done


_REFUSED = AddOutcome.REFUSED


def _wanted(options: SinkOptions, row: Mapping[str, Any]) -> NewJob | str:
    """The job of a row, or why there is none. A null key is an error of the whole write."""
    job_id = row_id(options.sink, {key: row[key] for key in options.keys})
    try:
        return to_job(options, row, job_id)
    except (ConfigError, TypeError, ValueError) as exc:
        return str(exc)


def to_job(options: SinkOptions, row: Mapping[str, Any], job_id: str) -> NewJob:
    """The job of a row. Raises ``ConfigError`` for an invalid option."""
    apart = {column for _, column in options.by_row}.difference(options.keys)
    arguments = {name: value for name, value in row.items() if name not in apart} if apart else dict(row)
    said = {option: _value(row[column]) for option, column in options.by_row if row[column] is not None}
    queue = said.pop("queue", options.queue)
    chosen = options.common.merged(said)
    stored = _stored(chosen) if not said else chosen.stored()
    unique = to_unique(chosen.unique)
    if unique is not None:
        stored = msgspec.structs.replace(stored, unique=unique.stored(options.task, arguments))
    return NewJob(
        queue=queue if queue == options.queue else check_queue_name(queue),
        id=job_id,
        task=options.task,
        payload=encode_payload(JSON, {"kwargs": arguments, "form": "object"}),
        priority=chosen.priority,
        options=stored,
        delay_ms=chosen.delay_ms,
        run_at_ms=chosen.run_at_ms,
        expires_in_ms=chosen.expires_in_ms,
        request_id=options.write_id,
    )


#: Encoded options by the identity of the options object that all rows share.
_made: dict[int, tuple[JobOptions, StoredOptions]] = {}


def _stored(options: JobOptions) -> StoredOptions:
    found = _made.get(id(options))
    if found is None or found[0] is not options:
        _made.clear()
        found = _made[id(options)] = (options, options.stored())
    return found[1]


def _value(value: Any) -> Any:
    return float(value) if isinstance(value, Decimal) else value


def row_id(sink: str, keys: Mapping[str, Any]) -> str:
    """The id of the job for a row: the same for the same sink and key values, in any order."""
    for name, value in keys.items():
        if value is None:
            raise ConfigError("keys", message=f"key column {name!r} is null in a row", got=name)
    text = JSON.encode([sink, sorted((name, value) for name, value in keys.items())])
    return f"row-{hashlib.blake2b(text, digest_size=16).hexdigest()}"


# --- answers ----------------------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def answers_table(name: str) -> schemas.TableSchema:
    """The table of answers with the given name."""
    return schemas.TableSchema(name, schemas.SINK_ANSWERS.columns, ranged=schemas.SINK_ANSWERS.ranged)


class _Answers:
    """Records the outcome of each row of one task."""

    def __init__(self, options: SinkOptions) -> None:
        self.rows = 0
        self._options = options
        self._waiting: list[dict[str, Any]] = []
        self._writer = None
        if options.answers is not None:
            where, name = options.answers
            self._writer = TableWriter(where, answers_table(name))

    def note(self, row: Mapping[str, Any], job: NewJob | str, outcome: AddOutcome, why: str) -> None:
        self.rows += 1
        options = self._options
        if self._writer is None:
            if why:
                advice = "option 'answers' keeps such rows apart"
                raise StorageError(f"a row was refused ({why}); {advice}")
            return
        keys = {key: row[key] for key in options.keys}
        self._waiting.append(
            {
                "sink": options.sink,
                "queue": job.queue if isinstance(job, NewJob) else None,
                "job_id": job.id if isinstance(job, NewJob) else row_id(options.sink, keys),
                "keys": JSON.encode(keys).decode(),
                "outcome": outcome.value,
                "reason": why or None,
                "at_ms": (now_ms := SYSTEM_CLOCK.now_ms()),
                "schema_version": schemas.SCHEMA_VERSION,
                "date": _day(now_ms),
            }
        )
        if len(self._waiting) >= 10 * CHUNK:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        if self._writer is not None and self._waiting:
            schema = schemas.SINK_ANSWERS.arrow
            self._writer.write(pa.Table.from_pylist(self._waiting, schema=schema))
        self._waiting = []

    def close(self) -> list[FileEntry]:
        self._flush()
        return [] if self._writer is None else self._writer.close()


def _day(ms: int) -> Any:
    from datetime import date, timedelta

    return date(1970, 1, 1) + timedelta(days=ms // GRAIN_MS["day"])


def commit_answers(
    options: SinkOptions, messages: Sequence[WriterCommitMessage | None], batch: int | None = None
) -> None:
    """Add the answers of all tasks to their table; those of a micro-batch only once."""
    if options.answers is None:
        return
    where, name = options.answers
    files = [entry for one in messages if isinstance(one, Delivered) for entry in one.files]
    append_files(where, answers_table(name), files, None if batch is None else (options.sink, batch + 1))
