"""What an operator works with over the API: logs by run, exports, flows, schedules, figures.."""

from __future__ import annotations

import asyncio
import csv
import io
from typing import Any

import httpx
import msgspec
import pytest

from tests.http.support import Shop, get, send
from windlass.api.metrics import sample_backlog
from windlass.backend import requests as rq
from windlass.core.job import WorkerInfo
from windlass.jobs.exported import read_job
from windlass_conformance.harness import QUEUE
from windlass_conformance.stage import Stage


async def exported(client: httpx.AsyncClient, **params: Any) -> str:
    answer = await client.get("/api/v1/jobs/export", params=params)
    assert answer.status_code == 200, answer.text
    assert answer.headers["Content-Disposition"].startswith("attachment")
    return answer.text


@pytest.mark.feature("P11")
async def test_log_lines_say_in_which_run_they_were_written(stage: Stage, client: httpx.AsyncClient) -> None:
    async def handle(job: Any) -> None:
        await job.log(f"run {job.record.deliveries}", "warning")
        raise ValueError("no")

    job = await stage.queue.add("fail", max_attempts=1)
    worker = await stage.work(handle)
    await stage.settle()
    await stage.queue.retry(job.id)
    await stage.settle()
    await worker.close()
    lines = (await get(client, f"/api/v1/jobs/{QUEUE}/{job.id}/logs"))["lines"]
    told = [(line["text"], line["level"], line["attempt"], line["run"]) for line in lines]
    assert told == [("run 1", "warning", 1, 1), ("run 2", "warning", 1, 2)]
    assert all(line["at_ms"] > 0 for line in lines)
    attempts = (await get(client, f"/api/v1/jobs/{QUEUE}/{job.id}/timeline"))["attempts"]
    assert [(one["attempt"], one["run"]) for one in attempts] == [(1, 1), (1, 2)]


@pytest.mark.feature("P11")
async def test_a_search_is_exported_as_lines_that_add_the_same_jobs_again(
    shop: Shop, stage: Stage, client: httpx.AsyncClient
) -> None:
    text = await exported(client, search="task:send")
    lines = [msgspec.json.decode(line) for line in text.splitlines()]
    assert {line["job_id"] for line in lines} == {shop["done"], shop["scheduled"], shop["waiting"]}
    for line in lines:
        job = await stage.queue.get_job(line["job_id"])
        assert job is not None
        record, again = job.record, read_job(stage.queue, line)
        assert (again.id, again.task, again.payload) == (record.id, record.task, record.payload)
        assert again.options == record.options


@pytest.mark.feature("P11")
async def test_a_search_is_exported_as_a_table(shop: Shop, stage: Stage, client: httpx.AsyncClient) -> None:
    await stage.queue.add("send", {"to": "x"}, tags=["=1+1"], job_id="odd")
    rows = list(csv.DictReader(io.StringIO(await exported(client, search="state:failed", format="csv"))))
    assert [(row["id"], row["error_class"], row["error_message"]) for row in rows] == [
        (shop["dead"], "TimeoutError", "no answer from bob")
    ]
    (row,) = csv.DictReader(io.StringIO(await exported(client, search="id:odd", format="csv")))
    assert row["tags"] == "'=1+1"


@pytest.mark.feature("P11")
async def test_flows_are_listed_and_run_again_from_a_job_on(stage: Stage, client: httpx.AsyncClient) -> None:
    if not stage.app.store.capabilities.flows:
        await get(client, "/api/v1/flows", 501)
        return
    fails = True

    async def handle(job: Any) -> str:
        if job.name == "left" and fails:
            raise ValueError("no")
        return "done"

    tree = {
        "task": "top",
        "queue": QUEUE,
        "children": [
            {"task": "left", "queue": QUEUE, "options": {"max_attempts": 1}},
            {"task": "right", "queue": QUEUE},
        ],
    }
    top = await send(client, "POST", "/api/v1/flows", 201, tree)
    await stage.queue.add("alone")
    worker = await stage.work(handle)
    await stage.settle()
    (flow,) = (await get(client, "/api/v1/flows"))["items"]
    assert (flow["id"], flow["name"], flow["state"], flow["jobs"]) == (top["id"], "top", "failed", 3)
    assert flow["counts"] == {"failed": 2, "completed": 1}
    assert (await get(client, "/api/v1/flows", state="completed"))["items"] == []
    (found,) = (await get(client, "/api/v1/jobs", search="task:left"))["items"]
    left = found["id"]
    assert "retry_flow" in found["can"]
    for other in ("top", "alone"):  # nothing comes after these
        (one,) = (await get(client, "/api/v1/jobs", search=f"task:{other}"))["items"]
        assert "retry" in one["can"] and "retry_flow" not in one["can"]
    fails = False
    again = await send(client, "POST", f"/api/v1/flows/{QUEUE}/{left}/retry", 200)
    assert again["count"] == 2
    await stage.settle()
    await worker.close()
    (flow,) = (await get(client, "/api/v1/flows"))["items"]
    assert flow["counts"] == {"completed": 3}
    assert flow["ended_ms"] >= flow["started_ms"]


@pytest.mark.feature("P11")
async def test_a_list_of_flows_is_paged_while_flows_are_added(
    stage: Stage, client: httpx.AsyncClient
) -> None:
    if not stage.app.store.capabilities.flows:
        await get(client, "/api/v1/flows", 501)
        return

    async def add(name: str) -> str:
        child = {"task": "leaf", "queue": QUEUE}
        tree = {"task": name, "queue": QUEUE, "children": [child, child]}
        return str((await send(client, "POST", "/api/v1/flows", 201, tree))["id"])

    tops = [await add(f"top{n}") for n in range(11)]
    seen: list[str] = []
    page = await get(client, "/api/v1/flows", limit=6)
    while True:
        seen += [flow["id"] for flow in page["items"]]
        if page["done"]:
            break
        await add("later")
        page = await get(client, "/api/v1/flows", limit=6, cursor=page["next_cursor"])
    assert seen == tops[::-1]
    (one,) = (await get(client, "/api/v1/flows", task="top3"))["items"]
    assert (one["id"], one["jobs"]) == (tops[3], 3)


@pytest.mark.feature("P11")
async def test_a_schedule_is_told_in_words_with_its_next_slots_and_its_runs(
    stage: Stage, client: httpx.AsyncClient
) -> None:
    found = await get(client, "/api/v1/schedules/preview", cron="30 9 * * 1-5", timezone="Europe/Berlin")
    assert found["words"] == "at 09:30, on Monday to Friday"
    assert len(found["upcoming"]) == 5
    assert found["upcoming"] == sorted(found["upcoming"])
    refused = await get(client, "/api/v1/schedules/preview", 422, cron="soon")
    assert "cron" in refused["detail"]
    if not stage.app.store.capabilities.schedules:
        return
    path = f"/api/v1/schedules/{QUEUE}/nightly"
    made = await send(client, "PUT", path, 200, {"cron": "0 3 * * *"})
    assert made["words"] == "at 03:00"
    job = await send(client, "POST", f"{path}/run", 201)
    await stage.queue.add("other")
    runs = await get(client, f"{path}/runs")
    assert [one["id"] for one in runs["items"]] == [job["id"]]


@pytest.mark.feature("P11")
async def test_figures_say_which_window_is_not_over_and_how_long_runs_took(
    shop: Shop, stage: Stage, client: httpx.AsyncClient
) -> None:
    if not stage.app.store.capabilities.metrics:
        await get(client, "/api/v1/metrics", 501)
        return
    found = await get(client, "/api/v1/metrics", step="minute")
    assert [one["complete"] for one in found["points"][-2:]] == [True, False]
    assert sum(one["total"] for one in found["points"]) == 3
    assert sum(one["count"] for one in found["run_histogram"]) == 3
    assert sum(one["count"] for one in found["wait_histogram"]) == 3
    assert found["backlog"]["waiting"] == 1
    assert found["backlog"]["oldest_ms"] is not None
    assert found["points"][-1]["waiting_max"] is None  # no worker has taken a sample
    await sample_backlog(stage.app.store)
    found = await get(client, "/api/v1/metrics", step="minute")
    assert found["points"][-1]["waiting_max"] == 1
    assert sum(one["total"] for one in found["points"]) == 3
    tasks = await get(client, "/api/job-metrics")
    assert {one["job_class"] for one in tasks} == {"send", "fail"}


@pytest.mark.feature("P11")
async def test_what_a_job_put_out_is_read_by_run(stage: Stage, client: httpx.AsyncClient) -> None:
    job = await stage.queue.add("count")
    if not stage.app.store.capabilities.streams:
        await get(client, f"/api/v1/jobs/{QUEUE}/{job.id}/output", 501)
        return

    async def handle(job: Any) -> None:
        await job.stream("one", {"n": 2})

    worker = await stage.work(handle)
    await stage.settle()
    await worker.close()
    found = await get(client, f"/api/v1/jobs/{QUEUE}/{job.id}/output")
    assert [(one["run"], one["text"]) for one in found["chunks"]] == [(1, "one"), (1, '{"n":2}')]
    after = await get(client, f"/api/v1/jobs/{QUEUE}/{job.id}/output", after=found["next"])
    assert after["chunks"] == []


@pytest.mark.feature("P11")
async def test_workers_are_listed_with_what_they_run(stage: Stage, client: httpx.AsyncClient) -> None:
    began, gate = asyncio.Event(), asyncio.Event()

    async def handle(job: Any) -> None:
        began.set()
        await gate.wait()

    job = await stage.queue.add("slow")
    worker = await stage.work(handle)
    await asyncio.wait_for(began.wait(), 20)
    found = await get(client, "/api/v1/workers")
    gate.set()
    await worker.close()
    (entry,) = found["workers"]
    assert (entry["id"], found["lost"]) == (worker.id, [])
    assert [one["id"] for one in entry["running"]] == [job.id]


@pytest.mark.feature("P11", "R5")
async def test_the_stacks_of_a_worker_are_shown_after_it_was_asked_for_them(
    stage: Stage, client: httpx.AsyncClient
) -> None:
    began, gate = asyncio.Event(), asyncio.Event()

    async def a_handler_that_hangs(job: Any) -> None:
        began.set()
        await gate.wait()

    await stage.queue.add("slow")
    worker = await stage.work(a_handler_that_hangs, heartbeat=10)
    await asyncio.wait_for(began.wait(), 20)
    await stage.settle()  # its first heartbeat is stored
    path = f"/api/v1/workers/{worker.id}"
    assert (await get(client, f"{path}/stacks"))["text"] == ""
    if not stage.app.store.capabilities.commands:
        await send(client, "POST", f"{path}/dump", 501)
    else:
        await send(client, "POST", f"{path}/dump", 202)
        await stage.advance(10)
        found = await get(client, f"{path}/stacks")
        assert "a_handler_that_hangs" in found["text"]
    gate.set()
    await worker.close()
    await get(client, f"{path}/stacks", 404)


@pytest.mark.feature("P11")
async def test_lost_workers_are_listed_with_the_jobs_that_they_held(
    stage: Stage, client: httpx.AsyncClient
) -> None:
    store = stage.app.store
    job = await stage.queue.add("slow")
    await store.execute(rq.Beat(worker=WorkerInfo(id="gone", queues=(QUEUE,), busy=1)))
    claim = rq.Claim(worker="gone", queues=[rq.ClaimQueue(QUEUE, 1, 1)], limit=1, claim_id="one claim")
    assert [one.id for one in (await store.execute(claim)).jobs] == [job.id]
    assert (await get(client, "/api/v1/workers"))["lost"] == []
    await stage.advance(60)
    held = await lost_jobs(client)
    assert held == {"gone": [(job.id, "active")]}
    assert (await store.execute(rq.Recover())).recovered == [job.ref]
    assert await lost_jobs(client) == {"gone": [(job.id, "waiting")]}
    assert await lost_jobs(client) == {"gone": [(job.id, "waiting")]}


async def lost_jobs(client: httpx.AsyncClient) -> dict[str, list[tuple[str, str]]]:
    """Lost workers with their jobs; health and the list of workers agree."""
    lost = (await get(client, "/api/v1/workers"))["lost"]
    assert (await get(client, "/api/v1/health"))["lost_workers"] == lost
    return {one["id"]: [(job["id"], job["state"]) for job in one["jobs"]] for one in lost}


@pytest.mark.feature("P11")
async def test_limits_are_shown_with_what_is_used_of_them(stage: Stage, client: httpx.AsyncClient) -> None:
    path = f"/api/v1/queues/{QUEUE}"
    if not stage.app.store.capabilities.limits:
        await get(client, f"{path}/limits", 501)
        return
    await stage.queue.add("send", group="red")
    await send(client, "PUT", f"{path}/limits", 204, {"concurrency": 3})
    await send(client, "PUT", f"{path}/groups/red/limits", 204, {"concurrency": 2})
    await send(client, "POST", f"{path}/pause", 204)
    found = await get(client, f"{path}/limits")
    assert (found["concurrency"], found["active"], found["waiting"], found["paused"]) == (3, 0, 1, True)
    (group,) = (await get(client, f"{path}/groups"))["items"]
    assert (group["name"], group["limits"]["concurrency"], group["active"]) == ("red", 2, 0)
