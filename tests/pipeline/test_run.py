"""From a store to a lake: every attempt once, in every layer, whatever happens on the way."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from tests.pipeline.support import DAY_MS, Bench, busy_day
from windlass.backend import requests as rq
from windlass.cli.pipeline import command
from windlass.core.outcome import Outcome
from windlass.errors import ConfigError, HistoryTrimmedError
from windlass.pipeline import lake_batch as batch_module
from windlass.pipeline import schemas
from windlass.pipeline.backfill import rebuild
from windlass.pipeline.compact import compact
from windlass.pipeline.lake import Lake
from windlass.pipeline.lake_batch import plan_batch, run_batch
from windlass.pipeline.run import Pipeline, RunOptions
from windlass.pipeline.sqlquery import VIEWS, connect
from windlass.pipeline.status import lake_status

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

backend_name = "sqlite"
#: Columns that say which batch brought a row; they differ between runs.
BATCH_COLUMNS = {"batch", "seen_ms"}
#: Tables without a job's id or an attempt's.
ID_FREE = {"gold/minute", "gold/hour", "gold/day", "gold/workers", "gold/backlog"}


def run(spark: SparkSession, bench: Bench, lake: Path | str, **options: Any) -> Pipeline:
    """Everything that is new, into ``lake``."""
    pipeline = Pipeline(spark, RunOptions(url=bench.url, lake=str(lake), **options))
    pipeline.open()
    pipeline.run_once()
    return pipeline


def contents(lake: Path | str) -> dict[str, list[Any]]:
    """The rows of every table, batch columns aside."""
    found: dict[str, list[Any]] = {}
    with connect(str(lake)) as connection:
        for view, table in VIEWS.items():
            names = ", ".join(f'"{name}"' for name in table.names if name not in BATCH_COLUMNS)
            found[table.path] = sorted(connection.execute(f"SELECT {names} FROM {view}").fetchall(), key=repr)
    return found


def totals(lake: Path | str, table: str) -> Counter[tuple[str, str, str]]:
    """Attempts by queue, task and outcome."""
    columns = ", ".join(f"sum({name})" for name in schemas.OUTCOME_COLUMNS.values())
    found: Counter[tuple[str, str, str]] = Counter()
    with connect(str(lake)) as connection:
        if table in ("attempts", "bronze_attempts", "erased"):
            sql = f"SELECT queue, task, outcome, count(*) FROM {table} GROUP BY ALL"
            for queue, task, outcome, count in connection.execute(sql).fetchall():
                found[queue, task, outcome] += count
            return found
        for queue, task, *counts in connection.execute(
            f"SELECT queue, task, {columns} FROM {table} GROUP BY ALL"
        ).fetchall():
            for outcome, count in zip(schemas.OUTCOME_COLUMNS, counts, strict=True):
                if count:
                    found[queue, task, outcome] += count
    return found


@pytest.mark.feature("Q2", "Q3", "Q11")
def test_all_layers_equal_the_lifetime_counters(spark: SparkSession, bench: Bench, tmp_path: Path) -> None:
    """Batch by batch, by the test's clock. What runs on every store is in ``test_totals``."""
    busy_day(bench)
    lake = tmp_path / "lake"
    run(spark, bench, lake, max_records=45)
    want = bench.counters()
    outcomes = {outcome for _, _, outcome in want}
    assert {"completed", "failed", "retrying", "cancelled", "stalled", "snoozed", "released"} <= outcomes
    for table in ("bronze_attempts", "attempts", "minute", "hour", "day"):
        assert totals(lake, table) == want, table
    with connect(str(lake)) as connection:

        def one(sql: str) -> Any:
            return connection.execute(sql).fetchall()

        ((attempts, distinct),) = one("SELECT count(*), count(DISTINCT run_id) FROM attempts")
        assert attempts == distinct == sum(want.values())
        ((rows, keys, records),) = one(
            "SELECT count(*), count(DISTINCT (queue, job_id, enqueued_ms)), sum(records) FROM jobs"
        )
        assert (rows, records) == (keys, attempts)
        ((again,),) = one("SELECT count(*) FROM jobs WHERE queue = 'pdf' AND job_id = 'p0'")
        assert again == 3  # one job for each time the id was used
        assert one("SELECT sum(ready - departed), sum(departed) FROM backlog") == [(0, attempts)]
        ((errors,),) = one("SELECT sum(occurrences) FROM errors WHERE error_class = 'KeyError'")
        assert errors == want["mail", "send", "failed"]
        ((worked,),) = one("SELECT sum(attempts) FROM workers")
        assert worked == one("SELECT count(*) FROM attempts WHERE worker IS NOT NULL")[0][0]


@pytest.mark.feature("Q11")
def test_a_later_run_adds_only_what_is_new(spark: SparkSession, bench: Bench, tmp_path: Path) -> None:
    bench.add("mail", ["a", "b"])
    bench.work("mail", outcome=Outcome.RETRY, delay_ms=50)
    lake = tmp_path / "lake"
    first = run(spark, bench, lake)
    assert first.run_batch() is None
    bench.pass_ms(1_000)
    bench.work("mail")
    second = run(spark, bench, lake)
    assert totals(lake, "day") == bench.counters()
    with connect(str(lake)) as connection:
        rows = connection.execute("SELECT job_id, records, outcome FROM jobs ORDER BY 1").fetchall()
    assert rows == [("a", 2, "completed"), ("b", 2, "completed")]
    assert second.lake.offsets() == {"default": {"mail": 4}}


@pytest.mark.feature("Q11")
def test_the_store_holds_the_log_until_the_lake_has_it(
    spark: SparkSession, bench: Bench, tmp_path: Path
) -> None:
    bench.add("mail", ["a"])
    bench.work("mail")
    lake = tmp_path / "lake"
    pipeline = run(spark, bench, lake)
    (info,) = bench.ask_now(rq.ListArchivers())  # registered by the store's clock, not by the test's
    assert (info.name, info.cursors) == (pipeline.archiver, {"mail": 1})


def test_a_trimmed_log_fails_the_run_unless_gaps_are_accepted(
    spark: SparkSession, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = tmp_path / "lake"
    bench.add("mail", [f"a{n}" for n in range(3)])
    bench.work("mail")
    monkeypatch.setattr(Pipeline, "_archive", lambda self: None)  # nobody holds the log
    run(spark, bench, lake)
    bench.add("mail", [f"b{n}" for n in range(4)])
    bench.work("mail")
    bench.pass_ms(2 * 86_400_000)
    bench.ask(rq.Prune())
    bench.add("mail", ["c"])
    bench.work("mail")
    with pytest.raises(HistoryTrimmedError):
        run(spark, bench, lake)
    failure = lake_status(Lake(str(lake)).open()).last_failure
    assert failure is not None and not failure.is_over
    assert (failure.source, failure.error) == ("default", "HistoryTrimmedError") and "mail" in failure.message
    pipeline = run(spark, bench, lake, on_gap="skip")
    status = lake_status(pipeline.lake)
    assert (status.gaps, status.lost) == (1, 4)
    assert status.last_failure is not None and status.last_failure.is_over
    (source,) = status.sources
    assert (source.source, source.batch, source.lacking) == ("default", 2, ())
    assert status.rows["silver/attempts"] == 4 and source.newest_ms == bench.now_ms
    shown = CliRunner().invoke(command, ["status", "--lake", str(lake)])
    assert shown.exit_code == 0, shown.output
    words = " ".join(shown.output.split())  # lines are broken where the terminal ends
    assert "4 records were lost unread" in words and "went through since" in words
    assert pipeline.lake.offsets() == {"default": {"mail": 8}}
    with connect(str(lake)) as connection:
        assert connection.execute('SELECT queue, "after", until FROM gaps').fetchall() == [("mail", 3, 7)]
        assert connection.execute("SELECT count(*) FROM attempts").fetchall() == [(4,)]


@pytest.mark.feature("Q11")
def test_records_that_come_again_change_nothing_twice(
    spark: SparkSession, bench: Bench, tmp_path: Path
) -> None:
    busy_day(bench, rounds=1)
    lake = tmp_path / "lake"
    pipeline = run(spark, bench, lake)
    before = contents(lake)
    plan = plan_batch(pipeline.url, {}, 30)  # as a broker that folds its log again would give them
    result = run_batch(spark, pipeline.lake, pipeline.url, "default", plan)
    assert (result.records, result.attempts) == (30, 0)
    after = contents(lake)
    assert len(after["bronze/attempts"]) == len(before["bronze/attempts"]) + 30
    for table in schemas.TABLES:
        if not table.startswith("bronze/"):
            assert after[table] == before[table], table


@pytest.mark.feature("Q11")
def test_a_large_batch_comes_out_as_small_ones_do(
    spark: SparkSession, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy_day(bench, rounds=2)
    run(spark, bench, tmp_path / "small", max_records=40)
    monkeypatch.setattr(batch_module, "LARGE", 5)
    monkeypatch.setattr(batch_module, "_LEAST_PER_TASK", 20)
    run(spark, bench, tmp_path / "large", max_records=70)
    small, large = contents(tmp_path / "small"), contents(tmp_path / "large")
    for table, rows in small.items():
        assert large[table] == rows, table
    monkeypatch.setattr(batch_module, "PER_MERGE", 7)  # jobs with several records, merged by several tasks
    run(spark, bench, tmp_path / "merged")
    assert contents(tmp_path / "merged")["silver/jobs"] == small["silver/jobs"]


@pytest.mark.feature("Q11")
def test_two_stores_in_one_lake_are_told_apart_everywhere(
    spark: SparkSession, bench: Bench, tmp_path: Path
) -> None:
    busy_day(bench, rounds=1)
    lake = tmp_path / "lake"
    run(spark, bench, lake)
    alone = contents(lake)
    pipeline = run(spark, bench, lake, source="again", max_records=30)
    both = contents(lake)
    for table in schemas.BATCHED:
        if table is schemas.BRONZE_GAPS:
            continue
        assert "source" in table.keys or table is schemas.BRONZE_ATTEMPTS
        at = [name for name in table.names if name not in BATCH_COLUMNS].index("source")
        first, second = (
            [row for row in both[table.path] if row[at] == source] for source in ("default", "again")
        )
        assert first == alone[table.path] != [], table.path
        assert sorted((*row[:at], "default", *row[at + 1 :]) for row in second) == sorted(first)
    assert set(pipeline.lake.sources()) == {"default", "again"}


@pytest.mark.feature("Q11")
def test_compaction_and_backfill_keep_every_row(spark: SparkSession, bench: Bench, tmp_path: Path) -> None:
    busy_day(bench, rounds=2)
    lake = tmp_path / "lake"
    pipeline = run(spark, bench, lake, max_records=30)
    before = contents(lake)
    assert compact(pipeline.lake, slack=1) > 0
    assert compact(pipeline.lake, slack=1) == 0
    assert contents(lake) == before
    assert rebuild(spark, pipeline.lake) == ["2023-11-14", "2023-11-15"]
    assert contents(lake) == before
    bench.add("mail", ["after"], task="send")
    bench.work("mail")
    run(spark, bench, lake)
    assert totals(lake, "day") == bench.counters()


@pytest.mark.feature("Q11")
def test_a_new_day_costs_the_same_in_a_young_and_in_an_old_lake(spark: SparkSession, tmp_path: Path) -> None:
    costs = {}
    for days in (1, 5):
        with Bench(f"sqlite:///{tmp_path / f'{days}.db'}") as bench:
            bench.now_ms += (5 - days) * DAY_MS
            for day in range(days, -1, -1):
                bench.add("mail", [f"{day}-{n}" for n in range(20)])
                bench.work("mail", run_ms=30)
                if day == 1:
                    pipeline = run(spark, bench, tmp_path / str(days))
                bench.pass_ms(DAY_MS - 35)
            (result,) = pipeline.run_once()
            costs[days] = result.traffic
    young, old = costs.values()
    assert young.keys() == {"read", "written"}
    for side in young:
        assert young[side].keys() == old[side].keys()
        for table, traffic in young[side].items():
            # Ids are drawn by lot, so that texts of equal length may be packed differently.
            counted = ("files", "rows", "bytes") if table in ID_FREE else ("files", "rows")
            assert {n: traffic[n] for n in counted} == {n: old[side][table][n] for n in counted}, table
    assert young["written"]["gold/minute"]["rows"] == 1


def test_a_continuous_run_ends_when_told(spark: SparkSession, bench: Bench, tmp_path: Path) -> None:
    bench.add("mail", ["a"])
    bench.work("mail")
    stop = threading.Event()
    pipeline = Pipeline(spark, RunOptions(url=bench.url, lake=str(tmp_path / "lake"), interval=0.01))
    pipeline.open()
    seen: list[int] = []

    def progress(result: Any) -> None:
        seen.append(result.records)
        if len(seen) == 1:
            bench.add("mail", ["b", "c"])
            bench.work("mail")
        else:
            stop.set()

    pipeline.run_continuously(stop, progress)
    assert seen == [1, 2]


@pytest.mark.parametrize("options", [{"source": "a b"}, {"max_records": 0}, {"on_gap": "hope"}])
def test_bad_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        RunOptions(url="sqlite:///x", lake="y", **options)
