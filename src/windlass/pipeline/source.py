"""``spark.read.format("windlass")`` and ``readStream``: history logs and job tables of any shared store.

Options (in Spark's spelling):

* ``url``: the store; must be reachable from every executor;
* ``table``: ``history`` (default) or ``jobs``;
* ``queues``: names separated by commas; default: all queues;
* ``states``: for ``jobs``, states separated by commas;
* ``startingOffsets``, ``endingOffsets``: for ``history``, a JSON object of queue -> position;
* ``recordsPerPartition``: how many records one task reads (100,000);
* ``maxRecordsPerBatch``: for streams, how many records a micro-batch may hold (1,000,000);
* ``archiver``: for streams, the archiver name for which the store keeps its log (``stream``); give each
  stream of a store its own. If empty, the store does not keep the log for this stream.

Positions are those of ``ReadHistory``: a range is *after* its start, up to and including its end. If the log
was trimmed past a start, reading fails with ``HistoryTrimmedError``; it never returns fewer rows instead. All
code here runs in Python workers of the driver or the executors. So stores are opened where they are read,
and ``DataSource`` classes hold only what can be pickled.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from windlass.backend import requests as rq
from windlass.core.clock import SYSTEM_CLOCK
from windlass.core.job import JobRecord
from windlass.core.option_values import check_known
from windlass.core.states import JobState
from windlass.errors import ConfigError, HistoryTrimmedError, StorageError
from windlass.pipeline import schemas
from windlass.pipeline.arrow_records import attempts_batch, jobs_batch
from windlass.pipeline.store_requests import ask_many

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

#: Records per request.
PAGE = 10_000
RECORDS_PER_PARTITION = 100_000
RECORDS_PER_BATCH = 1_000_000
#: How often an idle stream renews its registration as an archiver.
_TELL_EVERY_MS = 60_000
_READ_OPTIONS = (
    "url",
    "table",
    "queues",
    "states",
    "startingoffsets",
    "endingoffsets",
    "recordsperpartition",
    "maxrecordsperbatch",
    "archiver",
)

Positions = dict[str, int]


def register(spark: SparkSession) -> None:
    """Register ``format("windlass")`` with a session."""
    spark.dataSource.register(WindlassSource)


class WindlassSource(DataSource):
    """The format. This module documents reading, ``windlass.pipeline.sink`` writing."""

    @classmethod
    def name(cls) -> str:
        return "windlass"

    def schema(self) -> StructType:
        return ReadOptions.parse(self.options).schema.spark

    def reader(self, schema: StructType) -> DataSourceReader:
        options = ReadOptions.parse(self.options)
        return JobsReader(options) if options.table == "jobs" else HistoryReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = ReadOptions.parse(self.options)
        if options.table == "jobs":
            raise ConfigError(
                "table", message="table jobs cannot be read as a stream; use table history", got=options.table
            )
        return HistoryStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from windlass.pipeline.sink import JobWriter, SinkOptions

        return JobWriter(SinkOptions.parse(self.options, schema.names, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from windlass.pipeline.sink import JobStreamWriter, SinkOptions

        return JobStreamWriter(SinkOptions.parse(self.options, schema.names, overwrite=False))


@dataclass(frozen=True)
class ReadOptions:
    """The validated options of a read."""

    url: str = field(repr=False)
    table: str = "history"
    queues: tuple[str, ...] | None = None
    states: tuple[JobState, ...] = ()
    start: Positions | None = None
    end: Positions | None = None
    per_partition: int = RECORDS_PER_PARTITION
    per_batch: int = RECORDS_PER_BATCH
    archiver: str = "stream"

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> ReadOptions:
        """Parse Spark's options. Raises ``ConfigError``."""
        lower = {name.lower(): value for name, value in given.items()}
        check_known(lower, _READ_OPTIONS, "option of format('windlass')")
        if "url" not in lower:
            raise ConfigError(
                "url", message="option 'url' is missing: .option('url', 'sqlite:////data/jobs.db')"
            )
        table = lower.get("table", "history")
        if table not in ("history", "jobs"):
            raise ConfigError("table", "history or jobs", table)
        queues = _words(lower.get("queues"))
        return cls(
            lower["url"],
            table,
            queues or None,
            tuple(_state(word) for word in _words(lower.get("states"))),
            _positions("startingOffsets", lower.get("startingoffsets")),
            _positions("endingOffsets", lower.get("endingoffsets")),
            _count("recordsPerPartition", lower.get("recordsperpartition"), RECORDS_PER_PARTITION),
            _count("maxRecordsPerBatch", lower.get("maxrecordsperbatch"), RECORDS_PER_BATCH),
            lower.get("archiver", "stream"),
        )

    @property
    def schema(self) -> schemas.TableSchema:
        return schemas.JOBS if self.table == "jobs" else schemas.HISTORY

    def wants(self, queue: str) -> bool:
        return self.queues is None or queue in self.queues


@dataclass
class HistoryRange(InputPartition):
    """Records of ``queue`` after ``after``, up to and including ``until``."""

    queue: str
    after: int
    until: int


@dataclass
class JobsOf(InputPartition):
    """The jobs of a queue in one state."""

    queue: str
    state: str


# --- history, batch -----------------------------------------------------------------------------------


class HistoryReader(DataSourceReader):
    """A bounded range of the log of every queue."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options

    def partitions(self) -> Sequence[InputPartition]:
        start = self.options.start or {}
        end = self.options.end
        if end is None:
            with ask_many(self.options.url) as ask:
                bounds = log_bounds(ask, start, self.options)
            # Records trimmed before the first read are no gap: without a start, read all that remain.
            start = {queue: start.get(queue, bound.oldest - 1) for queue, bound in bounds.items()}
            end = {queue: bound.newest for queue, bound in bounds.items()}
        return split_ranges(start, end, self.options.per_partition)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, HistoryRange)
        return read_range(self.options.url, partition)


def split_ranges(start: Positions, end: Positions, size: int) -> list[HistoryRange]:
    """Ranges of at most ``size`` positions that cover everything from ``start`` to ``end``."""
    return [
        HistoryRange(queue, after, min(after + size, until))
        for queue, until in sorted(end.items())
        for after in range(start.get(queue, 0), until, size)
    ]


def read_range(url: str, wanted: HistoryRange) -> Iterator[pa.RecordBatch]:
    """All records of a range as Arrow batches. Raises an error if one is missing."""
    with ask_many(url) as ask:
        after = wanted.after
        while after < wanted.until:
            limit = min(PAGE, wanted.until - after)
            page: rq.HistoryPage = ask(rq.ReadHistory(queue=wanted.queue, after=after, limit=limit))
            if page.last > wanted.until:
                page = _cut_page(ask, wanted, after, limit)
            if page.last <= after:
                if page.newest < wanted.until:
                    raise StorageError(
                        f"the history of queue {wanted.queue!r} ends at {page.newest}, before {wanted.until}"
                    )
                return  # no records at the last positions of the range
            yield attempts_batch(page.records)
            after = page.last


def _cut_page(ask: Any, wanted: HistoryRange, after: int, limit: int) -> rq.HistoryPage:
    """The largest page that ends within the range, for logs with unused positions."""
    low, high = 0, limit - 1
    best = rq.HistoryPage([], after, wanted.until, 0)
    while low < high:
        middle = (low + high + 1) // 2
        page: rq.HistoryPage = ask(rq.ReadHistory(queue=wanted.queue, after=after, limit=middle))
        if page.last <= wanted.until:
            low, best = middle, page
        else:
            high = middle - 1
    return best


@dataclass(frozen=True)
class LogBounds:
    """The oldest and newest position in a queue's log."""

    oldest: int
    newest: int


def log_bounds(ask: Any, start: Positions, options: ReadOptions | None = None) -> dict[str, LogBounds]:
    """The bounds of every queue's log, including queues in ``start`` that the store no longer lists."""
    names = {info.name for info in ask(rq.ListQueues())} | set(start)
    return {
        queue: queue_bounds(ask, queue) for queue in sorted(names) if options is None or options.wants(queue)
    }


def queue_bounds(ask: Any, queue: str) -> LogBounds:
    """The bounds of one queue's log."""
    try:
        page: rq.HistoryPage = ask(rq.ReadHistory(queue=queue, after=0, limit=1))
    except HistoryTrimmedError as exc:
        page = ask(rq.ReadHistory(queue=queue, after=exc.oldest - 1, limit=1))
    return LogBounds(page.oldest, page.newest)


def check_start(queue: str, after: int, bound: LogBounds) -> None:
    """Raise an error if records after ``after`` were trimmed, or never existed."""
    if after + 1 < bound.oldest:
        raise HistoryTrimmedError("history", queue, after, bound.oldest)
    if after > bound.newest:
        raise StorageError(
            f"the history of queue {queue!r} ends at {bound.newest}, but {after} records of it were read "
            "before: this is another store, or it was restored from an older copy"
        )


# --- history, stream ------------------------------------------------------------------------------------


class HistoryStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The log as a stream. Offsets are queue -> position.

    The stream is an archiver of its store, which keeps records until the stream has committed them.
    """

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self._target: Positions | None = None
        #: The positions last reported to the store, and when.
        self._held: tuple[Positions, int] | None = None

    def initialOffset(self) -> dict[str, Any]:
        start = self.options.start
        if start is None:
            with ask_many(self.options.url) as ask:
                bounds = log_bounds(ask, {}, self.options)
            start = {queue: bound.oldest - 1 for queue, bound in bounds.items()}
        self._hold(start)
        return dict(start)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.options.per_batch)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._newest({})

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        self._hold(start)  # keeps an idle stream registered too
        newest = self._target if self._target is not None else self._newest(start)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return advance(start, newest, most)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._newest({})

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        with ask_many(self.options.url) as ask:
            for queue, until in end.items():
                if until > start.get(queue, 0):
                    check_start(queue, start.get(queue, 0), queue_bounds(ask, queue))
        return split_ranges(start, end, self.options.per_partition)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, HistoryRange)
        return read_range(self.options.url, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Report that records up to ``end`` are processed, so that the store need not keep them."""
        self._hold(end)

    def _hold(self, done: Positions) -> None:
        """Have the store keep the records after ``done``; of queues that are not read, none."""
        options, now_ms = self.options, SYSTEM_CLOCK.now_ms()
        known = self._held
        if not options.archiver or (
            known is not None and known[0] == done and now_ms - known[1] < _TELL_EVERY_MS
        ):
            return
        with ask_many(options.url) as ask:
            cursors = dict(done)
            if options.queues is not None:
                others = {info.name for info in ask(rq.ListQueues())} - set(options.queues)
                cursors |= {queue: queue_bounds(ask, queue).newest for queue in others}
            ask(rq.Archive(name=options.archiver, cursors=cursors))
        self._held = dict(done), now_ms

    def _newest(self, start: Positions) -> Positions:
        with ask_many(self.options.url) as ask:
            bounds = log_bounds(ask, start, self.options)
        for queue, bound in bounds.items():
            if queue in start:
                check_start(queue, start[queue], bound)
        return {queue: bound.newest for queue, bound in bounds.items()}


def advance(start: Positions, newest: Positions, most: int | None) -> Positions:
    """The positions at which a batch of at most ``most`` records ends.

    Each queue advances by its share of what is left. This keeps queues level in time, so that a later batch
    rarely holds older records than this one.
    """
    todo = {queue: max(until - start.get(queue, 0), 0) for queue, until in sorted(newest.items())}
    total = sum(todo.values())
    if most is None or total <= most:
        return {**start, **{queue: start.get(queue, 0) + count for queue, count in todo.items()}}
    end, left = dict(start), most
    for queue, count in todo.items():
        step = min(-(-count * most // total), count, left)
        end[queue] = start.get(queue, 0) + step
        left -= step
    return end


# --- jobs -------------------------------------------------------------------------------------------------


class JobsReader(DataSourceReader):
    """Current job records, one task per queue and state."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options

    def partitions(self) -> Sequence[InputPartition]:
        return self.parts() or [JobsOf("", "")]

    def parts(self) -> list[JobsOf]:
        """The queues and states to list."""
        with ask_many(self.options.url) as ask:
            queues: list[Any] = ask(rq.ListQueues())
        states = self.options.states or tuple(JobState)
        return [
            JobsOf(info.name, state.value)
            for info in queues
            if self.options.wants(info.name)
            for state in states
            if info.counts.get(state.value, 1)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, JobsOf)
        if partition.queue:
            yield from map(jobs_batch, list_jobs(self.options.url, partition))


def list_jobs(url: str, wanted: JobsOf) -> Iterator[Sequence[JobRecord]]:
    """The jobs of a queue in one state, page by page."""
    with ask_many(url) as ask:
        cursor: str | None = None
        while True:
            page: rq.Page = ask(
                rq.ListJobs(
                    queue=wanted.queue,
                    states=[JobState(wanted.state)],
                    newest_first=False,
                    cursor=cursor,
                    limit=1_000,
                )
            )
            if page.jobs:
                yield page.jobs
            cursor = page.cursor
            if cursor is None:
                return


# --- options ----------------------------------------------------------------------------------------------


def _words(text: str | None) -> tuple[str, ...]:
    return tuple(word.strip() for word in (text or "").split(",") if word.strip())


def _state(word: str) -> JobState:
    try:
        return JobState(word)
    except ValueError:
        raise ConfigError("states", f"among {', '.join(JobState)}", word) from None


def _positions(option: str, text: str | None) -> Positions | None:
    if text is None:
        return None
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(_is_position(value) for value in found.values()):
        raise ConfigError(option, 'like {"mail": 120}: queue -> position', text)
    return found


def _is_position(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _count(option: str, text: str | None, default: int) -> int:
    if text is None:
        return default
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(option, "a whole number from 1", text)
    return int(text)
