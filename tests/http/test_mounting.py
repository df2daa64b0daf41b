"""The dashboard inside other applications, and behind a proxy."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount

from tests.http import django_host
from tests.http.support import CSRF, OPERATOR
from windlass import Windlass
from windlass.core.ids import new_id
from windlass.dashboard import OpenID, Roles, create_app, create_stores_app
from windlass.dashboard.guard import CONTENT_POLICY
from windlass.dashboard.static import Static
from windlass.errors import ConfigError

backend_name = "memory"
HEADERS = {"Authorization": f"Bearer {OPERATOR}"}


@pytest.fixture
async def app() -> AsyncIterator[Windlass]:
    async with Windlass(f"memory://mounting?namespace={new_id()}") as app:
        await app.queue("mail").add("send", job_id="one", delay=60)
        yield app


def in_fastapi(app: Windlass) -> Any:
    host = FastAPI()
    host.mount("/admin/jobs", create_app(app, operator_tokens=OPERATOR))
    return host


def in_starlette(app: Windlass) -> Any:
    return Starlette(routes=[Mount("/admin/jobs", create_app(app, operator_tokens=OPERATOR))])


def in_django(app: Windlass) -> Any:
    """As in a project's ``asgi.py``: what begins with the prefix is ours, the rest is Django's."""
    django_host.start()
    from django.core.asgi import get_asgi_application

    django = get_asgi_application()
    dashboard = create_app(app, operator_tokens=OPERATOR, prefix="/admin/jobs")

    async def host(scope: Any, receive: Any, send: Any) -> None:
        inner = dashboard if scope["path"].startswith("/admin/jobs") else django
        await inner(scope, receive, send)

    return host


@pytest.mark.feature("P9")
@pytest.mark.parametrize("mount", [in_fastapi, in_starlette, in_django])
async def test_mounted_under_a_prefix(app: Windlass, mount: Any) -> None:
    transport = httpx.ASGITransport(mount(app))
    async with httpx.AsyncClient(
        transport=transport, base_url="http://shop.example", headers=HEADERS
    ) as client:
        jobs = await client.get("/admin/jobs/api/scheduled-jobs")
        assert [job["jid"] for job in jobs.json()] == ["one"]
        assert (await client.post("/admin/jobs/api/scheduled-jobs/one/trigger")).status_code == 204
        assert (await client.get("/admin/jobs/api/nothing")).json()["instance"].endswith("/api/nothing")
        assert (await client.get("/admin/jobs/job-queues")).json()["scheduled_count"] == 0
        session = await client.post("/admin/jobs/api/session", json={"token": OPERATOR}, headers=CSRF)
        assert "Path=/admin/jobs;" in session.headers["set-cookie"]


async def test_a_proxy_that_takes_the_prefix_away(app: Windlass) -> None:
    guard = create_app(app, operator_tokens=OPERATOR, prefix="/jobs")
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(guard), base_url="http://x", headers=HEADERS
    ) as client:
        for path in ("/api/job-queues", "/jobs/api/job-queues"):
            assert (await client.get(path)).status_code == 200
        assert (await client.get("/jobsapi/job-queues")).status_code == 404


@pytest.mark.feature("P9")
async def test_pages_are_served_with_the_base_of_their_mount(
    app: Windlass, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text(
        '<head><base href="/"><script src="assets/app-1.js"></script></head>'
    )
    (tmp_path / "assets" / "app-1.js").write_text("go()")
    (tmp_path / "secret.py").write_text("secret")
    monkeypatch.setattr("windlass.dashboard.application.Static", lambda: Static(tmp_path))
    host = Starlette(routes=[Mount('/a"b', create_app(app, operator_tokens=OPERATOR))])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(host), base_url="http://x") as client:
        for view in (
            "/",
            "/job-queues",
            "/job-queues/mail",
            "/jobs/mail/one",
            "/search?q=1",
            "/worker-processes",
        ):
            page = await client.get(f'/a"b{view}', headers={"Accept": "text/html"})
            assert page.status_code == 200, view
            assert '<base href="/a&quot;b/">' in page.text
        script = await client.get('/a"b/assets/app-1.js')
        assert (script.text, script.headers["content-type"]) == ("go()", "text/javascript; charset=utf-8")
        assert "immutable" in script.headers["cache-control"]
        again = await client.get('/a"b/assets/app-1.js', headers={"If-None-Match": script.headers["etag"]})
        assert again.status_code == 304
        assert (await client.get('/a"b/assets/../secret.py')).status_code in (401, 404)
        assert (await client.get('/a"b/assets/secret.py')).status_code == 404


async def test_it_opens_and_closes_with_its_server() -> None:
    guard = create_app(f"memory://lifespan?namespace={new_id()}")
    sent: list[str] = []
    messages = iter(["lifespan.startup", "lifespan.shutdown"])

    async def receive() -> Any:
        return {"type": next(messages)}

    async def send(message: Any) -> None:
        sent.append(message["type"])

    await guard({"type": "lifespan"}, receive, send)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


@pytest.mark.feature("P9")
@pytest.mark.parametrize(("root", "prefix"), [("", ""), ("/admin", ""), ("/admin", "/admin")])
async def test_several_stores_are_shown_side_by_side(app: Windlass, root: str, prefix: str) -> None:
    async with Windlass(f"memory://mounting?namespace={new_id()}") as other:
        await other.queue("shop").add("charge", job_id="two")
        both: Any = create_stores_app({"mail": app, "shop": other}, operator_tokens=OPERATOR, prefix=prefix)
        if root and not prefix:
            both = Starlette(routes=[Mount(root, both)])
        transport = httpx.ASGITransport(both)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://shop.example", headers=HEADERS
        ) as client:
            found = {
                name: (await client.get(f"{root}/{name}/api/v1/jobs")).json()["items"][0]["id"]
                for name in ("mail", "shop")
            }
            assert found == {"mail": "one", "shop": "two"}
            session = (await client.get(f"{root}/shop/api/session")).json()
            assert (session["stores"], session["store"]) == (["mail", "shop"], "shop")
            signed = await client.post(f"{root}/shop/api/session", json={"token": OPERATOR}, headers=CSRF)
            assert f"Path={root}/shop;" in signed.headers["set-cookie"]
            assert (await client.get(f"{root}/")).headers["location"] == f"{root}/mail/"
            for path in ("/nowhere/api/v1/jobs", "/api/v1/jobs", "/api/session"):  # no store has these
                assert (await client.get(f"{root}{path}")).status_code == 404


async def test_each_store_has_its_own_audit(app: Windlass, tmp_path: Path) -> None:
    stores: Any = {"mail": app, "shop": f"memory://mounting?namespace={new_id()}"}
    both = create_stores_app(stores, operator_tokens=OPERATOR, audit_file=tmp_path / "audit.jsonl")
    transport = httpx.ASGITransport(both)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://shop.example", headers=HEADERS
    ) as client:
        marked = await client.post("/shop/api/v1/marks", json={"label": "1.1"}, headers=CSRF)
        assert marked.is_success, marked.text
        found = {name: (await client.get(f"/{name}/api/audit")).json()["items"] for name in stores}
    assert [len(found[name]) for name in ("mail", "shop")] == [0, 1]
    assert os.listdir(tmp_path) == ["audit-shop.jsonl"]


def test_each_store_has_its_own_address_at_the_provider() -> None:
    openid = OpenID(
        issuer="https://login.example",
        client_id="windlass",
        public_url="https://jobs.example/",
        roles=Roles(operator_users=["ada"]),
    )
    both = create_stores_app({"mail": "memory://", "shop": "memory://"}, openid=openid)
    found = {name: one.settings.openid for name, one in both.dashboards.items()}
    assert {name: one and one.redirect_uri for name, one in found.items()} == {
        "mail": "https://jobs.example/mail/api/session/openid/callback",
        "shop": "https://jobs.example/shop/api/session/openid/callback",
    }


def test_stores_need_names_that_fit_into_a_path() -> None:
    with pytest.raises(ConfigError, match="stores"):
        create_stores_app({"a/b": "memory://"})


async def test_answers_of_no_store_have_the_security_headers_and_web_sockets_are_closed(
    app: Windlass,
) -> None:
    several = create_stores_app({"shop": app}, operator_tokens=OPERATOR)
    transport = httpx.ASGITransport(several)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        for path in ("/", "/nowhere/api/session"):
            headers = (await client.get(path)).headers
            assert headers["content-security-policy"] == CONTENT_POLICY
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["cache-control"] == "no-store"
    sent: list[Any] = []

    async def send_it(message: Any) -> None:
        sent.append(message)

    for path in ("/", "/nowhere", "/shop/api/live"):
        scope: Any = {"type": "websocket", "path": path, "headers": [], "client": ("127.0.0.1", 1)}
        await several(scope, None, send_it)  # type: ignore[arg-type]
    assert [message["type"] for message in sent] == ["websocket.close"] * 3
