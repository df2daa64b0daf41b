"""Searching, sorting and explaining over the API, on every store."""

from __future__ import annotations

from collections import Counter
from typing import Any

import httpx
import pytest

from tests.http.support import Shop, get, send
from windlass_conformance.harness import QUEUE
from windlass_conformance.stage import Stage


async def names(shop: Shop, client: httpx.AsyncClient, search: str, **params: Any) -> list[str]:
    found = await get(client, "/api/v1/jobs", search=search, **params)
    known = {job_id: name for name, job_id in shop.ids.items()}
    return sorted(known[item["id"]] for item in found["items"])


@pytest.mark.feature("P11")
@pytest.mark.parametrize(
    ("search", "wanted"),
    [
        ("task:send", ["done", "scheduled", "waiting"]),
        ("task:s* tag:paid", ["done"]),
        ("error:Timeout* args.to:eve", ["retry"]),
        ('error:"no answer from bob"', ["dead"]),
        ("state:failed,retrying", ["dead", "retry"]),
        ("args.0:kim args.1:7", ["waiting"]),
        ('"answer from eve"', ["retry"]),
        ("finished:<1h", ["dead", "done"]),
        ("due:>30m", ["scheduled"]),
        ("attempts:>=1", ["dead", "retry"]),
        ("queue:nowhere", []),
    ],
)
async def test_a_query_finds_the_jobs_that_it_describes(
    shop: Shop, client: httpx.AsyncClient, search: str, wanted: list[str]
) -> None:
    assert await names(shop, client, search) == wanted


@pytest.mark.feature("P11")
@pytest.mark.parametrize(
    ("search", "near"),
    [("tsk:send", "task"), ("state:wating", "waiting"), ("args:7", "args.NAME"), ("finished:soon", "<1h")],
)
async def test_a_query_that_cannot_be_understood_is_refused_with_what_is_near(
    shop: Shop, client: httpx.AsyncClient, search: str, near: str
) -> None:
    refused = await get(client, "/api/v1/jobs", 422, search=search)
    assert near in refused["detail"], refused


@pytest.mark.parametrize("field", ["took", "finished", "added", "due"])
@pytest.mark.parametrize("sign", ["<", ">"])
@pytest.mark.parametrize("digits", [30, 400])
async def test_a_span_without_end_is_longer_than_any_job_has_taken(
    shop: Shop, client: httpx.AsyncClient, field: str, sign: str, digits: int
) -> None:
    found = await names(shop, client, f"{field}:{sign}{'9' * digits}d")
    assert bool(found) is (sign == "<")


@pytest.mark.feature("P11")
async def test_the_id_of_a_job_is_answered_at_once_however_many_jobs_there_are(
    stage: Stage, client: httpx.AsyncClient
) -> None:
    await stage.queue.add("send", {"n": 0}, job_id="needle")
    await stage.queue.add_bulk([{"name": "send", "data": {"n": n, "of": "needle"}} for n in range(300)])
    found = await get(client, "/api/v1/jobs", search="id:needle")
    assert [item["id"] for item in found["items"]] == ["needle"]
    assert (found["done"], found["scanned"]) == (True, 1)
    first = await get(client, "/api/v1/jobs", search="needle")
    assert [item["id"] for item in first["items"]] == ["needle"] and not first["done"]
    rest = await get(client, "/api/v1/jobs", search="needle", cursor=first["next_cursor"], limit=1_000)
    assert len(rest["items"]) == 300 and rest["done"]
    assert (await get(client, "/api/v1/jobs", search="id:needle state:failed"))["items"] == []


@pytest.mark.feature("P11")
async def test_a_search_goes_on_until_its_page_is_full(stage: Stage, client: httpx.AsyncClient) -> None:
    for start in range(0, 3_000, 1_000):
        jobs = [{"name": "send", "data": {"n": start + at}} for at in range(1_000)]
        await stage.queue.add_bulk(jobs)
    found = await get(client, "/api/v1/jobs", search="args.n:3")
    assert [item["args_preview"] for item in found["items"]] == ['{"n":3}']
    assert found["done"] and found["scanned"] >= 3_000


@pytest.mark.feature("P3", "P4", "P5")
async def test_lists_come_in_the_order_in_which_things_happen(
    stage: Stage, client: httpx.AsyncClient
) -> None:
    for name, delay in (("late", 90), ("soon", 10), ("then", 30)):
        await stage.queue.add("send", job_id=name, delay=delay)
    page = await get(client, "/api/v1/jobs", state="scheduled", sort="due", order="oldest", limit=2)
    assert [item["id"] for item in page["items"]] == ["soon", "then"]
    params = {"state": "scheduled", "sort": "due", "order": "oldest", "cursor": page["next_cursor"]}
    assert [item["id"] for item in (await get(client, "/api/v1/jobs", **params))["items"]] == ["late"]
    assert [job["jid"] for job in await get(client, "/api/scheduled-jobs")] == ["soon", "then", "late"]
    refused = await get(client, "/api/v1/jobs", 422, state="waiting", sort="due")
    assert "sort" in refused["detail"]


@pytest.mark.feature("P12")
async def test_a_dry_run_counts_and_changes_nothing(shop: Shop, client: httpx.AsyncClient) -> None:
    body: dict[str, Any] = {"action": "retry", "filter": {"search": "state:failed,completed,scheduled"}}
    counted = await send(client, "POST", "/api/v1/jobs/bulk", 200, {**body, "dry_run": True})
    assert (counted["done"], counted["failed"], counted["dry_run"]) == (2, 1, True)
    assert counted["states"] == {"failed": 1, "completed": 1, "scheduled": 1}
    assert await names(shop, client, "state:failed") == ["dead"]
    audit = await get(client, "/api/audit")
    assert "state:failed,completed" in str(audit), audit


async def test_why_a_job_waits_is_told(shop: Shop, client: httpx.AsyncClient) -> None:
    path = f"/api/v1/jobs/{QUEUE}"
    why = await get(client, f"{path}/{shop['waiting']}/why")
    assert [cause["kind"] for cause in why["causes"]] == ["no_worker"] and why["place"] == 1
    await send(client, "POST", f"/api/job-queues/{QUEUE}/pause", 204)
    why = await get(client, f"{path}/{shop['waiting']}/why")
    assert [cause["kind"] for cause in why["causes"]] == ["queue_paused", "no_worker"]
    why = await get(client, f"{path}/{shop['scheduled']}/why")
    assert why["causes"][0]["kind"] == "scheduled" and why["causes"][0]["until_ms"] > 0
    assert (await get(client, f"{path}/{shop['retry']}/why"))["causes"][0]["kind"] == "retry_later"
    assert (await get(client, f"{path}/{shop['done']}/why"))["causes"][0]["kind"] == "finished"
    await get(client, f"{path}/nobody/why", 404)


async def test_health_names_what_needs_a_look(shop: Shop, client: httpx.AsyncClient) -> None:
    report = await get(client, "/api/v1/health")
    (finding,) = [one for one in report["findings"] if one["check"] == "unserved"]
    assert (finding["level"], finding["queue"], finding["count"]) == ("problem", QUEUE, 2)
    assert not report["healthy"]


async def test_errors_are_told_by_fingerprint(shop: Shop, client: httpx.AsyncClient) -> None:
    found = await get(client, "/api/v1/errors")
    assert found["done"] and {group["error_class"] for group in found["groups"]} == {"TimeoutError"}
    assert sum(group["count"] for group in found["groups"]) == 2
    for group in found["groups"]:
        assert group["tasks"] == ["fail"] and sum(group["per_hour"]) == group["count"]
        assert group["sample"]["id"] in (shop["dead"], shop["retry"])
    states = [state for group in found["groups"] for state in group["states"]]
    assert sorted(states) == ["failed", "retrying"]
    assert (await get(client, "/api/v1/errors", task="f*"))["groups"] == found["groups"]
    assert (await get(client, "/api/v1/errors", task="send"))["groups"] == []


def count_requests(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The requests that the store gets from now on, by name."""
    asked: Counter[str] = Counter()
    execute = type(stage.app.store).execute

    async def counted(store: Any, request: Any, *args: Any, **named: Any) -> Any:
        asked[type(request).__name__] += 1
        return await execute(store, request, *args, **named)

    monkeypatch.setattr(type(stage.app.store), "execute", counted)
    return asked


async def test_errors_are_read_again_only_when_a_job_failed_or_left(
    shop: Shop, client: httpx.AsyncClient, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await get(client, "/api/v1/errors")
    asked = count_requests(stage, monkeypatch)
    await stage.queue.add("send", {"to": "lee"})
    assert await get(client, "/api/v1/errors") == before
    assert asked["ListJobs"] == 0
    await send(client, "DELETE", f"/api/v1/jobs/{QUEUE}/{shop['dead']}", 204)
    (left,) = (await get(client, "/api/v1/errors"))["groups"]
    assert (left["count"], left["sample"]["id"]) == (1, shop["retry"])
    asked.clear()
    (left,) = (await get(client, "/api/v1/errors"))["groups"]
    assert (left["count"], asked["ListJobs"]) == (1, 0)

    async def handle(job: Any) -> None:
        raise TimeoutError("no answer from joe")

    worker = await stage.work(handle)
    await stage.queue.add("fail", max_attempts=1)
    await stage.settle()
    await worker.close()
    groups = (await get(client, "/api/v1/errors"))["groups"]
    assert sum(group["count"] for group in groups) > 1
