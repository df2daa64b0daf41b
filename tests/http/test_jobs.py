"""Beyond the seed: job page, search, bulk changes, adding, schedules, flows, limits, workers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.http.support import Shop, get, send
from windlass import JobState
from windlass.backend import requests as rq
from windlass_conformance.stage import QUEUE, Stage


@pytest.mark.feature("P10")
async def test_a_job_with_all_that_is_known_of_it(shop: Shop, client: httpx.AsyncClient) -> None:
    job = await get(client, f"/api/jobs/{QUEUE}/{shop['dead']}")
    assert (job["task"], job["state"], job["reason"]) == ("fail", "failed", "attempts")
    assert (job["kwargs"], job["attempts"], job["max_attempts"], job["deliveries"]) == (
        {"to": "bob"},
        1,
        1,
        1,
    )
    assert [(e["error_class"], e["message"], e["attempt"]) for e in job["errors"]] == [
        ("TimeoutError", "no answer from bob", 1)
    ]
    assert "raise TimeoutError" in job["errors"][0]["traceback"]
    assert job["error"]["error_class"] == "TimeoutError"
    assert (job["log_lines"], job["options"]["max_attempts"]) == (1, 1)
    assert "unsaid" not in job["options"]
    assert job["can"] == ["retry", "delete", "again"]
    done = await get(client, f"/api/jobs/{QUEUE}/{shop['done']}")
    assert (done["result"], done["has_result"], done["tags"]) == ("sent", True, ["paid"])
    await get(client, f"/api/jobs/{QUEUE}/nobody", 404)

    logs = await get(client, f"/api/jobs/{QUEUE}/{shop['dead']}/logs")
    assert (logs["next"], logs["total"]) == (1, 1)
    (line,) = logs["lines"]
    assert (line["number"], line["text"], line["level"], line["run"]) == (0, "run 1", "info", 1)

    timeline = await get(client, f"/api/jobs/{QUEUE}/{shop['dead']}/timeline")
    assert [event["type"] for event in timeline["events"]] == ["enqueued", "started", "failed"]
    assert [(one["attempt"], one["outcome"], one["message"]) for one in timeline["attempts"]] == [
        (1, "failed", "no answer from bob")
    ]
    assert timeline["complete"] is True


@pytest.mark.feature("P10")
async def test_a_job_is_reached_under_every_id_that_a_producer_may_choose(
    stage: Stage, client: httpx.AsyncClient
) -> None:
    job_id = "welcome-ada+news@example.com_1"
    await stage.queue.add("send", job_id=job_id, delay=100)
    for path in (f"/api/jobs/{QUEUE}/{job_id}", f"/api/jobs/{QUEUE}/{quote(job_id, safe='')}"):
        assert (await get(client, path))["id"] == job_id
    body = {"action": "cancel", "refs": [{"queue": QUEUE, "id": job_id}], "dry_run": True}
    assert (await send(client, "POST", "/api/jobs/bulk", 200, body))["done"] == 1
    await send(client, "DELETE", f"/api/scheduled-jobs/{job_id}", 204)


@pytest.mark.feature("P10")
async def test_a_list_shows_the_size_of_large_arguments_and_the_page_of_the_job_shows_them(
    stage: Stage, client: httpx.AsyncClient
) -> None:
    rows = list(range(20_000))
    job = await stage.queue.add("send", {"rows": rows}, delay=100)
    (item,) = (await get(client, "/api/jobs"))["items"]
    assert item["args_preview"] == f"{len(job.record.payload):,} bytes"
    assert (await get(client, f"/api/jobs/{QUEUE}/{job.id}"))["kwargs"] == {"rows": rows}


@pytest.mark.feature("P11")
async def test_search(shop: Shop, client: httpx.AsyncClient) -> None:
    async def ids(**params: Any) -> list[str]:
        found = await get(client, "/api/jobs", **params)
        names = {job_id: name for name, job_id in shop.ids.items()}
        return sorted(names[item["id"]] for item in found["items"])

    assert await ids() == ["dead", "done", "retry", "scheduled", "waiting"]
    assert await ids(state="failed") == ["dead"]
    assert await ids(state=["failed", "retrying"]) == ["dead", "retry"]
    assert await ids(task="f*") == ["dead", "retry"]
    assert await ids(tag="paid") == ["done"]
    assert await ids(error="TimeoutError") == ["dead", "retry"]
    assert await ids(args='{"to": "joe"}') == ["scheduled"]
    assert await ids(q="NO ANSWER from eve") == ["retry"]
    assert await ids(q=shop["waiting"][-12:]) == ["waiting"]
    assert await ids(queue="nothing") == []
    added = (await get(client, f"/api/jobs/{QUEUE}/{shop['waiting']}"))["enqueued_ms"]
    assert "waiting" in await ids(from_ms=added, to_ms=added + 1)
    assert await ids(from_ms=added + 1) == []
    assert await ids(to_ms=added - 1_000_000) == []
    page = await get(client, "/api/jobs", state="failed")
    assert (page["total"], page["next_cursor"]) == (1, None)
    assert (await get(client, "/api/jobs", task="f*"))["total"] is None


@pytest.mark.feature("P11")
async def test_pages_of_a_search_over_many_queues_miss_nothing(
    stage: Stage, client: httpx.AsyncClient
) -> None:
    for number in range(60):
        await stage.app.queue(f"q{number % 7}").add("send", {"n": number, "even": number % 2 == 0})
        await stage.advance(ms=1)
    for params, expected in [
        ({"order": "newest"}, list(range(59, -1, -1))),
        ({"order": "oldest"}, list(range(60))),
        ({"order": "oldest", "args": '{"even": true}'}, list(range(0, 60, 2))),
        ({"order": "newest", "q": '"n":1'}, [*range(19, 9, -1), 1]),
    ]:
        found: list[int] = []
        cursor: str | None = None
        for _ in range(100):
            query: dict[str, Any] = {**params, "limit": 7} | ({"cursor": cursor} if cursor else {})
            page = await get(client, "/api/jobs", **query)
            shown = [item["args_preview"] for item in page["items"]]
            found += [int(text.split('"n":')[1].split(",")[0]) for text in shown]
            cursor = page["next_cursor"]
            if cursor is None:
                break
        assert found == expected, params


@pytest.mark.feature("P11")
@pytest.mark.parametrize(("order", "first"), [("newest", ["5", "4"]), ("oldest", ["0", "1"])])
async def test_a_bulk_change_works_off_a_filter_by_the_time_of_the_end_and_meets_each_job_once(
    stage: Stage, client: httpx.AsyncClient, order: str, first: list[str]
) -> None:
    ran: list[str] = []

    async def handle(job: Any) -> None:
        ran.append(job.id)
        raise ValueError("again")

    await stage.work(handle, concurrency=1)
    for number in (0, 2, 4, 1, 3, 5):
        await stage.queue.add("boom", job_id=str(number), max_attempts=1, delay=1 + number)
    for _ in range(8):
        await stage.advance(1)
    assert ran == list("012345")
    ran.clear()
    body: dict[str, Any] = {"action": "retry", "filter": {"state": ["failed"]}, "limit": 2}
    body |= {"sort": "finished", "order": order}
    done = 0
    for step in range(20):
        answer = await send(client, "POST", "/api/v1/jobs/bulk", 200, body)
        done += answer["done"]
        await stage.advance(1)  # those that were retried have failed again
        if step == 0:
            assert sorted(ran) == sorted(first)
        if answer["next_cursor"] is None:
            break
        body["cursor"] = answer["next_cursor"]
    assert done == len(ran) == 6
    await send(client, "POST", "/api/v1/jobs/bulk", 422, {**body, "filter": {"state": ["waiting"]}})


@pytest.mark.feature("P12")
async def test_bulk_changes_go_step_by_step(stage: Stage, client: httpx.AsyncClient) -> None:
    async def boom(job: Any) -> None:
        raise ValueError("no")

    worker = await stage.work(boom, concurrency=50)
    await stage.queue.add_bulk([{"name": "boom", "max_attempts": 1} for _ in range(25)])
    await stage.queue.add_bulk([{"name": "other", "max_attempts": 1} for _ in range(5)])
    await stage.settle()
    await worker.close()
    assert (await get(client, "/api/jobs", state="failed"))["total"] == 30
    steps: list[tuple[int, int]] = []
    body: dict[str, Any] = {"action": "retry", "filter": {"state": ["failed"], "task": "boom"}, "limit": 10}
    while True:
        answer = await send(client, "POST", "/api/jobs/bulk", 200, body)
        steps.append((answer["done"], answer["failed"]))
        if answer["next_cursor"] is None:
            break
        body["cursor"] = answer["next_cursor"]
    assert sum(done for done, _ in steps) == 25
    assert len(steps) >= 3
    counts = await stage.queue.get_job_counts()
    assert (counts[JobState.WAITING], counts[JobState.FAILED]) == (25, 5)

    dead = await stage.queue.get_dead_letter_jobs()
    refs = [{"queue": QUEUE, "id": job.id} for job in dead] + [{"queue": QUEUE, "id": "nobody"}]
    answer = await send(client, "POST", "/api/jobs/bulk", 200, {"action": "delete", "refs": refs})
    assert (answer["done"], answer["failed"], answer["next_cursor"]) == (5, 1, None)
    body = {"action": "cancel", "filter": {"state": ["waiting"], "queue": [QUEUE]}, "reason": "storm"}
    assert (await send(client, "POST", "/api/jobs/bulk", 200, body))["done"] == 25
    later = [await stage.queue.add("later", delay=100) for _ in range(3)]
    body = {"action": "trigger", "filter": {"state": ["scheduled"]}}
    assert (await send(client, "POST", "/api/jobs/bulk", 200, body))["done"] == len(later)
    assert (await stage.queue.get_job_counts())[JobState.WAITING] == 3
    await send(client, "POST", "/api/jobs/bulk", 422, {"action": "retry", "filter": {}})
    await send(client, "POST", "/api/jobs/bulk", 422, {"action": "retry"})


@pytest.mark.feature("O15")
async def test_jobs_are_added_over_http(stage: Stage, client: httpx.AsyncClient) -> None:
    path = f"/api/job-queues/{QUEUE}/jobs"
    by_data = await send(client, "POST", path, 201, {"task": "send", "data": {"to": "ada"}})
    wire = {"class": "send", "args": [1, "two"], "options": {"job_id": "mine", "priority": 5, "delay": 60}}
    by_wire = await send(client, "POST", path, 201, wire)
    assert by_wire == {"queue": QUEUE, "id": "mine", "outcome": "queued", "state": "scheduled"}
    assert (await send(client, "POST", path, 201, wire))["outcome"] == "duplicate"
    job = await stage.queue.get_job("mine")
    assert job is not None
    assert (job.args, job.priority) == ([1, "two"], 5)
    first = await stage.queue.get_job(by_data["id"])
    assert first is not None
    assert first.data == {"to": "ada"}

    many = await send(client, "POST", f"{path}/bulk", 201, [{"task": "send", "data": n} for n in range(20)])
    assert len(many["jobs"]) == 20
    assert (await stage.queue.get_job_counts())[JobState.WAITING] == 21
    await send(client, "POST", f"{path}/bulk", 422, [{"task": "ok"}, {"task": "x", "options": {"delay": -1}}])
    assert (await stage.queue.get_job_counts())[JobState.WAITING] == 21, "all or nothing"


@pytest.mark.feature("O15", "O14")
async def test_request_and_response_over_http(stage: Stage, client: httpx.AsyncClient) -> None:
    async def double(job: Any) -> int:
        if job.name != "double":
            raise ValueError("not this")
        return int(job.args[0]) * 2

    await stage.work(double)
    path = f"/api/job-queues/{QUEUE}/jobs/wait"
    asking = asyncio.ensure_future(send(client, "POST", path, 200, {"task": "double", "args": [21]}))
    while not asking.done():
        await stage.settle()
        await asyncio.sleep(0)
    answer = asking.result()
    assert (answer["finished"], answer["state"], answer["result"]) == (True, "completed", 42)
    body = {"task": "fail", "options": {"max_attempts": 1}}
    asking = asyncio.ensure_future(send(client, "POST", path, 200, body))
    while not asking.done():
        await stage.settle()
        await asyncio.sleep(0)
    failed = asking.result()
    assert (failed["state"], failed["error_class"], failed["error_message"]) == (
        "failed",
        "ValueError",
        "not this",
    )


@pytest.mark.feature("O16")
async def test_control_of_queues_and_jobs(shop: Shop, client: httpx.AsyncClient) -> None:
    stage = shop.stage
    base = f"/api/job-queues/{QUEUE}"
    await send(client, "POST", f"{base}/pause", 204)
    assert (await get(client, base))["paused"] is True
    await send(client, "POST", f"{base}/resume", 204)
    assert (await get(client, base))["paused"] is False
    assert (await get(client, f"{base}/counts"))["waiting"] == 1
    await get(client, "/api/job-queues/unknown", 404)
    await send(client, "POST", "/api/job-queues/unknown/pause", 404)

    waiting = f"/api/jobs/{QUEUE}/{shop['waiting']}"
    await send(client, "PATCH", waiting, 204, {"priority": 9})
    await send(client, "PATCH", waiting, 204, {"data": {"to": "zoe"}})
    changed = await get(client, waiting)
    assert (changed["priority"], changed["data"]) == (9, {"to": "zoe"})
    await send(client, "PATCH", waiting, 204, {"delay": 50})
    assert (await get(client, waiting))["state"] == "scheduled"
    await send(client, "POST", f"{waiting}/trigger", 204)
    await send(client, "POST", f"{waiting}/trigger", 409)
    assert await send(client, "POST", f"{waiting}/cancel", 200, {"reason": "stop"}) == {"result": "cancelled"}
    await send(client, "PATCH", waiting, 409, {"priority": 1})
    await send(client, "POST", f"{waiting}/retry", 204)
    again = await send(client, "POST", f"{waiting}/again", 201, {"data": {"to": "kai"}})
    assert (await get(client, f"/api/jobs/{QUEUE}/{again['id']}"))["data"] == {"to": "kai"}
    await send(client, "DELETE", waiting, 204)
    await send(client, "DELETE", waiting, 404)

    assert (await send(client, "POST", f"{base}/clean", 200, {"states": ["completed"]}))["count"] == 1
    assert (await send(client, "POST", f"{base}/drain", 200))["count"] == 1
    assert (await send(client, "POST", f"{base}/drain", 200, {"delayed": True}))["count"] == 2
    assert await stage.queue.count() == 0


@pytest.mark.feature("O16")
async def test_what_a_store_lacks_is_said_and_nothing_else(stage: Stage, client: httpx.AsyncClient) -> None:
    await stage.queue.add("send", job_id="one")
    routes = {
        "groups": f"/api/job-queues/{QUEUE}/groups",
        "limits": f"/api/job-queues/{QUEUE}/limits",
        "schedules": "/api/schedules",
        "metrics": "/api/job-metrics",
        "flows": f"/api/flows/{QUEUE}/one",
    }
    for capability, path in routes.items():
        answer = await client.get(path)
        if getattr(stage.app.store.capabilities, capability):
            assert answer.status_code == 200, path
        else:
            assert (answer.status_code, answer.json()["code"]) == (501, "unsupported"), path
            assert answer.json()["advice"]


async def test_limits_and_groups(stage: Stage, client: httpx.AsyncClient) -> None:
    base = f"/api/job-queues/{QUEUE}"
    if not stage.app.store.capabilities.groups:
        await send(client, "PUT", f"{base}/groups/a/limits", 501, {"concurrency": 2})
        return
    await stage.queue.add("send", group="a/b")
    limits = {"concurrency": 3, "rate": {"max": 10, "seconds": 60.0}}
    await send(client, "PUT", f"{base}/limits", 204, limits)
    found = await get(client, f"{base}/limits")
    assert (found["concurrency"], found["rate"]) == (3, {"max": 10, "seconds": 60.0})
    await send(client, "DELETE", f"{base}/limits", 204)
    assert (await get(client, f"{base}/limits"))["concurrency"] is None
    await send(client, "PUT", f"{base}/groups/a~1b/limits", 204, {"concurrency": 2, "ordered": True})
    found = await get(client, f"{base}/groups/a~1b/limits")
    assert (found["ordered"], found["skip_delayed"]) == (True, False)
    skipping = {"ordered": True, "skip_delayed": True}
    await send(client, "PUT", f"{base}/groups/a~1b/limits", 204, skipping)
    assert (await get(client, f"{base}/groups/a~1b/limits"))["skip_delayed"] is True
    await send(client, "POST", f"{base}/groups/a~1b/pause", 204)
    groups = (await get(client, f"{base}/groups"))["items"]
    assert [(group["name"], group["size"], group["paused"]) for group in groups] == [("a/b", 1, True)]
    await send(client, "POST", f"{base}/groups/a~1b/resume", 204)
    await send(client, "DELETE", f"{base}/groups/a~1b/limits", 204)
    assert (await get(client, f"{base}/groups/a~1b/limits"))["concurrency"] is None
    await send(client, "PUT", f"{base}/groups/*/limits", 204, {"max_size": 5})
    assert (await get(client, f"{base}/limits"))["every_group"]["max_size"] == 5
    await send(client, "POST", f"{base}/hold", 204, {"seconds": 30})
    assert (await get(client, f"{base}/limits"))["hold_until_ms"] == stage.clock.now_ms() + 30_000


@pytest.mark.feature("O16", "P13")
async def test_schedules(stage: Stage, client: httpx.AsyncClient) -> None:
    path = f"/api/schedules/{QUEUE}/every~1day"
    body = {"cron": "0 3 * * *", "timezone": "Europe/Berlin", "task": "report", "data": {"days": 7}}
    made = await send(client, "PUT", path, 200, body)
    assert (made["name"], made["task"], made["cron"], made["paused"]) == (
        "every/day",
        "report",
        "0 3 * * *",
        False,
    )
    assert made["upcoming"][0] == made["next_ms"]
    assert [b - a for a, b in zip(made["upcoming"], made["upcoming"][1:], strict=False)][:1] == [86_400_000]
    assert [one["name"] for one in await get(client, "/api/schedules")] == ["every/day"]
    await send(client, "POST", f"{path}/pause", 204)
    assert (await get(client, path))["paused"] is True
    await send(client, "POST", f"{path}/resume", 204)
    ran = await send(client, "POST", f"{path}/run", 201)
    job = await get(client, f"/api/jobs/{QUEUE}/{ran['id']}")
    assert (job["task"], job["data"], job["schedule"]) == ("report", {"days": 7}, "every/day")
    assert (await get(client, path))["last_job_id"] == ran["id"]
    await send(client, "DELETE", path, 204)
    await send(client, "DELETE", path, 404)
    await send(client, "POST", f"{path}/pause", 404)
    await send(client, "PUT", path, 422, {"cron": "not a cron"})
    await send(client, "PUT", path, 422, {"cron": "* * * * *", "every": 5})


@pytest.mark.feature("O16", "P13")
async def test_the_rule_of_a_schedule_is_changed_and_its_jobs_stay(
    stage: Stage, client: httpx.AsyncClient
) -> None:
    path = f"/api/schedules/{QUEUE}/nightly"
    job = {"task": "report", "data": {"days": 7, "password": "hidden"}, "options": {"priority": 4}}
    await send(client, "PUT", path, 200, {"cron": "0 3 * * *", **job})
    changed = await send(client, "PUT", path, 200, {"every": 60, "overlap": "skip"})
    assert (changed["task"], changed["every"], changed["overlap"]) == ("report", 60, "skip")
    ran = await send(client, "POST", f"{path}/run", 201)
    added = await stage.app.queue(QUEUE).get_job(ran["id"])
    assert added is not None
    assert (added.name, added.data, added.priority) == ("report", {"days": 7, "password": "hidden"}, 4)
    again = await send(client, "PUT", path, 200, {"every": 60, "data": {"days": 1}})
    assert (again["task"], again["data"]) == ("report", {"days": 1})


@pytest.mark.feature("P13")
async def test_the_next_slots_of_a_rule_are_seen_before_it_is_saved(client: httpx.AsyncClient) -> None:
    path = "/api/v1/schedules/preview"
    nightly = (await get(client, path, cron="0 3 * * *", timezone="Asia/Tokyo"))["upcoming"]
    assert len(nightly) == 5
    assert {later - slot for slot, later in itertools.pairwise(nightly)} == {86_400_000}
    often = (await get(client, path, every=60))["upcoming"]
    assert {later - slot for slot, later in itertools.pairwise(often)} == {60_000}
    await get(client, path, 422, cron="not a cron")
    await get(client, path, 422, cron="0 3 * * *", timezone="Europe/Atlantis")
    await get(client, path, 422)


@pytest.mark.feature("O18")
async def test_flows(stage: Stage, client: httpx.AsyncClient, declare_missing: Callable[..., None]) -> None:
    tree = {
        "task": "publish",
        "queue": QUEUE,
        "children": [
            {"task": "draw", "queue": "images", "options": {"job_id": "leaf"}},
            {"task": "write", "queue": QUEUE, "on_failure": "ignore"},
        ],
    }
    if not stage.app.store.capabilities.flows:
        await send(client, "POST", "/api/flows", 501, tree)
        declare_missing("O18", reason="flows are declared missing")
        return
    top = await send(client, "POST", "/api/flows", 201, tree)
    assert top["state"] == "blocked"
    flow = await get(client, "/api/flows/images/leaf")
    names = [node["task"] for node in flow["nodes"]]
    assert sorted(names) == ["draw", "publish", "write"]
    assert (names[flow["root"]], names[flow["asked"]]) == ("publish", "draw")
    edges = {(names[e["child"]], names[e["dependent"]], e["status"], e["on_failure"]) for e in flow["edges"]}
    assert edges == {("draw", "publish", "open", "fail"), ("write", "publish", "open", "ignore")}
    job = await get(client, f"/api/jobs/{QUEUE}/{top['id']}")
    assert sorted(child["task"] for child in job["children"]) == ["draw", "write"]
    leaf = await get(client, "/api/jobs/images/leaf")
    assert [parent["id"] for parent in leaf["parents"]] == [top["id"]]
    assert await send(client, "POST", f"/api/flows/{QUEUE}/{top['id']}/cancel", 200) == {
        "count": 3,
        "more": False,
    }
    assert (await send(client, "DELETE", f"/api/flows/{QUEUE}/{top['id']}", 200))["count"] == 3
    await get(client, f"/api/flows/{QUEUE}/{top['id']}", 404)


@pytest.mark.feature("P7", "O13")
async def test_workers_show_what_runs_and_hear_commands(stage: Stage, client: httpx.AsyncClient) -> None:
    go = asyncio.Event()

    async def hold(job: Any) -> None:
        await job.update_progress(40)
        await go.wait()

    worker = await stage.work(hold)
    job = await stage.queue.add("slow")
    await stage.settle()
    process = (await get(client, "/api/processes"))[0]
    assert [(one["id"], one["task"], one["progress"]) for one in process["running"]] == [(job.id, "slow", 40)]
    await send(client, "POST", f"/api/processes/{worker.id}/quiet", 202)
    assert (await get(client, f"/api/processes/{worker.id}"))["command"] == "quiet"
    await send(client, "POST", f"/api/processes/{worker.id}/explode", 400)
    await send(client, "POST", "/api/processes/nobody/stop", 404)
    go.set()
    await stage.settle()


@pytest.mark.feature("P1", "P6")
async def test_overview_and_figures_over_time(shop: Shop, client: httpx.AsyncClient) -> None:
    overview = await get(client, "/api/overview")
    assert (overview["processed_today"], overview["failed_today"]) == (3, 2)
    assert (overview["processed_total"], overview["failed_total"]) == (3, 2)
    assert (overview["scheduled_count"], overview["retry_count"], overview["dead_count"]) == (1, 1, 1)
    assert (len(overview["minutes"]), len(overview["days"])) == (60, 30)
    assert sum(point["total"] for point in overview["minutes"]) == 3
    assert overview["days"][-1]["processed"] == 3
    assert overview["hour"]["duration_p95_ms"] is not None
    assert sum(overview["queues"][0]["per_minute"]) == 3
    series = await get(client, "/api/job-metrics/series", job_class="fail", step="hour")
    assert (series["source"], sum(point["failed"] for point in series["points"])) == ("store", 1)
    tasks = await get(client, "/api/job-metrics/tasks")
    assert [(one["task"], sum(point["total"] for point in one["points"])) for one in tasks] == [
        ("fail", 2),
        ("send", 1),
    ]
    await get(client, "/api/job-metrics/series", 422, from_ms=0)
    mark = await send(client, "POST", "/api/marks", 201, {"label": "v2"})
    assert await get(client, "/api/marks") == [mark]
    usage = await get(client, "/api/usage")
    assert usage["totals"]["enqueued"] == 5
    assert {one["task"]: one["totals"]["enqueued"] for one in await get(client, "/api/tasks")} == {
        "send": 3,
        "fail": 2,
    }


async def test_probes_and_prometheus(shop: Shop, client: httpx.AsyncClient) -> None:
    assert (await get(client, "/live"))["live"] is True
    assert (await get(client, "/ready"))["ready"] is True
    text = (await client.get("/metrics")).text
    assert f'windlass_queue_jobs{{queue="{QUEUE}",state="failed"}} 1' in text
    assert f'windlass_attempts_total{{queue="{QUEUE}",task="send",outcome="completed"}} 1' in text
    assert f'windlass_queue_latency_seconds{{queue="{QUEUE}"}} 2.0' in text


async def test_a_store_that_does_not_answer_is_told(shop: Shop, client: httpx.AsyncClient) -> None:
    faults = shop.stage.faults
    faults.refuse(rq.ListWorkers)
    ready = await client.get("/ready")
    assert (ready.status_code, ready.json()["ready"]) == (503, False)
    faults.refuse(rq.ListQueues)
    refused = await client.get("/api/job-queues")
    assert refused.status_code == 503
    assert refused.headers["content-type"] == "application/problem+json"
    assert {"type", "title", "status", "detail", "advice"} <= set(refused.json())
