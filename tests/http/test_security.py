"""Who may come in, what they may do, what is refused, and what is written down about it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.http.support import CSRF, OPERATOR, READER, api, get, send
from windlass import Windlass, Worker
from windlass.dashboard import Identity, ServerLimits, create_app
from windlass.dashboard.guard import CONTENT_POLICY
from windlass.dashboard.sessions import LIFETIME_MS
from windlass.errors import ConfigError
from windlass.serde.signed import SignedCodec

backend_name = "memory"

OPERATOR_HEADERS = {"Authorization": f"Bearer {OPERATOR}"}
READER_HEADERS = {"Authorization": f"Bearer {READER}"}
TOKENS: dict[str, Any] = {"operator_tokens": OPERATOR, "reader_tokens": {"grafana": READER}}
CHANGE = ("POST", "/api/job-queues/mail/jobs")
JOB = {"task": "send", "data": {"to": "ada", "password": "hunter2", "nested": [{"api_token": "t"}]}}


@pytest.fixture
async def app() -> AsyncIterator[Windlass]:
    async with Windlass(f"memory://{Path(__file__).stem}-{id(object())}") as app:
        await app.queue("mail").add("send", JOB["data"], job_id="one", delay=100)
        yield app


async def status(client: httpx.AsyncClient, method: str, path: str, **more: Any) -> int:
    return (await client.request(method, path, **more)).status_code


# --- sign-in -----------------------------------------------------------------------------------


@pytest.mark.feature("P16")
async def test_without_a_sign_in_only_this_machine_is_served(app: Windlass) -> None:
    guard = create_app(app)
    for address, host, expected in [
        ("127.0.0.1", "127.0.0.1:8080", 200),
        ("::1", "localhost", 200),
        ("10.0.0.7", "127.0.0.1:8080", 403),
        ("127.0.0.1", "evil.example", 403),
        ("not an address", "localhost", 403),
    ]:
        transport = httpx.ASGITransport(guard, client=(address, 1))
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}") as client:
            assert await status(client, "GET", "/api/job-queues") == expected, (address, host)


@pytest.mark.feature("P16")
async def test_strangers_see_nothing(app: Windlass) -> None:
    async with api(app, headers={}, **TOKENS) as client:
        for path in (
            "/api/job-queues",
            "/job-queues",
            "/metrics",
            "/api/audit",
            "/api/openapi.json",
            "/api/live",
        ):
            answer = await client.get(path)
            assert answer.status_code == 401, path
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.headers["content-type"] == "application/problem+json"
        assert await status(client, *CHANGE, json=JOB) == 401
        session = await get(client, "/api/session")
        assert (session["authenticated"], session["role"], session["backend"]) == (False, "none", "")
        assert await status(client, "GET", "/live") == 200
        assert await status(client, "GET", "/api/jobs", headers={"Authorization": "Bearer wrong"}) == 401


@pytest.mark.feature("P16")
@pytest.mark.parametrize("prefix", ["", "/jobs"])
@pytest.mark.parametrize("path", ["/api/jobs", "/api/audit", "/metrics", "/api/live", "/api/job-queues"])
async def test_a_path_with_an_empty_segment_reads_nothing(app: Windlass, path: str, prefix: str) -> None:
    async with api(app, headers={}, prefix=prefix, **TOKENS) as client:
        for written in (f"/{path}", f"//{path}", path.replace("/", "//"), f"{path}//"):
            answer = await client.get(httpx.URL(f"http://127.0.0.1:8080{prefix}{written}"))
            assert answer.status_code == 404, written
            signed_in = await client.get(f"http://127.0.0.1:8080{prefix}{written}", headers=OPERATOR_HEADERS)
            assert signed_in.status_code == 404, "for everyone alike"


@pytest.mark.feature("P16")
@pytest.mark.parametrize(
    "path",
    [
        "/job-queues",
        "/job-queues/mail",
        "/scheduled-jobs",
        "/retries",
        "/dead-jobs",
        "/job-metrics",
        "/worker-processes",
    ],
)
async def test_two_accept_headers_are_one(app: Windlass, path: str) -> None:
    async with api(app, headers={}, **TOKENS) as client:
        for values in (("application/json", "text/html"), ("text/html", "application/json")):
            answer = await client.get(path, headers=[("Accept", value) for value in values])
            assert answer.headers["content-type"].startswith("text/html")
            assert "mail" not in answer.text
        assert await status(client, "GET", path, headers={"Accept": "application/json"}) == 401


@pytest.mark.feature("P16")
@pytest.mark.parametrize(
    "headers",
    [
        [("Host", "a, b")],
        [("Host", "a b")],
        [("Host", "127.0.0.1"), ("Host", "127.0.0.1")],
        [("Host", "127.0.0.1"), ("Authorization", "Bearer x"), ("Authorization", f"Bearer {OPERATOR}")],
        [("Host", "127.0.0.1"), ("Origin", "http://127.0.0.1"), ("Origin", "https://evil.example")],
    ],
)
async def test_headers_that_two_readers_could_read_differently_are_refused(
    app: Windlass, headers: list[tuple[str, str]]
) -> None:
    for options in ({}, TOKENS):
        sent: list[Any] = []
        raw = [(name.lower().encode(), value.encode()) for name, value in headers]
        scope = {"type": "http", "method": "GET", "path": "/api/jobs", "query_string": b"", "headers": raw}

        async def send_it(message: Any, sent: list[Any] = sent) -> None:
            sent.append(message)

        await create_app(app, **options)({**scope, "client": ("127.0.0.1", 1)}, None, send_it)  # type: ignore[arg-type]
        assert sent[0]["status"] == 400


@pytest.mark.feature("P16")
@pytest.mark.parametrize(
    "header", ["Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-IP"]
)
async def test_without_a_sign_in_a_proxy_on_this_machine_does_not_make_the_world_local(
    app: Windlass, header: str
) -> None:
    async with api(app) as client:
        assert await status(client, "GET", "/api/jobs") == 200
        assert await status(client, "GET", "/api/jobs", headers={header: "127.0.0.1"}) == 403
        assert await status(client, *CHANGE, json=JOB, headers={header: "127.0.0.1"}) == 403


@pytest.mark.feature("P16")
async def test_a_reader_looks_and_an_operator_changes(app: Windlass) -> None:
    async with api(app, headers=READER_HEADERS, **TOKENS) as client:
        assert len(await get(client, "/api/scheduled-jobs")) == 1
        assert (await get(client, "/api/session"))["read_only"] is True
        for method, path in [
            CHANGE,
            ("POST", "/api/scheduled-jobs/one/trigger"),
            ("DELETE", "/api/scheduled-jobs/one"),
            ("POST", "/api/job-queues/mail/pause"),
            ("PUT", "/api/schedules/mail/nightly"),
            ("PATCH", "/api/jobs/mail/one"),
            ("POST", "/api/jobs/bulk"),
        ]:
            assert await status(client, method, path, json=JOB) == 403, path
        assert await status(client, "GET", "/api/v1/workers/one/stacks") == 403
        assert len(await get(client, "/api/scheduled-jobs")) == 1
    async with api(app, headers=OPERATOR_HEADERS, **TOKENS) as client:
        await send(client, "POST", "/api/scheduled-jobs/one/trigger", 204)
    async with api(app, headers=OPERATOR_HEADERS, read_only=True, **TOKENS) as client:
        assert await status(client, *CHANGE, json=JOB) == 403


@pytest.mark.feature("P16")
async def test_passwords(app: Windlass) -> None:
    users: dict[str, Any] = {"users": {"ada": "correct horse"}, "reader_users": {"bob": "battery staple"}}

    def basic(name: str, password: str) -> dict[str, str]:
        return {"Authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode(), **CSRF}

    async with api(app, headers={}, **users) as client:
        refused = await client.get("/api/job-queues")
        assert refused.headers["www-authenticate"].startswith("Basic ")
        assert await status(client, *CHANGE, json=JOB, headers=basic("ada", "correct horse")) == 201
        assert await status(client, *CHANGE, json=JOB, headers=basic("bob", "battery staple")) == 403
        assert await status(client, "GET", "/api/jobs", headers=basic("bob", "battery staple")) == 200
        assert await status(client, "GET", "/api/jobs", headers=basic("ada", "wrong")) == 401
        assert await status(client, "GET", "/api/jobs", headers={"Authorization": "Basic %%%"}) == 401


@pytest.mark.feature("P16")
async def test_a_session_of_a_browser(app: Windlass) -> None:
    async with api(app, headers={}, **TOKENS) as client:
        await client.post("/api/session", json={"token": "wrong"}, headers=CSRF)
        assert await status(client, "GET", "/api/jobs") == 401
        signed_in = await client.post("/api/session", json={"token": OPERATOR}, headers=CSRF)
        cookie = signed_in.headers["set-cookie"]
        assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
        assert (await get(client, "/api/session"))["role"] == "operator"
        assert await status(client, *CHANGE, json=JOB) == 403, "a cookie alone changes nothing"
        assert await status(client, *CHANGE, json=JOB, headers=CSRF) == 201
        gone = await client.delete("/api/session", headers=CSRF)
        assert "Max-Age=0" in gone.headers["set-cookie"]


@pytest.mark.feature("P16")
async def test_a_forged_an_old_a_signed_out_and_a_rotated_cookie_open_nothing(
    app: Windlass, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with api(app, headers=CSRF, **TOKENS) as client:

        async def sign_in(before: str = "") -> str:
            headers = {"Cookie": f"windlass_session={before}"} if before else {}
            answer = await client.post("/api/session", json={"token": OPERATOR}, headers=headers)
            client.cookies.clear()
            return answer.headers["set-cookie"].partition("=")[2].partition(";")[0]

        async def opens(value: str, method: str = "GET", path: str = "/api/jobs") -> bool:
            headers = {"Cookie": f"windlass_session={value}"}
            return await status(client, method, path, headers=headers) < 300

        first = await sign_in()
        assert await opens(first)
        for forged in ("", first[:-1], first[::-1], old_cookie(b"windlass session\n"), old_cookie(b"")):
            assert not await opens(forged), "forged"
        rotated = await sign_in(first)
        assert not await opens(first), "a new sign-in takes the place of the old"
        assert await opens(rotated)
        assert await opens(rotated, "DELETE", "/api/session")
        assert not await opens(rotated), "signed out"
        here, there = await sign_in(), await sign_in()
        assert await opens(here, "DELETE", "/api/session?everywhere=true")
        assert not await opens(there), "signed out everywhere"
        old, other = await sign_in(), await sign_in()
        assert await opens(old, "DELETE", "/api/session")
        assert await opens(other), "sessions end one by one"
        then_ms = app.clock.now_ms() + LIFETIME_MS
        monkeypatch.setattr(app.clock, "now_ms", lambda: then_ms)
        assert not await opens(other), "old"
        last = await sign_in()
    async with api(app, headers={"Cookie": f"windlass_session={last}"}, **TOKENS) as client:
        assert await status(client, "GET", "/api/jobs") == 401, "another process, or this one after a restart"


def old_cookie(secret: bytes) -> str:
    """A cookie as they once were: signed with a key that was made of the secrets."""
    claims = base64.urlsafe_b64encode(json.dumps(["eve", "operator", 2**52]).encode()).decode().rstrip("=")
    key = hashlib.sha256(secret).digest()
    return f"{claims}.{hmac.new(key, claims.encode(), hashlib.sha256).hexdigest()}"


@pytest.mark.feature("P16")
async def test_a_hook_alone_takes_no_cookie_and_no_sign_in(app: Windlass) -> None:
    forged = {**CSRF, "Cookie": f"windlass_session={old_cookie(b'windlass session' + bytes([10]))}"}
    async with api(app, headers=forged, auth=lambda scope: None) as client:
        assert await status(client, "GET", "/api/jobs") == 401
        assert await status(client, *CHANGE, json=JOB) == 401
        assert await status(client, "POST", "/api/session", json={"username": "-", "password": "-"}) == 401
        assert await status(client, "GET", "/api/jobs") == 401


@pytest.mark.feature("P16")
async def test_a_hook_of_the_application(app: Windlass) -> None:
    async def check(scope: Any) -> Identity | str | None:
        headers = dict(scope["headers"])
        name = headers.get(b"x-user", b"").decode()
        if name == "ada":
            return Identity("ada", "operator")
        return "reader" if name == "bob" else None

    async with api(app, headers=CSRF, auth=check) as client:
        assert await status(client, "GET", "/api/jobs") == 401
        assert await status(client, "GET", "/", headers={"Accept": "text/html"}) == 401
        assert await status(client, "GET", "/api/jobs", headers={"X-User": "bob"}) == 200
        assert await status(client, *CHANGE, json=JOB, headers={"X-User": "bob"}) == 403
        assert await status(client, *CHANGE, json=JOB, headers={"X-User": "ada"}) == 201


@pytest.mark.parametrize(
    "options",
    [
        {"operator_tokens": "short"},
        {"users": {"ada": "x"}},
        {"users": {"a:b": "long enough"}},
        {"prefix": "jobs"},
    ],
)
def test_weak_secrets_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        create_app("memory://weak", **options)


# --- other sites -------------------------------------------------------------------------------


@pytest.mark.feature("P16")
@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, 403),
        ({**CSRF, "Origin": "http://127.0.0.1:8080"}, 201),
        ({**CSRF, "Sec-Fetch-Site": "same-origin"}, 201),
        ({**CSRF, "Origin": "https://evil.example"}, 403),
        ({**CSRF, "Origin": "null"}, 403),
        ({**CSRF, "Origin": "http://["}, 403),
        ({**CSRF, "Origin": "https://friend.example", "Sec-Fetch-Site": "cross-site"}, 201),
        ({**CSRF, "Sec-Fetch-Site": "cross-site"}, 403),
        ({**CSRF, "Sec-Fetch-Site": "same-site"}, 403),
        ({"X-Windlass-CSRF": "0"}, 403),
    ],
)
async def test_changes_that_another_site_sends_are_refused(
    app: Windlass, headers: dict[str, str], expected: int
) -> None:
    async with api(app, headers=headers, trusted_origins=["https://friend.example"]) as client:
        assert await status(client, *CHANGE, json=JOB) == expected


async def test_every_answer_carries_the_security_headers(app: Windlass) -> None:
    async with api(app, **TOKENS) as client:
        for path in ("/api/session", "/api/jobs", "/nowhere", "/live", "/job-queues"):
            headers = (await client.get(path, headers={"Accept": "text/html"})).headers
            assert headers["content-security-policy"] == CONTENT_POLICY
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["x-frame-options"] == "DENY"
            assert headers["referrer-policy"] == "no-referrer"
            assert headers["cache-control"] == "no-store"
            assert "access-control-allow-origin" not in headers
    assert "unsafe" not in CONTENT_POLICY


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
