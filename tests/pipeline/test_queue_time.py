"""Queue time by cause: from the records of a store to the lake and its report."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.pipeline.support import START_MS, Bench, attempt, busy_day, fill_lake, make_table
from tests.pipeline.test_run import run, totals
from windlass.backend import requests as rq
from windlass.core.job import AttemptOutcome, AttemptRecord
from windlass.core.queue_time import QueueTime
from windlass.pipeline import schemas
from windlass.pipeline.arrow_records import attempts_batch
from windlass.pipeline.backfill import rebuild
from windlass.pipeline.gold import Gold
from windlass.pipeline.report import build_report, tables
from windlass.pipeline.sqlquery import connect
from windlass.pipeline.transforms import gold_rows
from windlass.pipeline.transforms.sql import engine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

backend_name = "sqlite"
COLUMNS = [f"{cause}_ms" for cause in schemas.CAUSES]


def record(version: int, wait_ms: int | None, queue_time: QueueTime | None) -> AttemptRecord:
    started_ms = None if wait_ms is None else START_MS + wait_ms
    return AttemptRecord(
        "run", "job", 1, 1, "mail", "send", None, (), "w1", START_MS, START_MS, started_ms, START_MS + 50,
        wait_ms, 5, AttemptOutcome.COMPLETED, None, None, version, queue_time=queue_time,
    )  # fmt: skip


@pytest.mark.feature("Q2", "Q11")
def test_an_attempt_has_a_column_for_each_cause() -> None:
    rows = attempts_batch(
        [
            record(3, 20, QueueTime(START_MS + 20, 1, 2, 3, 14)),
            record(3, 20, None),  # in line all the time
            record(3, None, None),  # it did not start
            record(2, 20, None),  # its store did not count
            record(3, -20, None),  # the clock was set back
        ]
    ).to_pylist()
    assert [[row[name] for name in COLUMNS] for row in rows] == [
        [1, 2, 3, 14],
        [0, 0, 0, 20],
        [None] * 4,
        [None] * 4,
        [0, 0, 0, 0],
    ]


@pytest.mark.feature("Q3")
def test_roll_ups_add_up_what_is_known() -> None:
    table, names = schemas.GOLD_DAY, [f"{cause}_sum_ms" for cause in schemas.CAUSES]
    known = [attempt(**dict(zip(COLUMNS, (1, 2, 3, 4 * n), strict=True))) for n in (1, 2)]
    parts = []
    for rows in (known[:1], known[1:], [attempt()]):
        attempts = make_table(schemas.SILVER_ATTEMPTS, rows)
        with engine(attempts=attempts) as connection:
            parts += gold_rows.attempt_rows(connection, attempts, [table])
    import pyarrow as pa

    sums = [[row[name] for name in names] for part in parts for row in part.to_pylist()]
    assert sums == [[1, 2, 3, 4], [1, 2, 3, 8], [None] * 4]
    (merged,) = gold_rows.merged_rows(table, pa.concat_tables(parts)).to_pylist()
    assert (merged["attempts"], [merged[name] for name in names]) == (3, [2, 4, 6, 12])


def waited(bench: Bench) -> Counter[tuple[str, str]]:
    """By queue and cause: what the records of the store say, in milliseconds."""
    found: Counter[tuple[str, str]] = Counter()
    for queue in ("mail", "pdf"):
        for one in bench.ask(rq.ReadHistory(queue=queue, limit=100_000)).records:
            time = one.queue_time or QueueTime(0, in_line_ms=one.wait_ms or 0)
            for cause in schemas.CAUSES:
                found[queue, cause] += getattr(time, f"{cause}_ms")
    return found


def in_lake(lake: Path, view: str, names: list[str]) -> Counter[tuple[str, str]]:
    sums = ", ".join(f"sum({name})" for name in names)
    found: Counter[tuple[str, str]] = Counter()
    with connect(str(lake)) as connection:
        for queue, *values in connection.execute(f"SELECT queue, {sums} FROM {view} GROUP BY 1").fetchall():
            found.update({(queue, cause): value for cause, value in zip(schemas.CAUSES, values, strict=True)})
    return found


def without_causes(table: schemas.TableSchema) -> schemas.TableSchema:
    """A table as the release before made it."""
    new = {*COLUMNS, *(f"{cause}_sum_ms" for cause in schemas.CAUSES)}
    columns = tuple(column for column in table.columns if column.name not in new)
    return schemas.TableSchema(table.path, columns, table.keys, table.ranged, table.chunk_ms)


@pytest.mark.feature("Q2", "Q3", "Q11")
def test_a_lake_of_the_release_before_gets_the_columns_and_totals_equal_the_store(
    spark: SparkSession, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = tmp_path / "lake"
    old: dict[str, Any] = {path: without_causes(table) for path, table in schemas.TABLES.items()}
    row = attempt(finished_ms=START_MS, queue="pdf", task="render", run_id="old")
    with monkeypatch.context() as before:
        for path, table in old.items():
            before.setitem(schemas.TABLES, path, table)
        bronze = schemas.BRONZE_ATTEMPTS.path
        before.setattr("windlass.pipeline.lake.BRONZE_ATTEMPTS", old[bronze])  # it has the id of the lake
        wanted = (schemas.BRONZE_ATTEMPTS, schemas.SILVER_ATTEMPTS)
        fill_lake(str(lake), {table: make_table(old[table.path], [row]) for table in wanted})
    busy_day(bench, rounds=2)
    pipeline = run(spark, bench, lake, max_records=40)
    want = waited(bench)
    assert all(want["mail", cause] > 0 for cause in ("scheduled", "in_line"))
    sums = [f"{cause}_sum_ms" for cause in schemas.CAUSES]
    assert in_lake(lake, "attempts", COLUMNS) == want
    for view in ("minute", "hour", "day"):
        assert in_lake(lake, view, sums) == want, view
    with connect(str(lake)) as connection:
        (found,) = connection.execute(
            f"SELECT {', '.join(COLUMNS)} FROM attempts WHERE run_id = 'old'"
        ).fetchall()
    assert found == (None,) * 4
    rebuild(spark, pipeline.lake)
    assert in_lake(lake, "day", sums) == want
    assert totals(lake, "day") == bench.counters() + Counter({("pdf", "render", "completed"): 1})


@pytest.mark.feature("Q3")
def test_the_report_shows_what_attempts_waited_for(spark: SparkSession, bench: Bench, tmp_path: Path) -> None:
    bench.add("mail", ["a"], task="send", delay_ms=30_000)
    bench.pass_ms(30_000)
    bench.work("mail", wait_ms=2_000)
    run(spark, bench, tmp_path / "lake")
    report = build_report(Gold(str(tmp_path / "lake")), None, None)
    (found,) = (cells for title, _, cells in tables(report) if title.startswith("Queue time"))
    assert found == [["mail", "send", "30 s", "0 ms", "0 ms", "2 s"]]
