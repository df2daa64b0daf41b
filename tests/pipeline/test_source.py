"""``format("windlass")`` over a store: exact ranges, exact offsets, and an error when records are gone."""

from __future__ import annotations

import gc
import json
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from tests.pipeline.support import DAY_MS, Bench, attempt, busy_day, error, rows_of
from windlass.backend import requests as rq
from windlass.core.job import AttemptRecord
from windlass.core.outcome import Outcome
from windlass.core.queue_time import QueueTime
from windlass.errors import ConfigError, HistoryTrimmedError, StorageError, UnsupportedByBackendError
from windlass.pipeline import schemas, source
from windlass.pipeline.arrow_records import attempts_batch
from windlass.pipeline.lake_batch import BatchPlan, Gap, plan_batch
from windlass.pipeline.source import (
    HistoryRange,
    HistoryStreamReader,
    LogBounds,
    ReadOptions,
    advance,
    queue_bounds,
)
from windlass.pipeline.store_requests import absolute_url

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

backend_name = "sqlite"


def read(spark: SparkSession, url: str, **options: Any) -> DataFrame:
    reader = spark.read.format("windlass").option("url", url)
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


def all_records(bench: Bench, *queues: str) -> list[AttemptRecord]:
    pages = [bench.ask(rq.ReadHistory(queue=queue, limit=100_000)) for queue in queues]
    return [record for page in pages for record in page.records]


@pytest.mark.feature("Q11", "Q2")
def test_every_record_is_a_row_with_the_same_values(spark: SparkSession, bench: Bench) -> None:
    busy_day(bench)
    records = all_records(bench, "mail", "pdf")
    want = sorted(
        (
            r.run_id,
            r.job_id,
            r.attempt,
            r.queue,
            r.task,
            r.finished_ms,
            r.wait_ms,
            r.duration_ms,
            str(r.outcome),
        )
        for r in records
    )
    names = (
        "run_id",
        "job_id",
        "attempt",
        "queue",
        "task",
        "finished_ms",
        "wait_ms",
        "duration_ms",
        "outcome",
    )
    frame = read(spark, bench.url, recordsPerPartition=17)
    assert frame.rdd.getNumPartitions() > 4
    assert sorted(tuple(row) for row in frame.select(*names).collect()) == want


def test_offsets_bound_a_read_exactly(spark: SparkSession, bench: Bench) -> None:
    bench.add("mail", [f"j{n}" for n in range(30)])
    bench.work("mail")
    ids = [record.run_id for record in all_records(bench, "mail")]
    frame = read(
        spark,
        bench.url,
        startingOffsets=json.dumps({"mail": 10}),
        endingOffsets=json.dumps({"mail": 25}),
        recordsPerPartition=4,
    )
    assert rows_of(frame, "run_id") == sorted((run_id,) for run_id in ids[10:25])


def test_queues_can_be_chosen(spark: SparkSession, bench: Bench) -> None:
    for queue in ("a", "b", "c"):
        bench.add(queue, ["x"])
        bench.work(queue)
    assert rows_of(read(spark, bench.url, queues="a, c"), "queue") == [("a",), ("c",)]


@pytest.mark.feature("Q11")
def test_jobs_of_any_state_are_a_table(spark: SparkSession, bench: Bench) -> None:
    bench.add("mail", ["ran", "broke"], tags=("red",))
    first, second = bench.claim("mail")
    bench.settle([first], Outcome.COMPLETE)
    bench.settle([second], Outcome.FAIL, error=error())
    bench.add("mail", ["waits"])
    frame = read(spark, bench.url, table="jobs")
    assert rows_of(frame, "job_id", "state", "error_class", "tags") == [
        ("broke", "failed", "ValueError", ["red"]),
        ("ran", "completed", None, ["red"]),
        ("waits", "waiting", None, []),
    ]
    assert {bytes(row.payload) for row in frame.select("payload").collect()} == {b'{"args":[1]}'}
    assert rows_of(read(spark, bench.url, table="jobs", states="waiting"), "job_id") == [("waits",)]
    assert read(spark, bench.url, table="jobs", queues="other").count() == 0


@pytest.mark.feature("Q11")
def test_a_stream_reads_each_record_once_across_restarts(
    spark: SparkSession, bench: Bench, tmp_path: Path
) -> None:
    def drain() -> int:
        query = (
            spark.readStream.format("windlass")
            .option("url", bench.url)
            .option("maxRecordsPerBatch", 20)
            .load()
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return spark.read.parquet(str(tmp_path / "out")).select("run_id").distinct().count()

    bench.add("mail", [f"a{n}" for n in range(30)])
    bench.add("pdf", [f"b{n}" for n in range(20)])
    bench.work("mail", "pdf")
    assert drain() == 50
    batches = len(list((tmp_path / "checkpoint/commits").glob("[0-9]*")))
    assert batches == 3  # 20, 20, 10
    bench.add("mail", ["more"])
    bench.add("new", ["queue"])
    bench.work("mail", "new")
    assert drain() == 52
    assert spark.read.parquet(str(tmp_path / "out")).count() == 52


# --- without Spark ------------------------------------------------------------------------------------------


def trimmed(bench: Bench) -> int:
    """A log whose first records are gone; returns the oldest position that is left."""
    bench.add("mail", [f"old{n}" for n in range(5)])
    bench.work("mail")
    bench.pass_ms(2 * 86_400_000)
    bench.add("mail", ["new"])
    bench.work("mail")
    bench.ask(rq.Prune())
    return 6


@pytest.mark.feature("Q11")
def test_a_trimmed_range_is_an_error_not_fewer_rows(bench: Bench) -> None:
    assert trimmed(bench) == 6
    with pytest.raises(HistoryTrimmedError):
        list(source.read_range(bench.url, HistoryRange("mail", 0, 6)))
    reader = HistoryStreamReader(ReadOptions(bench.url))
    assert reader.initialOffset() == {"mail": 5}
    for call in (
        lambda: reader.latestOffset({"mail": 2}, reader.getDefaultReadLimit()),
        lambda: reader.partitions({"mail": 2}, {"mail": 6}),
    ):
        with pytest.raises(HistoryTrimmedError):
            call()
    assert reader.latestOffset({"mail": 5}, reader.getDefaultReadLimit()) == {"mail": 6}


def test_a_range_past_the_end_of_the_log_is_an_error(bench: Bench) -> None:
    bench.add("mail", ["a"])
    bench.work("mail")
    with pytest.raises(StorageError, match="ends at 1"):
        list(source.read_range(bench.url, HistoryRange("mail", 0, 3)))
    with pytest.raises(StorageError, match="another store"):
        source.check_start("mail", 3, LogBounds(1, 1))


def test_positions_with_holes_are_read_to_the_end_of_the_range_only(monkeypatch: pytest.MonkeyPatch) -> None:
    positions = [2, 3, 7, 8, 20]

    def ask(request: rq.ReadHistory) -> rq.HistoryPage:
        found = [at for at in positions if at > request.after][: request.limit]
        return rq.HistoryPage(list(map(str, found)), found[-1] if found else request.after, 20, 1)  # type: ignore[arg-type]  # any record will do

    page = source._cut_page(ask, HistoryRange("q", 0, 9), 0, 9)
    assert list(map(str, page.records)) == ["2", "3", "7", "8"]
    assert page.last == 8


def test_columns_are_the_fields_of_a_record() -> None:
    *fields, last = AttemptRecord.__struct_fields__
    assert last == "queue_time"
    assert [*fields, *QueueTime.__struct_fields__[1:]] == schemas.HISTORY.names
    assert attempts_batch([]).num_rows == 0


def test_python_does_not_search_for_cycles_while_records_become_columns() -> None:
    values = attempt()
    record = AttemptRecord(
        **{name: values[name] for name in AttemptRecord.__struct_fields__ if name in values}
    )
    seen: list[str] = []

    def note(phase: str, info: dict[str, int]) -> None:
        seen.append(phase)

    gc.collect()
    gc.callbacks.append(note)
    try:
        assert attempts_batch([record] * 5_000).num_rows == 5_000
    finally:
        gc.callbacks.remove(note)
    assert seen == []
    assert gc.isenabled()


def test_a_batch_takes_from_each_queue_by_its_share() -> None:
    newest = {"a": 100, "b": 300, "c": 7}
    assert advance({"c": 7}, newest, None) == newest
    assert advance({"c": 7}, newest, 400) == newest
    step = advance({"c": 7}, newest, 40)
    assert step == {"a": 10, "b": 30, "c": 7}
    done, batches = {"c": 7}, 0
    while done != newest:
        done, batches = advance(done, newest, 33), batches + 1
    assert batches <= 14


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"url": "sqlite:///x", "table": "things"},
        {"url": "sqlite:///x", "quues": "a"},
        {"url": "sqlite:///x", "states": "sleeping"},
        {"url": "sqlite:///x", "startingOffsets": "[1]"},
        {"url": "sqlite:///x", "startingOffsets": '{"a": -1}'},
        {"url": "sqlite:///x", "recordsPerPartition": "none"},
    ],
)
def test_bad_options_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        ReadOptions.parse(options)


def test_urls_are_made_absolute_and_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute_url("sqlite:///a/j.db?namespace=n") == f"sqlite:///{tmp_path}/a/j.db?namespace=n"
    assert absolute_url("sqlite:////abs/j.db") == "sqlite:////abs/j.db"
    with pytest.raises(UnsupportedByBackendError):
        absolute_url("memory://")


def test_what_was_trimmed_before_the_first_run_is_no_gap_and_afterwards_it_is_one(bench: Bench) -> None:
    trimmed(bench)
    assert plan_batch(bench.url, {}, 100) == BatchPlan({"mail": 5}, {"mail": 6})
    with pytest.raises(HistoryTrimmedError):
        plan_batch(bench.url, {"pdf": 0}, 100)  # a queue that appeared since the last run
    plan = plan_batch(bench.url, {"pdf": 0}, 100, "skip")
    assert (plan.gaps, plan.records) == ((Gap("mail", 0, 5),), 1)


def test_the_log_is_held_for_a_stream_until_it_has_read_it(bench: Bench) -> None:
    """A day and more passes between a batch and the next; the log of a queue that is not read may go."""
    reader = HistoryStreamReader(ReadOptions(bench.url, queues=("mail",), archiver="notebook"))
    bench.add("mail", ["a", "b"])
    bench.add("pdf", ["c"])
    bench.work("mail", "pdf")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(100))
    assert (start, end) == ({"mail": 0}, {"mail": 2})

    def oldest(queue: str) -> int:
        bench.pass_ms(DAY_MS + 1)
        bench.ask(rq.Prune(limit=1_000))
        return queue_bounds(bench.ask, queue).oldest

    assert (oldest("mail"), oldest("pdf")) == (1, 2)
    assert len(all_records(bench, "mail")) == 2
    reader.commit(end)
    assert oldest("mail") == 3
    (archiver,) = bench.ask(rq.ListArchivers())
    assert (archiver.name, archiver.cursors) == ("notebook", {"mail": 2, "pdf": 1})


def test_a_stream_that_wants_no_hold_leaves_no_archiver(bench: Bench) -> None:
    bench.add("mail", ["a"])
    bench.work("mail")
    reader = HistoryStreamReader(ReadOptions(bench.url, archiver=""))
    reader.commit(reader.latestOffset(reader.initialOffset(), ReadMaxRows(100)))
    assert bench.ask(rq.ListArchivers()) == []
