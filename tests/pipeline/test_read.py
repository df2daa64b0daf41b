"""Reading a lake without a JVM: gold, SQL, the report and its page, replay, and the commands."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from click.testing import CliRunner, Result

from tests.pipeline.support import START_MS, Bench, busy_day, fill_lake
from tests.pipeline.test_run import run, totals
from windlass.backend import requests as rq
from windlass.cli.pipeline import command
from windlass.core.job import AttemptRecord, JobRef, NewJob, error_info
from windlass.core.outcome import Outcome
from windlass.core.states import JobState
from windlass.dashboard import create_app
from windlass.errors import ConfigError, HistoryTrimmedError
from windlass.pipeline import schemas
from windlass.pipeline.arrow_records import attempts_batch
from windlass.pipeline.gold import Gold
from windlass.pipeline.lake import Lake
from windlass.pipeline.lake_batch import write_literal
from windlass.pipeline.replay import replay, select_failed
from windlass.pipeline.report import build_report, show_ms, to_html
from windlass.pipeline.sqlquery import query, query_spark
from windlass.pipeline.status import note_failure
from windlass.pipeline.transforms.attempts import as_bronze
from windlass.pipeline.transforms.grains import GRAIN_MS
from windlass.pipeline.transforms.job_rows import job_parts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

backend_name = "sqlite"


@pytest.fixture(scope="module")
def filled(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Bench, Path]]:
    """A store with some history and a lake that holds it."""
    folder = tmp_path_factory.mktemp("filled")
    with Bench(f"sqlite:///{folder / 'jobs.db'}") as bench:
        busy_day(bench, rounds=2)
        run(spark, bench, folder / "lake")
        yield bench, folder / "lake"


def invoke(*arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "160"}).invoke(command, [str(argument) for argument in arguments])


# --- gold -------------------------------------------------------------------------------------------------


@pytest.mark.feature("Q3", "Q4", "Q9", "Q11")
def test_gold_is_read_without_spark(filled: tuple[Bench, Path]) -> None:
    bench, lake = filled
    gold = Gold(str(lake))
    by_task = {(row["queue"], row["task"]): row for row in gold.totals("minute")}
    days = {(row["queue"], row["task"]): row for row in gold.totals("day")}
    assert by_task == days  # minutes add up to days, percentiles and all
    for (queue, task, outcome), count in bench.counters().items():
        assert by_task[queue, task][schemas.OUTCOME_COLUMNS[outcome]] == count
    assert by_task["mail", "send"]["duration_p50_ms"] is not None
    hour = START_MS - START_MS % GRAIN_MS["hour"]
    (first, *_) = gold.rollups("hour", hour, hour + GRAIN_MS["hour"], queue="mail")
    assert (first["window_start"], first["queue"]) == (hour, "mail")
    assert gold.rollups("day", 0, 1) == []


async def test_the_dashboard_draws_gold(filled: tuple[Bench, Path]) -> None:
    _, lake = filled
    guard = create_app(f"memory://gold-{lake.parent.name}", lake=str(lake))
    day = GRAIN_MS["day"]
    first = START_MS - START_MS % day
    span = f"step=day&from_ms={first}&to_ms={first + 2 * day}"
    async with httpx.AsyncClient(transport=httpx.ASGITransport(guard), base_url="http://127.0.0.1") as client:
        answer = await client.get(f"/api/job-metrics/series?queue=mail&job_class=send&{span}")
        assert (await client.get("/api/session")).json()["lake"] is True
    await guard.store_view.app.close()
    series = answer.json()
    rows = [row for row in Gold(str(lake)).totals("day") if (row["queue"], row["task"]) == ("mail", "send")]
    assert series["source"] == "lake"
    assert [point["start_ms"] for point in series["points"]] == [first, first + day]
    assert sum(point["completed"] for point in series["points"]) == rows[0]["completed"] > 0
    assert series["points"][0]["duration_p95_ms"] == rows[0]["duration_p95_ms"]


def troubled_lake(bench: Bench, root: str) -> Lake:
    """A lake that lacks one of two records, lost three, and whose last run failed."""
    bench.add("mail", ["a", "b"])
    bench.work("mail")
    lake = lake_of_records(root, bench.ask(rq.ReadHistory(queue="mail")).records[:1])
    bench.ask_now(rq.Archive(name=lake.archiver, cursors={"mail": 1}))
    gap = {"source": "default", "batch": 1, "queue": "mail", "after": 4, "until": 7, "seen_ms": START_MS}
    day = datetime.fromtimestamp(START_MS / 1000, UTC).date()
    lake.commit(schemas.BRONZE_GAPS, write_literal(lake.place, schemas.BRONZE_GAPS, [{**gap, "date": day}]))
    note_failure(lake, "default", HistoryTrimmedError("history", "mail", 4, 8))
    return lake


def test_the_dashboard_says_how_far_behind_the_lake_is(bench: Bench, tmp_path: Path) -> None:
    root = str(tmp_path / "lake")
    troubled_lake(bench, root)

    async def look() -> tuple[dict[str, Any], dict[str, Any]]:
        guard = create_app(bench.url, lake=root)
        transport = httpx.ASGITransport(guard)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            health = await client.get("/api/v1/health")
            series = await client.get("/api/v1/metrics")
        await guard.store_view.app.close()
        return health.json(), series.json()

    health, series = asyncio.run(look())
    state = health["lake"]
    assert (state["behind"], state["lost"], state["attempts"]) == (1, 3, 1)
    assert [(one["source"], one["read_ms"]) for one in state["sources"]] == [("default", START_MS)]
    assert state["sources"][0]["newest_ms"] == bench.now_ms
    assert state["failure"]["error"] == "HistoryTrimmedError"
    found = [finding for finding in health["findings"] if finding["check"] == "pipeline"]
    assert [finding["level"] for finding in found] == ["problem", "warning"]
    assert "lacks 1 record" in found[1]["text"] and found[1]["count"] == 1
    assert (series["source"], series["lake"]) == ("lake", state)


async def test_the_dashboard_says_that_a_lake_cannot_be_read(tmp_path: Path) -> None:
    guard = create_app(f"memory://{tmp_path.name}", lake=str(tmp_path / "none"))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(guard), base_url="http://127.0.0.1") as client:
        health = (await client.get("/api/v1/health")).json()
    await guard.store_view.app.close()
    assert [finding["text"] for finding in health["findings"]] == [
        "the lake cannot be read, or does not answer"
    ]
    assert health["lake"]["behind"] is None


# --- SQL --------------------------------------------------------------------------------------------------


@pytest.mark.feature("Q11")
def test_sql_sees_every_table(filled: tuple[Bench, Path], spark: SparkSession) -> None:
    bench, lake = filled
    want = sum(bench.counters().values())
    sql = "SELECT count(*) AS n FROM attempts"
    assert query(str(lake), sql) == query_spark(spark, str(lake), sql) == (["n"], [(want,)])
    assert query(str(lake), "SELECT sum(attempts) FROM day").rows == [(want,)]
    assert query(str(lake), "SELECT count(*) FROM gaps").rows == [(0,)]
    assert query(str(lake), "SELECT min(waiting), max(waiting) > 0 FROM backlog").rows == [(0, True)]
    ((p99,),) = query(
        str(lake), "SELECT hist_percentile(duration_hist, 990) FROM day WHERE task = 'send' LIMIT 1"
    ).rows
    assert p99 > 0
    with pytest.raises(ConfigError, match="attempts, jobs"):
        query(str(lake), "SELECT * FROM nothing")


# --- report -----------------------------------------------------------------------------------------------


class _Checker(HTMLParser):
    """Counts tags, and finds what would be fetched from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.outside += [str(v) for k, v in attrs if k in ("src", "href") or "http" in (v or "")]


@pytest.mark.feature("Q3", "Q4", "Q9")
def test_the_page_holds_charts_and_fetches_nothing(filled: tuple[Bench, Path]) -> None:
    report = build_report(Gold(str(filled[1])), None, None)
    page = to_html(report)
    checker = _Checker()
    checker.feed(page)
    assert checker.tags.count("svg") == 5
    assert checker.tags.count("table") == 4
    assert checker.outside == []
    assert "NaN" not in page and "None" not in re.sub(r"<style>.*?</style>", "", page)
    assert report.total["attempts"] == sum(filled[0].counters().values())
    assert sum(row.get("attempts", 0) for row in report.over_time) == report.total["attempts"]


def test_names_in_the_page_are_escaped(filled: tuple[Bench, Path]) -> None:
    report = build_report(Gold(str(filled[1])), None, None)
    report.by_task[0]["task"] = "<script>alert(1)</script>"
    assert "<script>" not in to_html(report)


def test_an_empty_period_says_so(filled: tuple[Bench, Path]) -> None:
    report = build_report(Gold(str(filled[1])), 0, 1_000)
    assert report.is_empty
    assert "No attempts" in to_html(report)


def test_the_report_says_how_the_lake_stands(bench: Bench, tmp_path: Path) -> None:
    lake, page = troubled_lake(bench, str(tmp_path / "lake")).url, tmp_path / "report.html"
    shown = invoke("report", "--lake", lake, "--html", page)
    assert shown.exit_code == 0, shown.output
    for text in (" ".join(shown.output.split()), page.read_text()):
        assert "default: batch 1 read 2023-11-14 22:13" in text
        assert "1 attempt of 1 job" in text
        assert "3 records were lost unread, in 1 gap" in text
        assert "last failure of default" in text and "HistoryTrimmedError" in text
    status = json.loads(invoke("report", "--lake", lake, "--json").stdout)["lake"]
    assert (status["lost"], status["last_failure"]["is_over"]) == (3, False)


def test_spans_are_shown_in_fitting_units() -> None:
    shown = [show_ms(value) for value in (None, 3, 999, 1_500, 300_000, 9_000_000)]
    assert shown == ["-", "3 ms", "999 ms", "1.5 s", "5 min", "2.5 h"]


# --- replay -----------------------------------------------------------------------------------------------


def test_replay_into_the_wrong_store_says_so(filled: tuple[Bench, Path], tmp_path: Path) -> None:
    _, lake = filled
    with Bench(f"sqlite:///{tmp_path / 'other.db'}") as other:
        assert other.counters() == {}  # makes the file
        asked = ("replay", "--url", other.url, "--lake", lake, "--where", "queue = 'mail'", "--dry-run")
        assert "is --url the store of source 'default'?" in invoke(*asked).stderr
    missing = invoke("replay", "--url", f"sqlite:///{tmp_path}/none.db", "--lake", lake, "--where", "true")
    assert missing.exit_code == 1 and "there is no database at" in missing.stderr
    assert not (tmp_path / "none.db").exists()


@pytest.mark.feature("Q11")
def test_replay_retries_what_is_still_there_and_reports_the_rest(
    spark: SparkSession, bench: Bench, tmp_path: Path
) -> None:
    busy_day(bench, rounds=1)
    lake = str(tmp_path / "lake")
    run(spark, bench, Path(lake))
    failed = select_failed(lake, "queue = 'mail' AND error_class = 'KeyError'")
    assert len(failed) == bench.counters()["mail", "send", "failed"] > 2
    assert select_failed(lake, "queue = 'pdf'") == []
    gone, reused, *rest = failed
    bench.ask_now(rq.RemoveJobs(refs=[JobRef(gone.queue, gone.job_id), JobRef(reused.queue, reused.job_id)]))
    bench.add("mail", [reused.job_id], task="send")
    dry = replay(bench.url, failed, dry_run=True)
    done = replay(bench.url, failed)
    assert dry == done
    assert (done.retried, done.pruned, done.changed) == (rest, [gone], [reused])
    again = replay(bench.url, failed)
    assert (again.retried, again.changed) == ([], [reused, *rest])
    bench.pass_ms(10 * 86_400_000)
    bench.work("mail")
    run(spark, bench, Path(lake))
    assert totals(Path(lake), "day") == bench.counters()
    ids = {job.job_id for job in select_failed(lake, "true")}
    assert ids.isdisjoint(job.job_id for job in rest)


def lake_of_records(root: str, records: list[AttemptRecord]) -> Lake:
    """What a run makes of records of jobs that left one each, without Spark; gold stays empty."""
    attempts = as_bronze(attempts_batch(records), "default", 1)
    return fill_lake(root, {schemas.SILVER_ATTEMPTS: attempts, schemas.SILVER_JOBS: job_parts(attempts)})


def test_replay_chooses_by_message_and_by_arguments(bench: Bench, tmp_path: Path) -> None:
    payloads = {
        "a": b'{"kwargs":{"customer":42,"name":"ada"}}',
        "b": b'{"kwargs":{"customer":7,"name":"bob"}}',
        "c": b'{"kwargs":{"customer":42,"name":"ada"}}',
        "d": b'{"args":[42]}',
        "gone": b'{"kwargs":{"customer":42}}',
    }
    jobs = [NewJob(queue="pay", id=id, task="charge", payload=data) for id, data in payloads.items()]
    bench.ask(rq.Add(jobs=jobs))
    for job in bench.claim("pay"):
        message = "refused" if job.id == "c" else "timeout after 30 s"
        bench.settle([job], Outcome.FAIL, error=error_info("E", message))
    lake = str(tmp_path / "lake")
    lake_of_records(lake, bench.ask(rq.ReadHistory(queue="pay")).records)
    bench.ask_now(rq.RemoveJobs(refs=[JobRef("pay", "gone")]))

    def chosen(where: str) -> list[str]:
        return [job.job_id for job in select_failed(lake, where, url=bench.url)]

    assert chosen("error_message like '%timeout%'") == ["a", "b", "d", "gone"]
    assert chosen("error_message like '%timeout%' and args.customer = 42") == ["a"]
    assert chosen("args.name = 'ada'") == ["a", "c"]
    assert chosen("args.arg0 = 42 or args.customer < 10") == ["b", "d"]
    with pytest.raises(ConfigError, match="colour"):
        chosen("args.colour = 'red'")
    asked = ("--url", bench.url, "--lake", lake, "--json", "--where")
    result = invoke("replay", *asked, "error_message like '%timeout%' and args.customer = 42")
    assert json.loads(result.stdout)["retried"] == 1
    assert bench.ask_now(rq.CountJobs(queue="pay"))[JobState.WAITING] == 1


# --- commands ---------------------------------------------------------------------------------------------


@pytest.mark.feature("Q3", "Q11")
def test_the_reading_commands(filled: tuple[Bench, Path], tmp_path: Path) -> None:
    bench, lake = filled
    page = tmp_path / "report.html"
    shown = invoke("report", "--lake", lake, "--html", page)
    assert shown.exit_code == 0, shown.output
    assert "Tasks" in shown.output and "render" in shown.output
    assert page.read_text().startswith("<!doctype html>")
    assert json.loads(invoke("report", "--lake", lake, "--json").stdout)["total"]["attempts"] > 0
    assert "No attempts" in invoke("report", "--lake", lake, "--last", "1s").output
    counted = invoke(
        "sql", "--lake", lake, "--json", "select queue, sum(attempts) as n from day group by 1 order by 1"
    )
    assert [row["queue"] for row in json.loads(counted.stdout)] == ["mail", "pdf"]
    assert "mail" in invoke("sql", "--lake", lake, "select distinct queue from jobs").output
    chosen = invoke(
        "replay", "--url", bench.url, "--lake", lake, "--where", "task = 'send'", "--dry-run", "--json"
    )
    assert json.loads(chosen.stdout)["retried"] > 0
    kept = invoke("prune", "--lake", lake, "--dry-run", "--json")
    assert json.loads(kept.stdout)["files"] > 0


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    result = invoke("report", "--lake", tmp_path / "none")
    assert result.exit_code == 1
    assert "pipeline run" in result.stderr
    result = invoke("sql", "--lake", tmp_path / "none", "select 1")
    assert result.exit_code == 1


def test_the_package_is_a_zip_that_python_can_import(tmp_path: Path) -> None:
    import subprocess

    result = invoke("package", "--to", tmp_path, "--json")
    path = json.loads(result.stdout)["path"]
    code = "import windlass, windlass.pipeline.source; print(windlass.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(path)


@pytest.mark.feature("Q11")
def test_the_filling_commands(spark: SparkSession, bench: Bench, tmp_path: Path) -> None:
    """In the session of the tests; the nightly report's test runs them with a JVM of their own."""
    busy_day(bench, rounds=1)
    lake = tmp_path / "lake"
    filled = invoke("run", "--url", bench.url, "--lake", lake, "--max-records", 30, "--json")
    assert filled.exit_code == 0, filled.output
    want = bench.counters()
    assert json.loads(filled.stdout)["attempts"] == sum(want.values())
    assert totals(lake, "day") == want
    joined = invoke("compact", "--lake", lake)
    assert (joined.exit_code, "fewer" in joined.output) == (0, True), joined.output
    again = invoke("backfill", "--lake", lake, "--since", "2023-11-15")
    assert (again.exit_code, "1 days" in again.output) == (0, True), again.output
    assert totals(lake, "attempts") == totals(lake, "day") == want
    assert invoke("backfill", "--lake", tmp_path / "none").exit_code == 1
