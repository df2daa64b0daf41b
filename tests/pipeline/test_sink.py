"""Rows that become jobs, once each, although tasks fail, batches repeat and jobs are long gone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.pipeline.support import Bench
from windlass.backend import requests as rq
from windlass.core.job import JobRef
from windlass.core.states import JobState
from windlass.errors import ConfigError
from windlass.pipeline.sink import SinkOptions, deliver, row_id
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
    with pytest.raises(ConfigError, match="without null"):
        row_id("s", {"a": None})


@pytest.mark.parametrize(
    "change",
    [{"keys": ""}, {"keys": "nope"}, {"queue": "a b"}, {"task": ""}, {"keepId": "long"}, {"colour": "red"}],
)
def test_bad_options_are_refused(bench: Bench, change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        SinkOptions.parse(options(bench, **change), ["id"], overwrite=False)


def test_a_queue_cannot_be_overwritten(bench: Bench) -> None:
    with pytest.raises(ConfigError, match="append"):
        SinkOptions.parse(options(bench), ["id"], overwrite=True)
