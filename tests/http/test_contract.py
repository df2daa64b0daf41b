"""Every route of the job-queue API, with its path and its JSON, on every store."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.http.support import Shop, get, send
from windlass import JobState
from windlass_conformance.stage import QUEUE, Stage

JOB = {
    "jid",
    "class",
    "args",
    "kwargs",
    "queue",
    "retry",
    "retry_count",
    "enqueued_at",
    "tags",
    "priority",
    "state",
}


@pytest.mark.feature("O1")
async def test_queues_are_listed_with_their_sizes(shop: Shop, client: httpx.AsyncClient) -> None:
    await shop.stage.app.queue("empty").pause()
    queues = {queue["name"]: queue for queue in await get(client, "/api/job-queues")}
    mail = queues[QUEUE]
    assert (mail["size"], mail["paused"], mail["processed"], mail["failed"]) == (1, False, 3, 2)
    assert mail["latency_ms"] == 2_000
    assert {state: count for state, count in mail["counts"].items() if count} == {
        "waiting": 1,
        "scheduled": 1,
        "retrying": 1,
        "completed": 1,
        "failed": 1,
    }
    assert queues["empty"]["paused"] is True


@pytest.mark.feature("O2")
async def test_jobs_of_a_queue(shop: Shop, client: httpx.AsyncClient) -> None:
    jobs = await get(client, f"/api/job-queues/{QUEUE}/jobs")
    assert [set(job) for job in jobs] == [JOB]
    assert jobs[0] | {"enqueued_at": 0} == {
        "jid": shop["waiting"],
        "class": "send",
        "args": ["kim", 7],
        "kwargs": {},
        "queue": QUEUE,
        "retry": 2,
        "retry_count": 0,
        "enqueued_at": 0,
        "tags": ["late"],
        "priority": 0,
        "state": "waiting",
    }
    assert jobs[0]["enqueued_at"] == pytest.approx(shop.stage.clock.now_ms() / 1000 - 2)
    assert await get(client, "/api/job-queues/unknown/jobs") == []


@pytest.mark.feature("O3")
async def test_the_dashboards_figures(shop: Shop, client: httpx.AsyncClient) -> None:
    await shop.stage.work(lambda job: None, queues="idle", concurrency=4)
    await shop.stage.settle()
    figures = await get(client, "/job-queues")
    queues = figures.pop("queues")
    assert figures == {
        "processed_today": 3,
        "failed_today": 2,
        "scheduled_count": 1,
        "retry_count": 1,
        "dead_count": 1,
        "active_processes": 1,
        "busy_workers": 0,
    }
    assert QUEUE in queues
    assert queues[QUEUE]["size"] == 1
    page = await client.get("/job-queues", headers={"Accept": "text/html"})
    assert page.headers["content-type"].startswith("text/html")


@pytest.mark.feature("O4")
async def test_scheduled_jobs(shop: Shop, client: httpx.AsyncClient) -> None:
    jobs = await get(client, "/api/scheduled-jobs", limit=100, offset=0)
    assert [set(job) for job in jobs] == [{"type", "jid", "scheduled_at", "job"}]
    assert (jobs[0]["type"], jobs[0]["jid"]) == ("scheduled_job", shop["scheduled"])
    assert jobs[0]["scheduled_at"] == pytest.approx(shop.stage.clock.now_ms() / 1000 + 3_598)
    assert (jobs[0]["job"]["class"], jobs[0]["job"]["kwargs"]) == ("send", {"to": "joe"})


@pytest.mark.feature("O5")
async def test_a_scheduled_job_is_triggered_once(shop: Shop, client: httpx.AsyncClient) -> None:
    path = f"/api/scheduled-jobs/{shop['scheduled']}/trigger"
    await send(client, "POST", path, 204)
    assert await get(client, "/api/scheduled-jobs") == []
    await send(client, "POST", path, 404)
    await send(client, "POST", "/api/scheduled-jobs/nobody/trigger", 404)
    waiting = [job["jid"] for job in await get(client, f"/api/job-queues/{QUEUE}/jobs")]
    assert waiting.count(shop["scheduled"]) == 1


@pytest.mark.feature("O6")
async def test_a_scheduled_job_is_deleted(shop: Shop, client: httpx.AsyncClient) -> None:
    await send(client, "DELETE", f"/api/scheduled-jobs/{shop['waiting']}", 404)
    await send(client, "DELETE", f"/api/scheduled-jobs/{shop['scheduled']}", 204)
    assert await get(client, "/api/scheduled-jobs") == []
    await send(client, "DELETE", f"/api/scheduled-jobs/{shop['scheduled']}", 404)


@pytest.mark.feature("O7")
async def test_retries(shop: Shop, client: httpx.AsyncClient) -> None:
    jobs = await get(client, "/api/retries")
    assert [set(job) for job in jobs] == [
        {"type", "jid", "retry_at", "retry_count", "failed_at", "error_message", "error_class", "job"}
    ]
    now = shop.stage.clock.now_ms() / 1000
    assert jobs[0] | {"job": {}} == {
        "type": "retry",
        "jid": shop["retry"],
        "retry_at": pytest.approx(now + 598),
        "retry_count": 1,
        "failed_at": pytest.approx(now - 2),
        "error_message": "no answer from eve",
        "error_class": "TimeoutError",
        "job": {},
    }
    assert (jobs[0]["job"]["retry"], jobs[0]["job"]["retry_count"]) == (4, 1)


@pytest.mark.feature("O8")
async def test_a_retry_runs_now_or_never(shop: Shop, client: httpx.AsyncClient) -> None:
    await send(client, "POST", f"/api/retries/{shop['dead']}/retry", 404)
    await send(client, "POST", f"/api/retries/{shop['retry']}/retry", 204)
    assert await get(client, "/api/retries") == []
    job = await shop.stage.queue.get_job(shop["retry"])
    assert job is not None
    assert job.state is JobState.WAITING
    await send(client, "POST", f"/api/retries/{shop['retry']}/kill", 404)


@pytest.mark.feature("O8")
async def test_a_killed_retry_never_runs_again(shop: Shop, client: httpx.AsyncClient) -> None:
    await send(client, "POST", f"/api/retries/{shop['retry']}/kill", 204)
    assert await get(client, "/api/retries") == []
    job = await shop.stage.queue.get_job(shop["retry"])
    assert job is not None
    assert (job.state, job.reason) == (JobState.FAILED, "killed")
    await send(client, "POST", f"/api/retries/{shop['retry']}/kill", 404)
    killed = (await get(client, "/api/dead-jobs"))[0]
    assert (killed["jid"], killed["reason"]) == (shop["retry"], "killed")
    assert (killed["error_class"], killed["error_message"]) == ("TimeoutError", "no answer from eve")
    await send(client, "POST", f"/api/dead-jobs/{shop['retry']}/retry", 204)


@pytest.mark.feature("O9")
async def test_dead_jobs(shop: Shop, client: httpx.AsyncClient) -> None:
    jobs = await get(client, "/api/dead-jobs", limit=100, offset=0)
    assert [job["jid"] for job in jobs] == [shop["dead"]]
    dead = jobs[0]
    assert set(dead) == {
        "type",
        "jid",
        "died_at",
        "retry_count",
        "error_message",
        "error_class",
        "backtrace",
        "job",
        "reason",
    }
    assert (dead["type"], dead["error_class"], dead["error_message"]) == (
        "dead_job",
        "TimeoutError",
        "no answer from bob",
    )
    assert (dead["retry_count"], dead["reason"]) == (0, "attempts")
    assert "raise TimeoutError" in dead["backtrace"]
    assert dead["died_at"] == pytest.approx(shop.stage.clock.now_ms() / 1000 - 2)
    assert (dead["job"]["class"], dead["job"]["kwargs"], dead["job"]["queue"]) == (
        "fail",
        {"to": "bob"},
        QUEUE,
    )


@pytest.mark.feature("O10")
async def test_a_dead_job_is_retried_once_with_a_fresh_budget(shop: Shop, client: httpx.AsyncClient) -> None:
    path = f"/api/dead-jobs/{shop['dead']}/retry"
    await send(client, "POST", path, 204)
    assert await get(client, "/api/dead-jobs") == []
    await send(client, "POST", path, 404)
    jobs = {job["jid"]: job for job in await get(client, f"/api/job-queues/{QUEUE}/jobs")}
    assert jobs[shop["dead"]]["retry_count"] == 0


@pytest.mark.feature("O11")
async def test_a_dead_job_is_deleted(shop: Shop, client: httpx.AsyncClient) -> None:
    await send(client, "DELETE", f"/api/dead-jobs/{shop['dead']}", 204)
    assert await get(client, "/api/dead-jobs") == []
    await send(client, "DELETE", f"/api/dead-jobs/{shop['dead']}", 404)


@pytest.mark.feature("O12")
async def test_metrics_per_class_and_period(shop: Shop, client: httpx.AsyncClient) -> None:
    rows = {row["job_class"]: row for row in await get(client, "/api/job-metrics", period=3_600)}
    assert set(rows) == {"send", "fail"}
    send_row, fail = rows["send"], rows["fail"]
    assert (send_row["total"], send_row["success"], send_row["success_rate"]) == (1, 1, 1.0)
    assert (fail["total"], fail["failed"], fail["retried"], fail["success_rate"]) == (2, 1, 1, 0.0)
    assert send_row["queue"] == QUEUE
    assert send_row["avg_ms"] >= 0
    await shop.stage.advance(7_200)
    assert await get(client, "/api/job-metrics", period=3_600) == []


@pytest.mark.feature("O13")
async def test_processes(stage: Stage, client: httpx.AsyncClient) -> None:
    assert await get(client, "/api/processes") == []
    worker = await stage.work(lambda job: None, concurrency=3, tag="production")
    await stage.settle()
    found = await get(client, "/api/processes")
    assert len(found) == 1
    process: dict[str, Any] = found[0]
    assert {
        "type",
        "identity",
        "hostname",
        "pid",
        "tag",
        "concurrency",
        "busy",
        "beat",
        "rss_kb",
        "queues",
    } < set(process)
    assert (process["type"], process["identity"]) == ("heartbeat", worker.id)
    assert (process["tag"], process["concurrency"], process["busy"]) == ("production", 3, 0)
    assert process["queues"] == [QUEUE]
    assert process["rss_kb"] > 0
    assert process["version"]
    assert await get(client, f"/api/processes/{worker.id}") == process
    assert await get(client, "/worker-processes") == [process]


@pytest.mark.feature("O4", "O7", "O9")
async def test_lists_go_on_by_offset_and_by_cursor(stage: Stage, client: httpx.AsyncClient) -> None:
    for number in range(25):
        queue = stage.app.queue(f"q{number % 3}")
        await queue.add("later", {"number": number}, delay=100 + number)
        await stage.advance(ms=1)
    by_offset: list[int] = []
    for offset in range(0, 30, 10):
        page = await get(client, "/api/scheduled-jobs", limit=10, offset=offset)
        by_offset += [job["job"]["kwargs"]["number"] for job in page]
    assert by_offset == list(range(25)), "what is due next comes first"
    by_cursor: list[int] = []
    cursor: str | None = None
    while True:
        params = {"limit": 4} | ({"cursor": cursor} if cursor else {})
        answer = await client.get("/api/scheduled-jobs", params=params)
        assert answer.headers["X-Total-Count"] == "25"
        by_cursor += [job["job"]["kwargs"]["number"] for job in answer.json()]
        cursor = answer.headers.get("X-Next-Cursor")
        if cursor is None:
            break
    assert by_cursor == by_offset
    assert await get(client, "/api/retries", offset=5) == []
    assert await get(client, "/api/dead-jobs", offset=5) == []


async def test_an_id_that_two_queues_have_needs_its_queue(stage: Stage, client: httpx.AsyncClient) -> None:
    for name in ("one", "two"):
        await stage.app.queue(name).add("later", delay=100, job_id="same")
    await send(client, "POST", "/api/scheduled-jobs/same/trigger", 409)
    await send(client, "POST", "/api/scheduled-jobs/same/trigger?queue=two", 204)
    jobs = await get(client, "/api/scheduled-jobs")
    assert [job["job"]["queue"] for job in jobs] == ["one"]
    await send(client, "DELETE", "/api/scheduled-jobs/same", 204)


@pytest.mark.feature("P2", "P3", "P4", "P5", "P6")
@pytest.mark.parametrize(
    ("page", "route"),
    [
        ("/scheduled-jobs", "/api/scheduled-jobs"),
        ("/retries", "/api/retries"),
        ("/dead-jobs", "/api/dead-jobs"),
        ("/job-metrics", "/api/job-metrics"),
        (f"/job-queues/{QUEUE}", f"/api/job-queues/{QUEUE}"),
    ],
)
async def test_pages_answer_programs_with_json(
    shop: Shop, client: httpx.AsyncClient, page: str, route: str
) -> None:
    assert await get(client, page) == await get(client, route)
    html = await client.get(page, headers={"Accept": "text/html,application/xhtml+xml"})
    assert html.headers["content-type"].startswith("text/html")
