"""Jobs that are alive, or left no record: seen once a day, counted by no total, never twice."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from tests.pipeline.support import DATE, START_MS, Bench, attempt, fill_lake, make_table, store_url
from tests.pipeline.test_run import contents, run, totals
from windlass.backend import requests as rq
from windlass.cli.pipeline import command
from windlass.core.clock import SYSTEM_CLOCK
from windlass.core.job import ErrorInfo, JobRecord, JobRef
from windlass.core.options import StoredOptions
from windlass.core.outcome import Outcome
from windlass.core.probe import Action
from windlass.core.states import JobState
from windlass.pipeline import schemas
from windlass.pipeline.backfill import DayRebuild, rebuild
from windlass.pipeline.compact import vacuum
from windlass.pipeline.erase import Erased, erase
from windlass.pipeline.gold import Gold
from windlass.pipeline.job_snapshot import is_due, take_snapshot
from windlass.pipeline.lake import Lake, LakeTakenError, snapshot_of
from windlass.pipeline.lake_batch import plan_batch, run_batch
from windlass.pipeline.payloads import Payloads
from windlass.pipeline.report import build_report, tables, to_html
from windlass.pipeline.run import Pipeline, RunOptions
from windlass.pipeline.sqlquery import query
from windlass.pipeline.transforms.job_rows import job_parts, merged_jobs
from windlass.pipeline.transforms.snapshots import snapshot_parts, snapshot_rows
from windlass.pipeline.workbench import Workbench
from windlass.testing.faults import probing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STATES = "job_id, state, outcome, final, records, seen_ms IS NOT NULL"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A store by the clock of the machine, which snapshots go by."""
    with Bench(store_url("sqlite", tmp_path)) as bench:
        bench.now_ms = SYSTEM_CLOCK.now_ms()
        yield bench


def states(lake: Path | str) -> list[tuple[Any, ...]]:
    return query(str(lake), f"SELECT {STATES} FROM jobs ORDER BY ALL").rows


def alive_store(bench: Bench) -> None:
    """Jobs in several states: one completed, one to be retried, others that never ran."""
    bench.add("mail", ["done", "again"])
    first, second = bench.claim("mail")
    bench.settle([first], Outcome.COMPLETE, duration_ms=1)
    bench.settle([second], Outcome.RETRY, delay_ms=60_000, error=ErrorInfo(error_class="E", message="no"))
    bench.add("mail", ["new"], tags=("vip",), group="g")
    bench.add("mail", ["later"], delay_ms=3_600_000)


ALIVE = [
    ("again", "retrying", "retrying", False, 1, True),
    ("done", "completed", "completed", True, 1, False),
    ("later", "scheduled", None, False, 0, True),
    ("new", "waiting", None, False, 0, True),
]


@pytest.mark.feature("Q11")
def test_jobs_has_every_job_that_was_seen(spark: SparkSession, bench: Bench, tmp_path: Path) -> None:
    alive_store(bench)
    lake = tmp_path / "lake"
    pipeline = run(spark, bench, lake)
    assert states(lake) == ALIVE
    assert query(str(lake), "SELECT tags, \"group\", task FROM jobs WHERE job_id = 'new'").rows == [
        (["vip"], "g", "work")
    ]
    assert totals(lake, "attempts") == totals(lake, "day") == bench.counters()
    assert pipeline.take_daily_snapshot() is None  # it was taken today

    # Two end, which the log says.
    bench.now_ms = SYSTEM_CLOCK.now_ms()
    bench.work("mail")
    bench.ask(rq.RemoveJobs(refs=[JobRef("mail", "later")]))
    pipeline.run_once()
    want = [
        *ALIVE[:2],
        ("later", "cancelled", "cancelled", True, 1, True),
        ("new", "completed", "completed", True, 1, True),
    ]
    assert states(lake) == want

    taken = pipeline.take_snapshot()
    assert (taken.jobs, taken.fresh) == (3, 0)
    assert states(lake) == want
    assert [(row["state"], row["jobs"]) for row in Gold(str(lake)).alive()] == [("retrying", 1)]
    before = contents(lake)
    rebuild(spark, pipeline.lake)
    assert contents(lake) == before
    assert totals(lake, "attempts") == totals(lake, "day") == bench.counters()

    # All jobs are gone, with their store: they stay as they were seen last, and none is alive.
    with Bench(f"sqlite:///{tmp_path / 'empty.db'}") as empty:
        taken = take_snapshot(spark, pipeline.lake, empty.url, "default", SYSTEM_CLOCK.now_ms())
    assert (taken.jobs, states(lake)) == (0, want)
    assert Gold(str(lake)).alive() == []


def test_a_snapshot_that_dies_leaves_nothing_and_is_taken_by_the_next_run(
    spark: SparkSession, bench: Bench, tmp_path: Path
) -> None:
    class Crash(BaseException):
        pass

    def crash(point: str, facts: dict[str, Any]) -> None:
        if facts.get("table") in (None, "silver/jobs"):
            raise Crash(point)

    alive_store(bench)
    lake = tmp_path / "lake"
    run(spark, bench, lake, snapshot=False)
    before = states(lake)
    assert [row[0] for row in before] == ["again", "done"]
    for point in ("pipeline.seen", "lake.commit"):
        with probing() as probe, pytest.raises(Crash):
            probe.arm(point, crash)
            run(spark, bench, lake)
        assert states(lake) == before
    with probing() as probe, pytest.raises(Crash):
        probe.arm("lake.committed", crash)
        run(spark, bench, lake)
    assert states(lake) == ALIVE
    assert run(spark, bench, lake).take_daily_snapshot() is None
    assert states(lake) == ALIVE
    assert totals(lake, "attempts") == totals(lake, "day") == bench.counters()


def test_jobs_that_are_listed_by_many_tasks_come_out_the_same(
    spark: SparkSession, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from windlass.pipeline import job_snapshot

    alive_store(bench)
    small, large = tmp_path / "small", tmp_path / "large"
    run(spark, bench, small).take_snapshot()
    monkeypatch.setattr(job_snapshot, "LARGE", 0)
    monkeypatch.setattr(job_snapshot, "PER_MERGE", 2)
    run(spark, bench, large).take_snapshot()
    assert contents(large)["silver/jobs"] == contents(small)["silver/jobs"]


def test_an_erased_job_is_not_seen_again(spark: SparkSession, bench: Bench, tmp_path: Path) -> None:
    alive_store(bench)
    lake = tmp_path / "lake"
    pipeline = run(spark, bench, lake, payloads=True)
    assert query(str(lake), "SELECT count(*) FROM jobs WHERE args->>'arg0' = '1'").rows == [(4,)]
    assert erase(Lake(str(lake)).open(), "job_id IN ('new', 'again')") == Erased(2, 1)
    left = [row for row in states(lake) if row[0] in ("done", "later")]
    assert states(lake) == left
    vacuum(Lake(str(lake)).open(), 0)
    texts = [path.read_text() for path in lake.rglob("_delta_log/*.json")]
    assert texts and not any('"new"' in text for text in texts)
    pipeline.lake.refresh()
    taken = pipeline.take_snapshot()
    assert (taken.jobs, states(lake)) == (2, left)
    rebuild(spark, pipeline.lake)
    pipeline.take_snapshot()
    assert states(lake) == left
    assert query(str(lake), "SELECT count(*), count(DISTINCT job_hash) FROM erased_jobs").rows == [(2, 2)]


def test_the_command_lists_and_the_report_shows_what_is_alive(
    spark: SparkSession, bench: Bench, tmp_path: Path
) -> None:
    bench.add("mail", ["a", "b"])
    bench.add("pdf", ["c"], delay_ms=3_600_000)
    lake = str(tmp_path / "lake")

    def invoke(*arguments: str) -> Any:
        result = CliRunner(env={"COLUMNS": "120"}).invoke(command, [*arguments, "--lake", lake])
        assert result.exit_code == 0, result.output
        return result

    said = json.loads(invoke("snapshot", "--url", bench.url, "--json").stdout)
    assert (said["jobs"], said["fresh"]) == (3, 3)
    shown = json.loads(invoke("report", "--json").stdout)["alive"]
    assert [(row["queue"], row["state"], row["jobs"]) for row in shown] == [
        ("mail", "waiting", 2),
        ("pdf", "scheduled", 1),
    ]
    report = build_report(Gold(lake), None, None)
    (title, head, cells) = tables(report)[-1]
    assert title.startswith("Jobs alive") and head == ("queue", "state", "jobs")
    assert cells == [["mail", "waiting", "2"], ["pdf", "scheduled", "1"]]
    assert "Jobs alive" in to_html(report) and "scheduled" in to_html(report)
    assert "Jobs alive" in invoke("report").output
    assert "silver/erased_jobs" in invoke("status").output


# --- without Spark ----------------------------------------------------------------------------------------


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Stands where a session does; tasks run in this process."""
    monkeypatch.setattr(Workbench, "run", lambda self, tasks: [task() for task in tasks])
    return SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=1))


def before_commits_to(table: schemas.TableSchema, action: Callable[[], Any], times: int = 1) -> Action:
    """An action for ``lake.commit``: something else happens first, a few times, of which this is no part."""
    left = [table.path] * times

    def act(point: str, facts: dict[str, Any]) -> None:
        if facts["table"] in left:
            again, left[:] = left[1:], []  # commits of the action itself pass
            action()
            left[:] = again

    return act


def test_a_snapshot_during_a_batch_gives_no_job_a_second_row(
    no_spark: Any, bench: Bench, tmp_path: Path
) -> None:
    alive_store(bench)
    lake = str(tmp_path / "lake")
    Lake(lake).create()

    def snapshot() -> None:
        take_snapshot(no_spark, Lake(lake).open(), bench.url, "default", SYSTEM_CLOCK.now_ms())

    with probing() as probe:
        probe.arm("lake.commit", before_commits_to(schemas.SILVER_JOBS, snapshot), times=99)
        run(no_spark, bench, lake, snapshot=False)
    assert [row[0] for row in states(lake)] == ["again", "done", "later", "new"]
    assert [row[4] for row in states(lake)] == [1, 1, 0, 0]


def test_a_store_is_listed_once_however_often_other_sources_commit_first(
    no_spark: Any, bench: Bench, tmp_path: Path
) -> None:
    alive_store(bench)
    lake = str(tmp_path / "lake")
    pipeline, other = run(no_spark, bench, lake, snapshot=False), Lake(lake).open()

    def add() -> None:
        other.commit(schemas.SILVER_JOBS, [], batches={"other": other.done(schemas.SILVER_JOBS, "other") + 1})

    with probing() as probe:
        probe.arm("lake.commit", before_commits_to(schemas.SILVER_JOBS, add, times=3), times=99)
        pipeline.take_snapshot()
        assert probe.count("pipeline.seen") == 1
    assert (states(lake), other.done(schemas.SILVER_JOBS, "other")) == (ALIVE, 3)


def test_jobs_that_are_erased_during_a_snapshot_stay_away(
    no_spark: Any, bench: Bench, tmp_path: Path
) -> None:
    alive_store(bench)
    lake = str(tmp_path / "lake")
    pipeline = run(no_spark, bench, lake, snapshot=False)

    def forget() -> None:
        assert erase(Lake(lake).open(), "job_id = 'again'") == Erased(1, 1)

    with probing() as probe:
        probe.arm("lake.commit", before_commits_to(schemas.SILVER_JOBS, forget), times=99)
        pipeline.take_snapshot()
        assert probe.count("pipeline.seen") == 2
    assert states(lake) == ALIVE[1:]


def test_a_run_whose_snapshot_always_comes_second_continues_and_takes_it_later(
    no_spark: Any, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from windlass.pipeline import job_snapshot

    monkeypatch.setattr(job_snapshot, "TRIES", 2)
    alive_store(bench)
    lake = str(tmp_path / "lake")
    run(no_spark, bench, lake, snapshot=False)
    pipeline = Pipeline(no_spark, RunOptions(url=bench.url, lake=lake))
    pipeline.open()
    other = Lake(lake).open()

    def add() -> None:
        other.commit(schemas.SILVER_JOBS, [])

    with probing() as probe:
        probe.arm("lake.commit", before_commits_to(schemas.SILVER_JOBS, add, times=99), times=99)
        assert pipeline.take_daily_snapshot() is None
        with pytest.raises(LakeTakenError, match="other runs committed first"):
            pipeline.take_snapshot()
    assert pipeline.take_daily_snapshot() is not None
    assert states(lake) == ALIVE


def test_a_job_whose_end_is_not_in_its_row_is_final_after_the_next_snapshot(
    no_spark: Any, bench: Bench, tmp_path: Path
) -> None:
    """One was seen by a clock that was ahead, so its record seems older; the record of the other is lost."""
    bench.add("mail", ["ahead"])
    bench.add("pdf", ["lost"])
    lake = str(tmp_path / "lake")
    pipeline = run(no_spark, bench, lake, snapshot=False)
    take_snapshot(no_spark, pipeline.lake, bench.url, "default", bench.now_ms + 3_600_000)
    bench.work("mail", "pdf")
    plan = plan_batch(bench.url, {}, 1_000)
    gap = replace(plan, start={**plan.start, "pdf": plan.end["pdf"]})
    run_batch(no_spark, pipeline.lake, bench.url, "default", gap)
    assert states(lake) == [
        ("ahead", "waiting", "completed", False, 1, True),
        ("lost", "waiting", None, False, 0, True),
    ]
    want = [
        ("ahead", "completed", "completed", True, 1, True),
        ("lost", "completed", "completed", True, 0, True),
    ]
    assert pipeline.take_snapshot().fresh == 0
    assert states(lake) == want
    before = pipeline.lake.entries(schemas.SILVER_JOBS)
    pipeline.take_snapshot()
    assert (states(lake), pipeline.lake.entries(schemas.SILVER_JOBS)) == (want, before)  # nothing to do


def test_a_backfill_stops_when_a_day_that_had_no_files_changes(no_spark: Any, tmp_path: Path) -> None:
    lake, other = fill_lake(str(tmp_path), {}), Lake(str(tmp_path)).open()

    def add() -> None:
        other.commit(schemas.GOLD[0], [], batches={"other": 1})

    with probing() as probe, pytest.raises(LakeTakenError, match="start backfill again"):
        probe.arm("lake.commit", before_commits_to(schemas.GOLD[0], add), times=99)
        DayRebuild(no_spark, lake, DATE, lake.sources()).gold()


def record(id: str = "j", state: JobState = JobState.WAITING, **given: Any) -> JobRecord:
    return JobRecord(
        queue="mail", id=id, task="send", payload=b"{}", state=state, enqueued_ms=START_MS, **given
    )


def seen(at_ms: int, *records: JobRecord, **options: Any) -> pa.Table:
    return snapshot_rows(records, "default", at_ms, **options)


def ran(at_ms: int, outcome: str = "completed", **given: Any) -> pa.Table:
    row = attempt(job_id="j", run_id=f"run-at-{at_ms}", outcome=outcome, finished_ms=at_ms, **given)
    return job_parts(make_table(schemas.SILVER_ATTEMPTS, [row]))


def merged(*rows: pa.Table) -> dict[str, Any]:
    found: list[dict[str, Any]] = merged_jobs(pa.concat_tables(rows)).to_pylist()
    (row,) = found
    return row


def test_a_record_that_is_newer_than_the_snapshot_says_how_the_job_stands() -> None:
    job = merged(seen(START_MS + 10, record()), ran(START_MS + 20))
    assert (job["state"], job["outcome"], job["final"], job["records"]) == ("completed", "completed", True, 1)
    assert (job["seen_ms"], job["finished_ms"]) == (START_MS + 10, START_MS + 20)
    job = merged(seen(START_MS + 10, record()), ran(START_MS + 20, "retrying"))
    assert (job["state"], job["final"]) == (None, False)  # it waits, or runs again by now
    assert merged(ran(START_MS, "expired"))["state"] == "failed"


def test_a_snapshot_that_is_newer_than_the_record_says_how_the_job_stands() -> None:
    due = record(state=JobState.SCHEDULED, due_ms=START_MS + 99)
    job = merged(ran(START_MS + 20, "failed"), seen(START_MS + 30, due))
    assert (job["state"], job["due_ms"], job["outcome"], job["final"]) == (
        "scheduled",
        START_MS + 99,
        "failed",
        False,
    )
    assert (job["records"], job["finished_ms"]) == (1, START_MS + 20)


def test_of_two_sights_the_later_one_counts() -> None:
    both = seen(START_MS, record()), seen(START_MS, record(state=JobState.ACTIVE, worker="w"))
    assert merged(*both)["state"] == merged(*reversed(both))["state"] == "active"
    failed = record(state=JobState.FAILED, finished_ms=START_MS + 5)
    job = merged(seen(START_MS + 9, record()), seen(START_MS + 6, failed))  # retried by hand in between
    assert (job["state"], job["outcome"], job["finished_ms"], job["final"]) == ("waiting", None, None, False)


def test_a_job_that_ended_before_the_log_begins_has_its_outcome_from_the_store() -> None:
    failed = record(
        state=JobState.FAILED,
        finished_ms=START_MS + 5,
        errors=[ErrorInfo(error_class="E", message="pin=123", fingerprint="f", brief="pin=[masked]")],
        options=StoredOptions(group="g", tags=("t",), max_attempts=9),
    )
    job = merged(seen(START_MS + 9, failed, payloads=Payloads()))
    assert (job["outcome"], job["final"], job["records"], job["attempts"]) == ("failed", True, 0, 0)
    assert (job["error_message"], job["group"], job["tags"], job["max_attempts"]) == (
        "pin=[masked]",
        "g",
        ["t"],
        9,
    )
    assert (job["args"], job["args_bytes"], job["last_run_id"]) == ("{}", 2, None)


def test_order_does_not_matter_and_backfill_finds_the_same() -> None:
    parts = [ran(START_MS + 20, "retrying"), seen(START_MS + 30, record()), ran(START_MS + 40, "failed")]
    want = merged_jobs(pa.concat_tables(parts))
    for at in range(3):
        rest = [part for n, part in enumerate(parts) if n != at]
        again = merged_jobs(pa.concat_tables([merged_jobs(pa.concat_tables(rest)), parts[at]]))
        assert again.equals(want)
    stored = snapshot_parts(want)
    assert (stored.column("records")[0].as_py(), stored.column("seen_ms")[0].as_py()) == (0, START_MS + 30)
    assert merged_jobs(pa.concat_tables([stored, parts[0], parts[2]])).equals(want)
    assert snapshot_parts(merged_jobs(parts[0])).num_rows == 0


def test_a_snapshot_is_due_once_a_day(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path)).create()
    day = 86_400_000
    assert is_due(lake, "default", START_MS)
    lake.commit(schemas.SILVER_JOBS, [], batches={snapshot_of("default"): START_MS})
    midnight = START_MS - START_MS % day + day
    assert not is_due(lake, "default", midnight - 1)
    assert is_due(lake, "default", midnight)
    assert is_due(lake, "other", START_MS)


def test_a_lake_of_an_earlier_release_takes_jobs_without_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no table of erased jobs, and columns that were never null."""
    root, table = str(tmp_path / "lake"), schemas.SILVER_JOBS
    nullable = {"first_ready_ms", "finished_ms", "outcome", "last_run_id"}
    columns = tuple(
        column._replace(nullable=column.nullable and column.name not in nullable)
        for column in table.columns
        if column.name not in ("state", "due_ms", "seen_ms")
    )
    with monkeypatch.context() as earlier:
        earlier.delitem(schemas.TABLES, schemas.SILVER_ERASED_JOBS.path)
        earlier.setitem(
            schemas.TABLES, table.path, schemas.TableSchema(table.path, columns, table.keys, table.ranged)
        )
        fill_lake(root, {table: ran(START_MS)})
    reading = Lake(root).open().level()
    assert reading.entries(schemas.SILVER_ERASED_JOBS) == []
    assert query(root, "SELECT count(*) FROM erased_jobs").rows == [(0,)]
    assert not (tmp_path / "lake" / "silver" / "erased_jobs").exists()
    newer = Lake(root).create()
    fields = {field.name: field.nullable for field in newer.delta(table).schema().fields}
    assert {name for name in nullable if fields[name]} == nullable
    assert {"state", "due_ms", "seen_ms"} <= fields.keys()
    assert (tmp_path / "lake" / "silver" / "erased_jobs" / "_delta_log").exists()
    assert query(root, "SELECT job_id, outcome, state FROM jobs").rows == [("j", "completed", None)]
    assert [newer.done(one, "default") for one in schemas.BATCHED] == [1] * len(schemas.BATCHED)
