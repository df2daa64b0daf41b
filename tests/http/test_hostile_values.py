"""One job or schedule with hostile stored values neither stops the dashboard nor hides the others."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from tests.http.support import api, get, send
from windlass import Windlass
from windlass.backend import requests as rq
from windlass.backend import schedule_requests as sq
from windlass.core.ids import new_id
from windlass.dashboard import paging

backend_name = "memory"

EXPORT = "/api/v1/jobs/export"
#: 60 MB of empty lists in 60 kB. To show them would take a minute and gigabytes.
BOMB = zlib.compress(b'{"kwargs":{"x":[' + b"[]," * 20_000_000 + b"0]}}", 9)


@pytest.fixture
async def app() -> AsyncIterator[Windlass]:
    async with Windlass(f"memory://hostile?namespace={new_id()}") as app:
        yield app


async def add_stored(app: Windlass, job_id: str, codec: str, payload: bytes) -> None:
    """Add a job with these stored bytes, past everything that checks arguments."""
    new = app.queue("mail").prepare("send", {}, job_id=job_id, delay=100)
    new.codec, new.payload = codec, payload
    await app.store.execute(rq.Add(jobs=[new]))


def value(stored: Any) -> bytes:
    return json.dumps({"kwargs": {"x": stored}}).encode()


@pytest.mark.parametrize(
    "path",
    [
        "/api/jobs",
        "/api/jobs?search=word",
        '/api/jobs?args={"x":1}',
        "/api/scheduled-jobs",
        "/api/job-queues/mail/jobs?state=scheduled",
        "/api/jobs/mail/bomb",
        EXPORT,
        f"{EXPORT}?format=csv",
    ],
)
async def test_a_small_value_that_decompresses_to_a_large_one_is_not_read(app: Windlass, path: str) -> None:
    await add_stored(app, "bomb", "json+zlib", BOMB)
    async with api(app) as client:
        began = time.monotonic()
        answer = await client.get(path)
        assert answer.status_code == 200
        assert len(answer.content) < 10_000
        assert time.monotonic() - began < 5


async def test_a_list_reads_a_compressed_value_only_if_it_is_small() -> None:
    async with Windlass(f"memory://hostile?namespace={new_id()}", compress=True) as app:
        await app.queue("mail").add("send", {"text": "a" * 50_000}, job_id="small", delay=100)
        await app.queue("mail").add("send", {"text": "a" * 100_000}, job_id="large", delay=100)
        async with api(app) as client:
            shown = {row["id"]: row["args_preview"] for row in (await get(client, "/api/jobs"))["items"]}
            assert shown["small"].startswith('{"text":"aaa')
            assert shown["large"].startswith('{"codec":"json+zlib","bytes":')
            job = await get(client, "/api/jobs/mail/large")
            assert job["data"] == {"text": "a" * 100_000}


async def test_a_search_stops_in_time_also_among_values_that_take_long(
    app: Windlass, monkeypatch: pytest.MonkeyPatch
) -> None:
    await app.queue("mail").add_bulk([{"name": "send", "data": {"x": 7}, "delay": 100}] * 10)
    monkeypatch.setattr(paging, "BUDGET_MS", -1)  # each comparison takes longer than the time that there is
    async with api(app) as client:
        found: list[Any] = []
        cursor: str | None = ""
        while cursor is not None:
            page = await get(client, "/api/jobs", search="args.x:7", cursor=cursor)
            assert len(page["items"]) == 1
            found += page["items"]
            cursor = page["next_cursor"]
        assert len({job["id"] for job in found}) == len(found) == 10


async def test_a_job_whose_arguments_are_nested_too_deeply_does_not_end_an_export(app: Windlass) -> None:
    await add_stored(app, "deep", "json", b'{"args":[' + b"[" * 900 + b"]" * 900 + b"]}")
    await add_stored(app, "good", "json", value(1))
    for mask in ((), ("secret",)):
        async with api(app, mask=mask) as client:
            lines = [json.loads(line) for line in (await client.get(EXPORT)).text.splitlines()]
            assert [(line["job_id"], line.get("unreadable", False)) for line in lines] == [
                ("deep", True),
                ("good", False),
            ]


async def test_a_number_that_cannot_be_compared_does_not_end_a_search(app: Windlass) -> None:
    await add_stored(app, "odd", "json+tagged", value({"$type": "decimal", "value": "sNaN"}))
    await add_stored(app, "good", "json+tagged", value(1))
    async with api(app) as client:
        for asked in ('args={"x":1}', "search=args.x:1"):
            found = await get(client, f"/api/jobs?{asked}")
            assert [job["id"] for job in found["items"]] == ["good"]
        filters = {"state": ["scheduled"], "args": {"x": 1}}
        body = {"action": "delete", "dry_run": True, "filter": filters}
        assert (await send(client, "POST", "/api/jobs/bulk", 200, body))["done"] == 1


@pytest.mark.parametrize(
    "change",
    [
        {"every_ms": 0},
        {"every_ms": None, "cron": "*/0 * * * *"},
        {"every_ms": None, "cron": "9" * 5_000 + " 0 * * *"},
        {"every_ms": None, "cron": "0 0 * * *", "timezone": "no/where"},
        {"every_ms": None, "strategy": "unknown"},
    ],
)
async def test_a_schedule_whose_rule_is_damaged_is_listed_with_the_others(
    app: Windlass, change: dict[str, Any]
) -> None:
    info = await app.queue("mail").upsert_job_scheduler("good", {"every": 60}, {"name": "send"})
    bad = msgspec.structs.replace(
        info.record, name="bad", rule=msgspec.structs.replace(info.record.rule, **change)
    )
    await app.store.execute(sq.PutSchedule(schedule=bad))
    async with api(app) as client:
        found = {one["name"]: one["upcoming"] for one in await get(client, "/api/schedules")}
        assert len(found["good"]) == 5
        assert len(found["bad"]) == 1
        await send(client, "DELETE", "/api/schedules/mail/bad", 204)


async def test_a_schedule_with_data_that_decompresses_to_a_large_value_is_listed(app: Windlass) -> None:
    info = await app.queue("mail").upsert_job_scheduler("good", {"every": 60}, {"name": "send"})
    template = msgspec.structs.replace(info.record.template, codec="json+zlib", payload=BOMB)
    bad = msgspec.structs.replace(info.record, name="bad", template=template)
    await app.store.execute(sq.PutSchedule(schedule=bad))
    async with api(app) as client:
        began = time.monotonic()
        found = {one["name"]: one["data"] for one in await get(client, "/api/schedules")}
        assert found["good"] is None
        assert found["bad"]["codec"] == "json+zlib"
        assert time.monotonic() - began < 5
