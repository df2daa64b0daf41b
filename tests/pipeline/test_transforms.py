"""Every transform on a handful of literal rows."""

from __future__ import annotations

import random
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.pipeline.support import DAY_MS, START_MS, arrow_rows, attempt, make_df, make_table, rows_of
from tests.pipeline.test_histogram import build
from tools import lake_columns
from windlass.pipeline import histogram as h
from windlass.pipeline import schemas
from windlass.pipeline.transforms import attempts, gold_rows, job_rows
from windlass.pipeline.transforms.sql import ask, day, engine, window

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

MINUTE = START_MS - START_MS % 60_000
HOUR = START_MS - START_MS % 3_600_000
DAY = START_MS - START_MS % DAY_MS


def silver(spark: SparkSession, *rows: dict[str, Any]) -> DataFrame:
    return make_df(spark, schemas.SILVER_ATTEMPTS, rows)


def rows_in(table: schemas.TableSchema, *rows: dict[str, Any]) -> pa.Table:
    """What attempts come to in a gold table."""
    attempts = make_table(schemas.SILVER_ATTEMPTS, rows)
    with engine(attempts=attempts) as connection:
        (found,) = gold_rows.attempt_rows(connection, attempts, [table])
        return found


def jobs_of(*rows: dict[str, Any]) -> pa.Table:
    return job_rows.merged_jobs(job_rows.job_parts(make_table(schemas.SILVER_ATTEMPTS, rows)))


def joined(*tables: pa.Table) -> pa.Table:
    import pyarrow as pa

    return pa.concat_tables(tables)


# --- attempts ---------------------------------------------------------------------------------------------


def test_bronze_adds_source_batch_and_the_day_of_the_end() -> None:
    import pyarrow as pa

    rows = [attempt(finished_ms=ms) for ms in (DAY + DAY_MS - 1, DAY + DAY_MS, -1)]
    history = pa.RecordBatch.from_pylist(rows, schema=schemas.HISTORY.arrow)
    bronze = attempts.as_bronze(history, "shop", 7)
    assert bronze.schema.names == schemas.BRONZE_ATTEMPTS.names
    assert [(str(row["date"]), row["source"], row["batch"]) for row in bronze.to_pylist()] == [
        ("2023-11-14", "shop", 7),
        ("2023-11-15", "shop", 7),
        ("1969-12-31", "shop", 7),
    ]


def test_silver_has_what_bronze_has(spark: SparkSession) -> None:
    bronze = make_df(
        spark, schemas.BRONZE_ATTEMPTS, [attempt(run_id="a", batch=7), attempt(run_id="b", batch=8)]
    )
    rows = attempts.as_silver(bronze)
    assert rows.columns == schemas.SILVER_ATTEMPTS.names
    assert rows_of(rows, "run_id", "outcome", "batch") == [("a", "completed", 7), ("b", "completed", 8)]


def test_days_and_windows_begin_at_their_first_millisecond() -> None:
    import pyarrow as pa

    times = [DAY - 1, DAY, DAY + 59_999, DAY + 60_000, DAY + 3_600_000, -1]
    widths = ", ".join(window("ms", width) for width in (60_000, 3_600_000, DAY_MS))
    with engine(times=pa.table({"ms": times})) as connection:
        found = ask(connection, f"SELECT ms, {day('ms')}::VARCHAR, {widths} FROM times")
    assert [tuple(row.values()) for row in found.to_pylist()] == [
        (DAY - 1, "2023-11-13", DAY - 60_000, DAY - 3_600_000, DAY - DAY_MS),
        (DAY, "2023-11-14", DAY, DAY, DAY),
        (DAY + 59_999, "2023-11-14", DAY, DAY, DAY),
        (DAY + 60_000, "2023-11-14", DAY + 60_000, DAY, DAY),
        (DAY + 3_600_000, "2023-11-14", DAY + 3_600_000, DAY + 3_600_000, DAY),
        (-1, "1969-12-31", -60_000, -3_600_000, -DAY_MS),
    ]
    assert [str(one) for one in attempts.days_of(pa.array(times)).to_pylist()] == [
        row[1] for row in (tuple(row.values()) for row in found.to_pylist())
    ]


def test_unique_attempts_keeps_the_first_end_and_drops_known_ones(spark: SparkSession) -> None:
    batch = silver(
        spark,
        attempt(run_id="a", finished_ms=START_MS + 9),
        attempt(run_id="a", finished_ms=START_MS + 5),
        attempt(run_id="k"),
        attempt(run_id="k", source="other", finished_ms=START_MS + 1),
    )
    unique = batch.transform(attempts.unique_attempts(silver(spark, attempt(run_id="k"))))
    assert unique.columns == schemas.SILVER_ATTEMPTS.names
    assert rows_of(unique, "source", "run_id", "finished_ms") == [
        ("default", "a", START_MS + 5),
        ("other", "k", START_MS + 1),
    ]


# --- jobs -------------------------------------------------------------------------------------------------


def test_a_job_is_one_row_however_often_it_ran() -> None:
    rows = (
        attempt(
            job_id="j",
            run_id="1",
            outcome="retrying",
            error_class="E",
            finished_ms=START_MS + 50,
            duration_ms=5,
        ),
        attempt(
            job_id="j",
            run_id="2",
            attempt=2,
            delivery=2,
            finished_ms=START_MS + 90,
            started_ms=START_MS + 80,
            ready_ms=START_MS + 70,
            duration_ms=7,
        ),
        attempt(job_id="j", run_id="3", enqueued_ms=START_MS + 1_000),  # the id was used again
    )
    merged = jobs_of(*rows)
    assert merged.column_names == schemas.SILVER_JOBS.names
    names = ("enqueued_ms", "records", "attempts", "deliveries", "outcome", "final", "run_ms", "error_class")
    assert arrow_rows(merged, *names) == [
        (START_MS, 2, 2, 2, "completed", True, 12, None),
        (START_MS + 1_000, 1, 1, 1, "completed", True, 20, None),
    ]


def test_merging_jobs_again_gives_what_merging_at_once_gives() -> None:
    rows = [
        attempt(
            job_id="j", run_id=str(n), attempt=n, delivery=n, outcome="retrying", finished_ms=START_MS + n
        )
        for n in range(1, 5)
    ]
    late = job_rows.job_parts(make_table(schemas.SILVER_ATTEMPTS, rows[2:]))
    assert job_rows.merged_jobs(joined(late, jobs_of(*rows[:2]))).equals(jobs_of(*rows))


def test_a_job_cancelled_in_the_millisecond_of_its_failure_is_cancelled() -> None:
    rows = (
        attempt(job_id="j", run_id="t1", outcome="retrying"),
        attempt(job_id="j", run_id="end.1", attempt=0, outcome="cancelled", started_ms=None, wait_ms=None),
    )
    merged = jobs_of(*rows)
    assert arrow_rows(merged, "outcome", "final", "records", "attempts") == [("cancelled", True, 2, 1)]


# --- roll-ups ---------------------------------------------------------------------------------------------


@pytest.mark.feature("Q3", "Q9")
def test_minutes_count_outcomes_and_measure_waits_and_durations() -> None:
    rows = (
        attempt(finished_ms=MINUTE, wait_ms=3, duration_ms=10),
        attempt(finished_ms=MINUTE + 59_999, wait_ms=5, duration_ms=30, outcome="failed"),
        attempt(finished_ms=MINUTE + 60_000, outcome="retrying"),
        attempt(finished_ms=MINUTE, outcome="cancelled", wait_ms=None, duration_ms=None, started_ms=None),
        attempt(finished_ms=MINUTE, task="other"),
    )
    merged = rows_in(schemas.GOLD_MINUTE, *rows)
    names = ("window_start", "task", "attempts", "completed", "failed", "retried", "cancelled")
    assert arrow_rows(merged, *names) == [
        (MINUTE, "other", 1, 1, 0, 0, 0),
        (MINUTE, "send", 3, 1, 1, 0, 1),
        (MINUTE + 60_000, "send", 1, 0, 0, 1, 0),
    ]
    (first,) = (row for row in merged.to_pylist() if (row["window_start"], row["task"]) == (MINUTE, "send"))
    measured = ("wait_count", "wait_sum_ms", "wait_max_ms", "wait_avg_ms", "wait_p50_ms", "wait_p99_ms")
    assert [first[name] for name in measured] == [2, 8, 5, 4.0, 3.0, 5.0]
    assert first["duration_hist"] == h.as_entries([(10, 1), (30, 1)])


def test_nothing_measured_is_null_not_zero() -> None:
    nothing = attempt(outcome="cancelled", wait_ms=None, duration_ms=None)
    merged = rows_in(schemas.GOLD_DAY, nothing)
    names = ("attempts", "wait_count", "wait_max_ms", "wait_avg_ms", "wait_p95_ms", "wait_hist")
    assert arrow_rows(merged, *names) == [(1, 0, None, None, None, [])]
    twice = gold_rows.merged_rows(schemas.GOLD_DAY, joined(merged, merged))
    assert arrow_rows(twice, *names) == [(2, 0, None, None, None, [])]
    mixed = rows_in(schemas.GOLD_DAY, nothing, attempt(wait_ms=7, task="another"), nothing)
    assert arrow_rows(mixed, "task", "wait_p95_ms") == [("another", 7.0), ("send", None)]


@pytest.mark.feature("Q3", "Q9", "Q11")
def test_a_merged_day_is_within_two_percent_of_the_exact_percentiles() -> None:
    rng = random.Random(11)
    waits = [int(rng.lognormvariate(3, 2)) for _ in range(1_500)]
    rows = [
        attempt(finished_ms=DAY + n * 57_000 % DAY_MS, wait_ms=wait, duration_ms=wait * 3)
        for n, wait in enumerate(waits)
    ]
    early, late = (rows_in(schemas.GOLD_DAY, *rows[at::2]) for at in (0, 1))
    (day,) = gold_rows.merged_rows(schemas.GOLD_DAY, joined(late, early)).to_pylist()
    assert (day["attempts"], day["wait_sum_ms"], day["wait_max_ms"]) == (1_500, sum(waits), max(waits))
    assert day["wait_hist"] == h.as_entries(build(waits))
    for name, per_mille in h.PERCENTILES.items():
        for measure, factor in (("wait", 1), ("duration", 3)):
            exact = sorted(waits)[-(-1_500 * per_mille // 1000) - 1] * factor
            got = day[f"{measure}_{name}_ms"]
            assert got == exact if exact < 50 else abs(got - exact) <= 0.02 * exact


def test_an_attempt_counts_in_its_minute_its_hour_and_its_day() -> None:
    for grain, start in (("minute", MINUTE), ("hour", HOUR), ("day", DAY)):
        rows = rows_in(schemas.ROLLUPS[grain], attempt(finished_ms=START_MS))
        assert arrow_rows(rows, "window_start", "attempts") == [(start, 1)]


def test_windows_are_in_the_order_of_their_keys_whatever_the_order_of_attempts() -> None:
    keys = [
        (source, DAY + minute * 60_000, queue, task)
        for source in ("a", "b")
        for minute in (-1, 0, 1_439, 1_440)
        for queue in ("mail", "pdf")
        for task in ("send", "render", "Zoe", "\u00e9tude", "\U0001f600")
    ]
    rows = [
        attempt(source=source, finished_ms=start, queue=queue, task=task, wait_ms=n, duration_ms=n * 9)
        for n, (source, start, queue, task) in enumerate(keys)
    ]
    random.Random(3).shuffle(rows)
    found = rows_in(schemas.GOLD_MINUTE, *rows)
    assert [tuple(row.values()) for row in found.select(schemas.GOLD_MINUTE.keys).to_pylist()] == sorted(keys)
    first = rows_in(schemas.GOLD_MINUTE, *rows[::2])
    assert gold_rows.merged_rows(
        schemas.GOLD_MINUTE, joined(first, rows_in(schemas.GOLD_MINUTE, *rows[1::2]))
    ).equals(found)
    for row in found.to_pylist():
        n = keys.index(tuple(row[name] for name in schemas.GOLD_MINUTE.keys))
        assert row["wait_hist"] == h.as_entries(build([n]))
        assert row["duration_hist"] == h.as_entries(build([n * 9]))


def test_one_attempt_in_a_far_future_leaves_the_windows_of_all_others_as_they_are() -> None:
    """By their distance from it, windows of 300 sources would not fit into 64 bits."""
    far = 2**53 - 2**53 % DAY_MS
    ends = {7: far + DAY_MS - 1}
    rows = [
        attempt(source=f"s{n:03}", finished_ms=ends.get(n, DAY), wait_ms=n, date=date(2026, 1, 1))
        for n in range(300)
    ]
    for grain in ("minute", "day"):
        table = schemas.ROLLUPS[grain]
        found = rows_in(table, *rows)
        far_start = far if grain == "day" else far + DAY_MS - 60_000
        assert arrow_rows(found, "source", "window_start", "attempts", "wait_hist") == [
            (f"s{n:03}", far_start if n == 7 else DAY, 1, h.as_entries(build([n]))) for n in range(300)
        ]
        twice = gold_rows.merged_rows(table, joined(found, found))
        assert arrow_rows(twice, "source", "window_start") == arrow_rows(found, "source", "window_start")
        assert {*arrow_rows(twice, "attempts")} == {(2,)}


def test_stored_rows_of_gold_meet_new_ones_without_a_trace() -> None:
    rows = [
        attempt(
            wait_ms=n * 7,
            duration_ms=n or None,
            outcome="failed" if n % 3 else "completed",
            error_class="E" if n % 3 else None,
        )
        for n in range(9)
    ]
    rows += [attempt(task="rare", finished_ms=START_MS + DAY_MS), attempt(task="never", duration_ms=None)]
    for table in schemas.GOLD:
        early, late = (rows_in(table, *part) for part in (rows[:5], rows[5:]))
        assert gold_rows.merged_rows(table, joined(late, early)).equals(rows_in(table, *rows)), table.path


# --- errors, workers, backlog -----------------------------------------------------------------------------


def test_errors_of_one_fingerprint_are_one_row_a_day() -> None:
    rows = (
        attempt(
            run_id="1",
            job_id="a",
            error_class="E",
            error_fingerprint="f",
            outcome="retrying",
            finished_ms=START_MS,
        ),
        attempt(
            run_id="2",
            job_id="b",
            error_class="E",
            error_fingerprint="f",
            outcome="failed",
            finished_ms=START_MS + 5,
        ),
        attempt(run_id="3", error_class="TimedOut", error_fingerprint="", outcome="failed"),
        attempt(run_id="4"),
    )
    merged = rows_in(schemas.GOLD_ERRORS, *rows)
    assert merged.column_names == schemas.GOLD_ERRORS.names
    names = (
        "error_fingerprint",
        "error_class",
        "occurrences",
        "failed",
        "first_ms",
        "last_ms",
        "last_job_id",
    )
    assert [row[:6] for row in arrow_rows(merged, *names)] == [
        ("TimedOut", "TimedOut", 1, 1, START_MS + 30, START_MS + 30),
        ("f", "E", 2, 1, START_MS, START_MS + 5),
    ]
    again = gold_rows.merged_rows(schemas.GOLD_ERRORS, joined(merged, merged))
    assert sorted(row[0] for row in arrow_rows(again, "occurrences")) == [2, 4]


@pytest.mark.feature("Q7")
def test_workers_are_measured_by_the_hour() -> None:
    rows = (
        attempt(finished_ms=HOUR + 100, started_ms=HOUR, duration_ms=100),
        attempt(finished_ms=HOUR + 900, started_ms=HOUR + 500, duration_ms=None, outcome="stalled"),
        attempt(finished_ms=HOUR, worker=None, attempt=0, started_ms=None),
    )
    merged = rows_in(schemas.GOLD_WORKERS, *rows)
    assert merged.column_names == schemas.GOLD_WORKERS.names
    names = ("window_start", "worker", "attempts", "completed", "stalled", "busy_ms", "first_ms", "last_ms")
    assert arrow_rows(merged, *names) == [(HOUR, "w1", 2, 1, 1, 100, HOUR, HOUR + 900)]


@pytest.mark.feature("Q7")
def test_backlog_counts_arrivals_and_departures_by_the_minute() -> None:
    rows = (
        attempt(ready_ms=MINUTE, started_ms=MINUTE + 60_000, finished_ms=MINUTE + 200_000),
        attempt(ready_ms=MINUTE + 1, started_ms=None, finished_ms=MINUTE + 120_001, outcome="cancelled"),
    )
    merged = rows_in(schemas.GOLD_BACKLOG, *rows)
    assert merged.column_names == schemas.GOLD_BACKLOG.names
    assert arrow_rows(merged, "window_start", "ready", "departed", "wait_max_ms") == [
        (MINUTE, 2, 0, None),
        (MINUTE + 60_000, 0, 1, 60_000),
        (MINUTE + 120_000, 0, 1, 120_000),
    ]


# --- schemas ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", schemas.TABLES.values(), ids=lambda table: table.path)
def test_spark_and_arrow_schemas_say_the_same(table: schemas.TableSchema) -> None:
    assert table.spark.names == table.arrow.names == table.names
    assert set(table.keys) | set(table.ranged) <= set(table.names)
    assert "date" in table.names
    assert "schema_version" in table.names


def test_the_page_of_columns_is_that_of_the_tables() -> None:
    """``python -m tools.lake_columns > docs/lake-columns.md`` writes it anew."""
    root = Path(__file__).resolve().parents[2]
    assert (root / "docs" / "lake-columns.md").read_text(encoding="utf-8") == lake_columns.page()
