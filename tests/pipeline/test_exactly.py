"""Each batch once in every table: beside other runs and under readers; folder and S3."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.pipeline.object_store import make_bucket
from tests.pipeline.support import Bench, busy_day
from tests.pipeline.test_run import run, totals
from windlass.pipeline import schemas
from windlass.pipeline.compact import compact
from windlass.pipeline.lake import Lake, LakeTakenError
from windlass.pipeline.run import Pipeline, RunOptions
from windlass.pipeline.sqlquery import connect, query_spark
from windlass.testing.faults import probing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Totals = Counter[tuple[str, str, str, str]]


@pytest.fixture(params=["folder", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty place for a lake."""
    if request.param == "folder":
        yield str(tmp_path / "lake")
    else:
        with make_bucket(request.getfixturevalue("object_store")) as url:
            yield f"{url}/lake"


def opened(spark: SparkSession, bench: Bench, root: str, **options: Any) -> Pipeline:
    pipeline = Pipeline(spark, RunOptions(url=bench.url, lake=root, **options))
    pipeline.open()
    return pipeline


# --- two runs ---------------------------------------------------------------------------------------------


@pytest.mark.feature("Q11")
def test_of_two_runs_one_goes_on_and_the_other_stops(
    spark: SparkSession, bench: Bench, tmp_path: Path
) -> None:
    root = str(tmp_path / "lake")
    bench.add("mail", ["a"])
    bench.work("mail")
    first, second = opened(spark, bench, root), opened(spark, bench, root)
    assert second.run_batch() is not None
    bench.add("mail", ["b"])
    bench.work("mail")
    with pytest.raises(LakeTakenError, match="another run"):
        first.run_batch()
    assert second.run_batch() is not None
    assert totals(root, "bronze_attempts") == totals(root, "day") == bench.counters()


@pytest.mark.parametrize(
    ("point", "before"), [("pipeline.bronze", 0), ("pipeline.silver", 0), ("lake.commit", 5)]
)
def test_a_run_that_comes_between_finishes_the_batch_of_the_other(
    spark: SparkSession, bench: Bench, tmp_path: Path, point: str, before: int
) -> None:
    busy_day(bench, rounds=1)
    root = str(tmp_path / "lake")
    slow = opened(spark, bench, root, max_records=30)

    def come_between(point: str, facts: dict[str, Any]) -> None:
        run(spark, bench, root, max_records=30)

    with probing() as probe:
        if before:
            probe.arm(point, lambda point, facts: None, times=before)
        probe.arm(point, come_between)
        slow.run_batch()  # which of the two did it does not matter; what follows is the other's
    bench.add("mail", ["later"])
    bench.work("mail")
    with pytest.raises(LakeTakenError):
        slow.run_batch()
    run(spark, bench, root)
    for table in ("bronze_attempts", "attempts", "minute", "hour", "day"):
        assert totals(root, table) == bench.counters(), table


def test_a_run_goes_on_while_another_compacts(spark: SparkSession, bench: Bench, tmp_path: Path) -> None:
    busy_day(bench, rounds=1)
    root = str(tmp_path / "lake")
    pipeline = opened(spark, bench, root, max_records=30)
    pipeline.run_batch()

    def join(point: str, facts: dict[str, Any]) -> None:
        compact(Lake(root).open(), slack=1)

    with probing() as probe:
        probe.arm("lake.commit", join, times=12)
        pipeline.run_once()
    for table in ("bronze_attempts", "attempts", "day"):
        assert totals(root, table) == bench.counters(), table


# --- readers ----------------------------------------------------------------------------------------------


@pytest.mark.feature("Q11")
def test_a_reader_never_sees_half_a_batch(spark: SparkSession, bench: Bench, root: str) -> None:
    """It looks before and after every commit of three batches."""
    busy_day(bench, rounds=1)
    seen: list[int] = []

    def look(point: str, facts: dict[str, Any]) -> None:
        with connect(root) as connection:
            counts = connection.execute(
                "SELECT (SELECT count(*) FROM bronze_attempts), (SELECT count(*) FROM attempts), "
                "(SELECT sum(records) FROM jobs), (SELECT sum(attempts) FROM minute), "
                "(SELECT sum(attempts) FROM day), (SELECT sum(departed) FROM backlog_changes)"
            ).fetchall()[0]
        assert len({count or 0 for count in counts}) == 1, counts
        seen.append(counts[0])

    pipeline = opened(spark, bench, root, max_records=25)
    lock = threading.Lock()

    def look_alone(point: str, facts: dict[str, Any]) -> None:
        with lock:
            look(point, facts)

    sizes = [0]
    with probing() as probe:
        probe.arm("lake.commit", look_alone, times=1_000)
        probe.arm("lake.committed", look_alone, times=1_000)
        for result in pipeline.run_once():
            sizes.append(sizes[-1] + result.records)
    assert set(seen) == set(sizes) and len(sizes) > 2
    assert seen == sorted(seen)


@pytest.mark.keeps_threads("Dummy-*", reason="of polars, which live as long as the process")
@pytest.mark.feature("Q3", "Q11")
def test_every_engine_gives_the_same_totals(spark: SparkSession, bench: Bench, root: str) -> None:
    """By source, queue, task and outcome: deltalake, polars, DuckDB, Spark, and the store's own counters."""
    busy_day(bench, rounds=1)
    pipeline = run(spark, bench, root, max_records=40)
    check_engines(spark, pipeline.lake, bench)
    assert totals(root, "minute") == totals(root, "day") == bench.counters()
    bench.add("mail", ["more"])  # a second run reads what is there, and replaces it
    bench.work("mail")
    run(spark, bench, root)
    assert totals(root, "attempts") == totals(root, "day") == bench.counters()


def check_engines(spark: SparkSession, lake: Lake, bench: Bench) -> None:
    """Attempts by source, queue, task and outcome are the same whichever engine reads them."""
    import polars

    want = Counter({("default", *key): count for key, count in bench.counters().items()})
    table, options = lake.delta(schemas.SILVER_ATTEMPTS), dict(lake.place.options)
    names = ["source", "queue", "task", "outcome"]
    by_delta = _counted(table.to_pyarrow_table(columns=names).to_pylist())
    frame = polars.scan_delta(table.table_uri, storage_options=options).select(names).collect()
    by_polars = _counted(frame.to_dicts())
    sql = "SELECT source, queue, task, outcome FROM attempts"
    by_spark = Counter(query_spark(spark, lake.url, sql).rows)
    with connect(lake.url) as connection:
        by_duckdb = Counter(connection.execute(sql).fetchall())
    assert by_delta == by_polars == by_duckdb == by_spark == want


def _counted(rows: list[dict[str, Any]]) -> Totals:
    return Counter((row["source"], row["queue"], row["task"], row["outcome"]) for row in rows)
