"""Who may come in, what they may do, and what is refused."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any

import httpx
import pytest

from tests.http.security_support import CHANGE, JOB, OPERATOR_HEADERS, READER_HEADERS, TOKENS, status
from tests.http.support import CSRF, OPERATOR, api, get, send
from windlass import Windlass
from windlass.dashboard import Identity, create_app
from windlass.dashboard.guard import CONTENT_POLICY
from windlass.dashboard.sessions import LIFETIME_MS
from windlass.errors import ConfigError

backend_name = "memory"


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


def test_tokens_that_an_earlier_release_took_work_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.deprecated_call(match="operator_tokens must be random texts of 22 characters"):
        create_app("memory://weak", operator_tokens="x" * 16)
    assert "the next release refuses shorter ones" in caplog.text
    with pytest.raises(ConfigError, match="22 characters"):
        create_app("memory://weak", operator_tokens="x" * 15)


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
