"""How much may be asked, which paths and queues are reached, what is masked, and what the audit log holds."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.http.security_support import CHANGE, JOB, OPERATOR_HEADERS, READER_HEADERS, TOKENS, status
from tests.http.support import OPERATOR, api, get, send
from windlass import Windlass, Worker
from windlass.dashboard import ServerLimits, create_app
from windlass.serde.signed import SignedCodec

backend_name = "memory"


# --- how much, and what ------------------------------------------------------------------------


@pytest.mark.feature("O19")
async def test_too_large_and_malformed_is_refused(app: Windlass) -> None:
    async with api(app, limits=ServerLimits(body_bytes=10_000)) as client:
        assert await status(client, *CHANGE, json={"task": "x", "data": "y" * 20_000}) == 413

        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(20):
                yield b"x" * 1_000

        assert await status(client, *CHANGE, content=chunks()) == 413, "also without a Content-Length"
        assert await status(client, "GET", "/api/jobs?q=" + "y" * 33_000) == 414
        assert await status(client, "GET", "/api/jobs/mail/" + "y" * 5_000) == 414
        for content in (b"{", b"\xff\xfe", b"[]", b'"text"', b"null", b""):
            assert await status(client, *CHANGE, content=content) == 400, content
        bodies: list[Any] = [
            {"task": "send", "unknown": 1},
            {"task": 7},
            {"task": "send", "options": []},
            {"task": ""},
            {"task": "a\nb"},
        ]
        for body in bodies:
            assert await status(client, *CHANGE, json=body) == 400, body
        bodies = [
            {},
            {"task": "send", "class": "send"},
            {"task": "send", "options": {"prioriti": 5}},
            {"task": "send", "options": {"job_id": "../../etc/passwd"}},
            {"task": "send", "options": {"delay": -1}},
            {"task": "send", "options": {"children": []}},
        ]
        for body in bodies:
            assert await status(client, *CHANGE, json=body) == 422, body
        assert await status(client, "GET", "/api/jobs?limit=0") == 400
        assert await status(client, "GET", "/api/jobs?limit=1001") == 400
        assert await status(client, "GET", "/api/jobs?state=zombie") == 400
        assert await status(client, "GET", "/api/jobs?cursor=zzz") == 400
        assert await status(client, "GET", "/api/jobs?args=notjson") == 400
    assert len(await app.queue("mail").get_jobs()) == 1, "nothing of it was added"


@pytest.mark.parametrize(
    "path",
    [
        "/assets/..%2f..%2fguard.py",
        "/assets/%2e%2e/guard.py",
        "/assets/....//guard.py",
        "/assets//etc/passwd",
        "/assets/..",
        "/api/jobs/..%2f..%2fetc/passwd",
        "/api/job-queues/..%2f..%2fother/jobs",
        "/api/job-queues/%2e%2e/jobs",
        "/api/job-queues/mail%00/jobs",
        "/api/job-queues/a:b/jobs",
        "/api/job-queues/{mail}/jobs",
    ],
)
async def test_paths_reach_no_file_and_no_other_namespace(app: Windlass, path: str) -> None:
    guard = create_app(app)
    answer: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def sent(message: Any) -> None:
        answer.append(message)

    from urllib.parse import unquote

    scope = {
        "type": "http",
        "method": "GET",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "headers": [(b"host", b"127.0.0.1")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "http_version": "1.1",
    }
    await guard(scope, receive, sent)
    assert answer[0]["status"] in (400, 404)
    body = b"".join(message.get("body", b"") for message in answer[1:])
    assert b"import" not in body
    assert json.loads(body)["code"] in ("bad_request", "not_found")


async def test_a_namespace_sees_only_itself(tmp_path: Path) -> None:
    file = tmp_path / "jobs.db"
    async with Windlass(f"sqlite:///{file}?namespace=one") as one:
        async with Windlass(f"sqlite:///{file}?namespace=two") as two:
            await one.queue("mail").add("send", job_id="secret", delay=100)
            async with api(two) as client:
                assert await get(client, "/api/job-queues") == []
                await get(client, "/api/jobs/mail/secret", 404)
                await send(client, "POST", "/api/scheduled-jobs/secret/trigger", 404)
                assert (await get(client, "/api/session"))["namespace"] == "two"


@pytest.mark.feature("O19")
async def test_queues_that_are_not_shown_do_not_exist(app: Windlass) -> None:
    await app.queue("secret-one").add("hidden", job_id="x", delay=100)
    async with api(app, queues=["mail", "shop-*"]) as client:
        assert [queue["name"] for queue in await get(client, "/api/job-queues")] == ["mail"]
        assert [job["jid"] for job in await get(client, "/api/scheduled-jobs")] == ["one"]
        assert len((await get(client, "/api/jobs"))["items"]) == 1
        for path in (
            "/api/job-queues/secret-one",
            "/api/job-queues/secret-one/jobs",
            "/api/jobs/secret-one/x",
            "/api/flows/secret-one/x",
            "/api/jobs?queue=secret-one",
            "/api/job-queues/secret-one/limits",
            "/api/job-queues/secret-one/events",
        ):
            await get(client, path, 404)
        await send(client, "POST", "/api/scheduled-jobs/x/trigger", 404)
        await send(client, "POST", "/api/job-queues/secret-one/jobs", 404, {"task": "x"})
        body = {"action": "delete", "refs": [{"queue": "secret-one", "id": "x"}]}
        await send(client, "POST", "/api/jobs/bulk", 404, body)
        assert "secret-one" not in (await client.get("/metrics")).text
    assert await app.queue("secret-one").get_job("x") is not None


async def test_clients_that_ask_too_much_wait(app: Windlass) -> None:
    limits = ServerLimits(burst=5, per_second=0.001, change_burst=2, changes_per_second=0.001)
    async with api(app, limits=limits) as client:
        assert [await status(client, *CHANGE, json=JOB) for _ in range(3)] == [201, 201, 429]
        assert [await status(client, "GET", "/live") for _ in range(3)] == [200, 200, 429]
        refused = await client.get("/live")
        assert int(refused.headers["retry-after"]) >= 1


# --- what is hidden, what is written down ------------------------------------------------------


async def test_masked_fields_are_never_shown(app: Windlass) -> None:
    async with api(app) as client:
        job = await get(client, "/api/jobs/mail/one")
        hidden = {"to": "ada", "password": "[masked]", "nested": [{"api_token": "[masked]"}]}
        assert (job["kwargs"], job["data"], job["masked"]) == (hidden, hidden, True)
        everything = [
            (await client.get(path)).text
            for path in (
                "/api/jobs",
                "/api/scheduled-jobs",
                "/api/jobs/mail/one",
                "/api/jobs/mail/one/timeline",
                "/api/jobs?q=hunter2",
            )
        ]
        assert not any("hunter2" in text for text in everything)
        assert (await get(client, "/api/jobs?q=hunter2"))["items"] == [], "nor found by"
        await get(client, '/api/jobs?args={"password":"hunter2"}', 403)
        await send(client, "PATCH", "/api/jobs/mail/one", 204, {"data": {**hidden, "to": "bob"}})
    stored = await app.queue("mail").get_job("one")
    assert stored is not None
    assert stored.data == {"to": "bob", "password": "hunter2", "nested": [{"api_token": "t"}]}
    async with api(app, mask=["*"]) as client:
        text = (await client.get("/api/jobs/mail/one")).text
        assert "bob" not in text
    async with api(app, mask=[]) as client:
        assert "hunter2" in (await client.get("/api/jobs/mail/one")).text


async def test_parameters_that_are_nested_without_end_are_refused(app: Windlass) -> None:
    nested = "[" * 2_000 + "]" * 2_000
    cursor = base64.urlsafe_b64encode(f'["", {{}}, [], {nested}]'.encode()).decode().rstrip("=")
    async with api(app) as client:
        assert (await get(client, "/api/jobs", 400, cursor=cursor))["code"] == "bad_cursor"
        assert (await get(client, "/api/jobs", 400, args=f'{{"a":{nested[200:-200]}}}'))["code"] == "bad_args"


@pytest.mark.parametrize(
    "wanted",
    [{"password": None}, {"nested": [{"api_token": "t"}]}, {"to": {"deeper": [[{"Api-Key": "[masked]"}]]}}],
)
async def test_no_job_is_found_by_a_masked_field_at_any_depth(app: Windlass, wanted: dict[str, Any]) -> None:
    async with api(app) as client:
        await get(client, "/api/jobs", 403, args=json.dumps(wanted))
        body = {"action": "cancel", "filter": {"state": ["scheduled"], "args": wanted}}
        await send(client, "POST", "/api/jobs/bulk", 403, body)


async def test_bytes_that_the_dashboard_cannot_read_do_not_walk_around_the_mask() -> None:
    """A signed job says its arguments in clear to a dashboard that has no key."""
    url = f"memory://unread-{id(object())}"
    async with Windlass(url, codec=SignedCodec({"k": "0123456789abcdef"})) as signing, Windlass(url) as plain:
        queue = signing.queue("mail")
        await queue.add("send", {"password": "hunter2"}, job_id="signed", delay=100)
        await queue.upsert_job_scheduler("nightly", {"every": 3_600}, {"data": {"password": "hunter2"}})
        paths = ("/api/jobs/mail/signed", "/api/jobs", "/api/schedules", "/api/job-queues/mail/jobs")
        inside = base64.b64encode(b"xx" + b"hunter2")[4:8].decode()  # some part of it, wherever it begins
        async with api(plain) as client:
            for path in paths:
                text = (await client.get(path)).text
                assert not any(part in text for part in ("hunter2", "d2wtcz", inside)), path
            shown = (await get(client, paths[0]))["data"]
            assert (shown["codec"], shown["base64"]) == ("json+signed", "[masked]")
        async with api(plain, mask=[]) as client:
            assert b"hunter2" in base64.b64decode((await get(client, paths[0]))["data"]["base64"])


async def test_a_mask_of_everything_hides_messages_of_events_too(app: Windlass) -> None:
    async def fail(job: Any) -> None:
        raise ValueError("the card 4111 was refused")

    job = await app.queue("shop").add("pay", job_id="two", max_attempts=1)
    async with Worker("shop", fail, url_or_app=app):
        await job.wait_until_finished(30)
    async with api(app, mask=["*"]) as client:
        for path in ("/api/jobs/shop/two/timeline", "/api/job-queues/shop/events?after=0&seconds=0"):
            text = (await client.get(path)).text
            assert "ValueError" in text
            assert "4111" not in text, path


async def test_every_change_is_in_the_audit_log(
    app: Windlass, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "windlass.audit")
    file = tmp_path / "audit.jsonl"
    options: dict[str, Any] = {**TOKENS, "audit_file": file}
    async with api(app, headers=OPERATOR_HEADERS, **options) as client:
        await send(client, *CHANGE, 201, JOB)
        await send(client, "POST", "/api/dead-jobs/nobody/retry", 404)
        await get(client, "/api/jobs")
    async with api(app, headers=READER_HEADERS, **options) as client:
        await client.delete("/api/scheduled-jobs/one")
        entries = (await get(client, "/api/audit"))["items"]
        page = await get(client, "/api/audit", limit=1)
        rest = await get(client, "/api/audit", limit=1, cursor=page["next_cursor"])
        refused = (await get(client, "/api/audit", refused=True))["items"]
    told = [
        (entry["who"], entry["role"], entry["action"], entry["status"], entry["outcome"])
        for entry in [*refused, *entries]
    ]
    assert told == [
        ("grafana", "reader", "DELETE /api/scheduled-jobs/{jid}", 403, "refused"),
        ("operator", "operator", "POST /api/dead-jobs/{jid}/retry", 404, "refused"),
        ("operator", "operator", "POST /api/job-queues/{queue}/jobs", 201, "ok"),
    ]
    assert entries[1]["facts"]["task"] == "send"
    assert entries[1]["client"] == "127.0.0.1"
    assert page["items"] + rest["items"] == entries
    assert len(file.read_text().splitlines()) == 2
    assert file.stat().st_mode & 0o077 == 0
    assert len([record for record in caplog.records if record.name == "windlass.audit"]) == 3
    assert OPERATOR not in file.read_text() + caplog.text
    assert "hunter2" not in file.read_text() + caplog.text
