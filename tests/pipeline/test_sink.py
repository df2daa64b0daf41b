"""Rows that become jobs, once each, although tasks fail, batches repeat and jobs are long gone."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.pipeline.support import Bench
from windlass.backend import requests as rq
from windlass.core.job import JobRecord, JobRef
from windlass.core.option_values import to_unique
from windlass.core.options import JobOptions
from windlass.core.states import JobState
from windlass.errors import ConfigError, StorageError
from windlass.pipeline import sink as sink_module
from windlass.pipeline.sink import KEEP_ID_S, Delivered, SinkOptions, commit_answers, deliver, row_id
from windlass.serde import JSON

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

backend_name = "sqlite"


def options(bench: Bench, **given: str) -> dict[str, str]:
    return {"url": bench.url, "queue": "pay", "task": "charge", "keys": "id", **given}


def write(frame: DataFrame, bench: Bench, **given: str) -> None:
    frame.write.format("windlass").options(**options(bench, **given)).mode("append").save()


def enqueued(bench: Bench) -> int:
    rows = bench.ask(rq.ReadCounters(queue="pay"))
    return sum(row.total for row in rows if row.outcome == "enqueued")


def test_a_row_is_a_job_with_its_columns_as_arguments(spark: SparkSession, bench: Bench) -> None:
    frame = spark.createDataFrame([(1, "ada", 2.5), (2, "eve", None)], "id int, name string, amount double")
    write(frame, bench, priority="7", maxAttempts="5")
    ref = JobRef("pay", row_id("charge", {"id": 1}))
    (job,) = bench.ask_now(rq.GetJobs(refs=[ref]))
    assert job is not None
    assert (job.task, job.priority, job.options.max_attempts) == ("charge", 7, 5)
    assert JSON.decode(job.payload) == {"kwargs": {"id": 1, "name": "ada", "amount": 2.5}, "form": "object"}
    write(frame, bench, priority="7", maxAttempts="5")
    assert enqueued(bench) == 2


def rows_as_jobs(
    bench: Bench, rows: list[dict[str, Any]], types: pa.Schema | None = None, **given: str
) -> tuple[Delivered, dict[int, JobRecord]]:
    """Deliver rows without Spark; what was done, and the jobs by the row's key."""
    batch = pa.RecordBatch.from_pylist(rows, schema=types)
    parsed = SinkOptions.parse(options(bench, **given), batch.schema.names, overwrite=False)
    done = deliver(parsed, iter([batch]))
    commit_answers(parsed, [done])
    refs = [JobRef(row.get("target") or "pay", row_id("charge", {"id": row["id"]})) for row in rows]
    found = bench.ask_now(rq.GetJobs(refs=refs))
    return done, {row["id"]: job for row, job in zip(rows, found, strict=True) if job is not None}


def test_a_row_says_its_own_options(bench: Bench) -> None:
    at = datetime(2100, 1, 1, tzinfo=UTC)
    rows: list[dict[str, Any]] = [
        {"id": 1, "n": 5, "wait": 60.5, "labels": ["red", "blue"], "target": "slow", "whose": "acme"},
        {"id": 2, "n": 6, "prio": 9, "run_at": at, "expires_in": 30, "most": 7, "key": "k", "cost": 3},
        {"id": 3, "n": 7},
    ]
    names = ("wait", "labels", "target", "whose", "prio", "run_at", "expires_in", "most", "key", "cost")
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("n", pa.int64()),
            ("wait", pa.float64()),
            ("labels", pa.list_(pa.string())),
            ("target", pa.string()),
            ("whose", pa.string()),
            ("prio", pa.int32()),
            ("run_at", pa.timestamp("us", "UTC")),
            ("expires_in", pa.int32()),
            ("most", pa.int32()),
            ("key", pa.string()),
            ("cost", pa.int32()),
        ]
    )
    said = (
        "delay=wait, tags=labels, queue=target, group=whose, priority=prio, run_at, expires_in, "
        "max_attempts=most, unique=key, cost"
    )
    done, jobs = rows_as_jobs(bench, rows, schema, options=said, timeout="12", priority="2")
    assert (done.added, done.known, done.refused) == (3, 0, 0)
    first, second, third = jobs[1], jobs[2], jobs[3]
    assert (first.queue, first.options.tags, first.options.group) == ("slow", ("red", "blue"), "acme")
    assert first.due_ms == first.enqueued_ms + 60_500
    assert (second.priority, second.due_ms) == (9, round(at.timestamp() * 1000))
    assert (second.options.max_attempts, second.options.cost) == (7, 3)
    assert second.options.unique is not None and second.options.unique.key == "k"
    assert second.expires_ms == second.enqueued_ms + 30_000
    assert (third.queue, third.priority, third.options.timeout_ms) == ("pay", 2, 12_000)
    assert not any(name in JSON.decode(job.payload)["kwargs"] for job in jobs.values() for name in names)


#: A value of every option that a column may say.
BY_ROW: dict[str, Any] = {
    "queue": "slow",
    "delay": 60.5,
    "run_at": datetime(2100, 1, 1, tzinfo=UTC),
    "expires_in": 30,
    "priority": 9,
    "max_attempts": 7,
    "backoff": "fixed",
    "timeout": 12.0,
    "lease": 45.0,
    "max_stalls": 4,
    "stall_delay": 3.0,
    "keep_completed": 5,
    "keep_failed": False,
    "result_ttl": 90.0,
    "tags": ["red", "blue"],
    "expires_total": 600.0,
    "backtrace": 3,
    "trace": {"traceparent": "00-a-b-01"},
    "result_codec": "msgpack",
    "lifo": True,
    "group": "acme",
    "cost": 3,
    "unique": "k",
    "fallbacks": [{"model": "small"}],
}


def test_every_option_of_a_job_can_be_a_column(bench: Bench) -> None:
    """One row for each option: it is stored as by a producer who says it."""
    assert set(BY_ROW) == sink_module._BY_ROW
    rows = [{"id": n, name: value} for n, (name, value) in enumerate(BY_ROW.items())]
    columns = {name: pa.array([row.get(name) for row in rows]) for name in ("id", *BY_ROW)}
    batch = pa.RecordBatch.from_pydict(columns)
    parsed = SinkOptions.parse(options(bench, options=", ".join(BY_ROW)), batch.schema.names, overwrite=False)
    done = deliver(parsed, iter([batch]))
    assert (done.added, done.refused) == (len(BY_ROW), 0)
    for n, (name, value) in enumerate(BY_ROW.items()):
        ref = JobRef("slow" if name == "queue" else "pay", row_id("charge", {"id": n}))
        (job,) = bench.ask_now(rq.GetJobs(refs=[ref]))
        assert job is not None, name
        assert JSON.decode(job.payload)["kwargs"] == {"id": n}
        said = JobOptions(keep_id=KEEP_ID_S).merged({} if name == "queue" else {name: value})
        want, unique = said.stored(), to_unique(said.unique)
        if unique is not None:
            want = msgspec.structs.replace(want, unique=unique.stored("charge", {"id": n}))
        due = said.run_at_ms or (job.enqueued_ms + said.delay_ms if said.delay_ms else None)
        assert (job.options, job.priority, job.due_ms) == (want, said.priority, due), name
        if name in ("expires_in", "expires_total"):
            assert job.expires_ms == job.enqueued_ms + 1000 * value


def test_every_row_gets_an_answer_in_a_table(bench: Bench, tmp_path: Path) -> None:
    where = str(tmp_path / "answers")
    rows = [{"id": 1, "delay": 0.0}, {"id": 2, "delay": -5.0}]
    done, _ = rows_as_jobs(bench, rows, options="delay", answers=where)
    assert (done.added, done.known, done.refused) == (1, 0, 1)
    again, _ = rows_as_jobs(bench, rows[:1], options="delay", answers=where)
    assert (again.added, again.known, again.refused) == (0, 1, 0)
    found = sorted(DeltaTable(where).to_pyarrow_table().to_pylist(), key=lambda row: str(row["outcome"]))
    assert [(row["outcome"], row["keys"]) for row in found] == [
        ("duplicate", '{"id":1}'),
        ("queued", '{"id":1}'),
        ("refused", '{"id":2}'),
    ]
    assert "delay" in found[2]["reason"] and found[2]["queue"] is None
    assert {row["job_id"] for row in found} == {row_id("charge", {"id": n}) for n in (1, 2)}
    with pytest.raises(StorageError, match="answers"):
        rows_as_jobs(bench, rows, options="delay")


def test_the_answers_of_a_micro_batch_are_there_once(bench: Bench, tmp_path: Path) -> None:
    given = options(bench, answers=str(tmp_path / "answers"))
    parsed = SinkOptions.parse(given, ["id"], overwrite=False)
    for batch, times in ((0, 2), (1, 1)):
        for _ in range(times):
            done = deliver(parsed, iter([pa.RecordBatch.from_pydict({"id": [batch]})]))
            commit_answers(parsed, [done], batch)
    assert DeltaTable(tmp_path / "answers").to_pyarrow_table().num_rows == 2


def test_tasks_that_fail_half_way_add_no_job_twice(spark: SparkSession, bench: Bench, tmp_path: Path) -> None:
    marker = str(tmp_path / "failed")

    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Each task dies once, after some of its rows are through."""
        import os

        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for number, batch in enumerate(batches):
            yield batch
            mine = f"{marker}-{context.partitionId()}"
            if number == 1 and not os.path.exists(mine):
                open(mine, "w").close()
                raise RuntimeError("this task fails once")

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
    try:
        rows = spark.range(0, 6_000, numPartitions=3).mapInArrow(fail_once, "id long")
        write(rows, bench)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert len(list(tmp_path.glob("failed-*"))) == 3
    assert enqueued(bench) == 6_000
    counts = bench.ask(rq.CountJobs(queue="pay"))
    assert counts[JobState.WAITING] == 6_000


def test_an_id_outlives_its_job(bench: Bench) -> None:
    parsed = SinkOptions.parse(options(bench), ["id"], overwrite=False)
    batch = pa.RecordBatch.from_pydict({"id": list(range(2_500))})
    done = deliver(parsed, iter([batch]))
    assert (done.added, done.known) == (2_500, 0)
    jobs = bench.ask_now(rq.ListJobs(queue="pay", limit=3_000)).jobs
    assert bench.ask_now(rq.RemoveJobs(refs=[job.ref for job in jobs])) != []
    again = deliver(parsed, iter([batch]))
    assert (again.added, again.known) == (0, 2_500)
    assert enqueued(bench) == 2_500


def test_a_stream_delivers_each_row_once(spark: SparkSession, bench: Bench, tmp_path: Path) -> None:
    source = tmp_path / "rows"

    def drain(checkpoint: str) -> None:
        query = (
            spark.readStream.schema("id long, name string")
            .parquet(str(source))
            .writeStream.format("windlass")
            .options(**options(bench, keys="id,name"))
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    spark.range(100).selectExpr("id", "'x' as name").write.mode("append").parquet(str(source))
    drain("one")
    spark.range(50, 130).selectExpr("id", "'x' as name").write.mode("append").parquet(str(source))
    drain("one")
    drain("lost")  # a new checkpoint: everything is delivered again
    assert enqueued(bench) == 130


def test_ids_depend_on_the_sink_and_the_keys_only() -> None:
    assert row_id("s", {"a": 1, "b": "x"}) == row_id("s", {"b": "x", "a": 1})
    assert (
        len({row_id("s", {"a": 1}), row_id("t", {"a": 1}), row_id("s", {"a": 2}), row_id("s", {"b": 1})}) == 4
    )
    with pytest.raises(ConfigError, match="key column 'a' is null"):
        row_id("s", {"a": None})


@pytest.mark.parametrize(
    "change",
    [
        {"keys": ""},
        {"keys": "nope"},
        {"queue": "a b"},
        {"task": ""},
        {"keepId": "long"},
        {"colour": "red"},
        {"options": "colour=id"},
        {"options": "delay=nope"},
        {"options": "job_id=id"},
        {"dependsOn": "x"},
        {"answers": "/"},
    ],
)
def test_bad_options_are_refused(bench: Bench, change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        SinkOptions.parse(options(bench, **change), ["id"], overwrite=False)


def test_a_queue_cannot_be_overwritten(bench: Bench) -> None:
    with pytest.raises(ConfigError, match="append"):
        SinkOptions.parse(options(bench), ["id"], overwrite=True)
