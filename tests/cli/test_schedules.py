"""Commands about schedules, figures and workers from afar."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.support import Cli
from windlass import Job, Schedule, Windlass, Worker
from windlass.backend import requests as rq
from windlass.core.job import WorkerInfo

pytestmark = pytest.mark.feature("X3")
backend_name = "sqlite"


@pytest.fixture
def scheduled(cli: Cli) -> Cli:
    """Two schedules of one queue."""

    async def fill(app: Windlass) -> None:
        mail = app.queue("mail")
        rule = Schedule(cron="0 3 * * *", timezone="Europe/Berlin", overlap="skip")
        await mail.upsert_job_scheduler("nightly", rule, {"name": "report", "data": {"kind": "long"}})
        await app.queue("web").upsert_job_scheduler("ping", {"every": 30})

    cli.app(fill)
    return cli


@pytest.mark.feature("B9", "B14")
def test_schedules_are_listed_for_programs_and_for_people(scheduled: Cli) -> None:
    found = {item["name"]: item for item in scheduled.json("schedules")}
    assert found["nightly"]["rule"]["cron"] == "0 3 * * *"
    assert found["nightly"]["task"] == "report"
    assert found["ping"]["rule"]["every_ms"] == 30_000
    assert [item["name"] for item in scheduled.json("schedules", "list", "web")] == ["ping"]
    text = scheduled("schedules").output
    assert "0 3 * * * (Europe/Berlin)" in text
    assert "every 30 s" in text
    shown = scheduled("schedules", "show", "mail", "nightly").output
    assert '{"kind":"long"}' in shown
    assert "overlap: skip" in shown


@pytest.mark.feature("B14")
def test_a_schedule_is_paused_resumed_run_and_removed(scheduled: Cli) -> None:
    scheduled("schedules", "pause", "mail", "nightly")
    assert scheduled.json("schedules", "show", "mail", "nightly")["paused"] is True
    assert "paused" in scheduled("schedules").output
    scheduled("schedules", "resume", "mail", "nightly")
    assert scheduled.json("schedules", "show", "mail", "nightly")["paused"] is False
    job_id = scheduled.json("schedules", "run", "mail", "nightly")["job_id"]
    assert [job["id"] for job in scheduled.json("jobs", "mail")["jobs"]] == [job_id]
    scheduled("schedules", "remove", "mail", "nightly")
    assert [item["name"] for item in scheduled.json("schedules")] == ["ping"]


def test_a_schedule_that_is_not_there_is_told_so(scheduled: Cli) -> None:
    for action in ("show", "pause", "resume", "run", "remove"):
        done = scheduled("schedules", action, "mail", "none", code=1)
        assert "no schedule 'none'" in done.output + done.stderr
    scheduled("schedules", "pause", "mail", code=2)


async def _work_off(app: Windlass) -> None:
    async def handle(job: Job[Any]) -> None:
        if job.name == "bad":
            raise ValueError("no luck")

    queue = app.queue("mail")
    await queue.add_bulk([{"name": "good"}] * 3 + [{"name": "bad", "max_attempts": 1}])
    await Worker("mail", handle, url_or_app=app, burst=True).run()


async def _fail_twice(app: Windlass) -> None:
    def handle(job: Job[Any]) -> None:
        raise ValueError("no luck")

    await app.queue("mail").add("bad", max_attempts=2, backoff=0)
    await Worker("mail", handle, url_or_app=app, burst=True).run()


def test_figures_tell_runs_that_were_retried_from_those_that_failed(cli: Cli) -> None:
    cli.app(_fail_twice)
    for period in ("1h", "7d"):
        head, _, row = cli("stats", "--tasks", "--period", period).output.splitlines()[:3]
        figures = dict(zip(head.split(), row.split(), strict=False))
        assert (figures["runs"], figures["retried"], figures["failed"]) == ("2", "1", "1")
    assert "failed runs" in cli("stats", "--days", "1").output


@pytest.mark.feature("Q3", "Q4", "Q9")
def test_figures_per_task_and_per_day(cli: Cli) -> None:
    cli.app(_work_off)
    tasks = {item["name"]: item for item in cli.json("stats", "--tasks")}
    assert (tasks["good"]["total"], tasks["good"]["success_rate"]) == (3, 1.0)
    assert (tasks["bad"]["failed"], tasks["bad"]["success_rate"]) == (1, 0.0)
    assert tasks["good"]["p95_ms"] is not None
    assert "100.0%" in cli("stats", "--tasks", "--period", "2d").output
    days = cli.json("stats", "--days", "3")
    assert [(day["processed"], day["failed"]) for day in days] == [(0, 0), (0, 0), (4, 1)]
    assert "mail" in cli("stats", "--days", "30").output
    cli("stats", "--tasks", "--watch", code=2)


@pytest.mark.feature("Q7")
def test_stats_tell_latency_and_utilisation(cli: Cli) -> None:
    async def fill(app: Windlass) -> None:
        await app.queue("mail").add("n")
        await app.store.execute(rq.Beat(worker=WorkerInfo(id="w", concurrency=8, busy=2)))

    cli.app(fill)
    sample = cli.json("stats")
    assert sample["utilisation"] == 0.25
    assert sample["queues"][0]["latency_ms"] >= 0


@pytest.mark.feature("R5")
def test_workers_receive_commands(cli: Cli) -> None:
    cli.app(lambda app: app.store.execute(rq.Beat(worker=WorkerInfo(id="w"))))
    assert "sent quiet to w" in cli("workers", "quiet", "w").output
    assert cli.json("workers")[0]["command"]["action"] == "quiet"
    done = cli.json("workers", "stop", "unknown", code=1)
    assert done[0]["outcome"] == "worker_not_found"
    cli("workers", "stop", code=2)
