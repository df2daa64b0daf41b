"""A mounted dashboard takes the user of the application around it, on each real framework."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.routing import Mount

from tests.http import django_host
from tests.http.support import CSRF, FREE
from windlass import Windlass
from windlass.core.ids import new_id
from windlass.dashboard import Roles, Rule, create_app

backend_name = "memory"
ROLES = Roles(operator_groups=["ops"], reader_users=["bob"])
RULES = [Rule(user="bob", queues=["mail"]), Rule(group="ops", actions={"*"})]
OPTIONS: dict[str, Any] = {"rules": RULES, "limits": FREE}


@pytest.fixture
async def app() -> AsyncIterator[Windlass]:
    async with Windlass(f"memory://hosts?namespace={new_id()}") as app:
        await app.queue("mail").add("send", job_id="one")
        await app.queue("shop").add("send", job_id="two")
        yield app


async def check(host: Any, prefix: str, ops: str, bob: str, others: list[str]) -> None:
    """``ops`` may change, ``bob`` may look at one queue, ``others`` and strangers nothing. All by cookies."""
    transport = httpx.ASGITransport(host)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop.example") as client:

        async def ask(method: str, path: str, cookie: str, **more: str) -> int:
            headers = {"Cookie": cookie, **more} if cookie else more
            return (await client.request(method, f"{prefix}{path}", headers=headers)).status_code

        for cookie in ("", "session=forged", "sessionid=forged", "user=forged", *others):
            for path in ("/api/jobs", "/", "/api/jobs/mail/one", "/job-queues"):
                assert await ask("GET", path, cookie) == 401, (cookie, path)
        assert await ask("GET", "/api/jobs/mail/one", bob) == 200
        assert await ask("GET", "/api/jobs/shop/two", bob) == 404
        assert await ask("POST", "/api/job-queues/mail/pause", bob, **CSRF) == 403
        assert await ask("POST", "/api/job-queues/mail/pause", ops) == 403, "another site could send this"
        assert await ask("POST", "/api/job-queues/mail/pause", ops, **CSRF) == 204
        assert await ask("GET", "/api/jobs", "", Authorization="Bearer whatever-it-may-be") == 401


class Expired(SimpleUser):
    """A user who is known, but no longer signed in; some applications keep them in the request."""

    @property
    def is_authenticated(self) -> bool:
        return False


class Cookies(AuthenticationBackend):
    """The user is in a cookie, with groups; of course no one should do it so."""

    async def authenticate(self, conn: Any) -> Any:
        name, _, groups = conn.cookies.get("user", "").partition("/")
        if name not in ("ada", "bob", "mallory", "gone"):
            return None
        user = Expired(name) if name == "gone" else SimpleUser(name)
        return AuthCredentials(["authenticated", *groups.split("/")]), user


async def test_the_user_of_starlette(app: Windlass) -> None:
    from windlass.contrib.starlette import dashboard_user

    dashboard = create_app(app, auth=dashboard_user(ROLES), **OPTIONS)
    middleware = [Middleware(AuthenticationMiddleware, backend=Cookies())]
    host = Starlette(routes=[Mount("/admin/jobs", dashboard)], middleware=middleware)
    await check(host, "/admin/jobs", "user=ada/ops", "user=bob", ["user=mallory", "user=gone/ops"])
    bare = Starlette(routes=[Mount("/admin/jobs", dashboard)])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(bare), base_url="http://x") as client:
        answer = await client.get("/admin/jobs/api/jobs", headers={"Cookie": "user=ada/ops"})
        assert answer.status_code == 401, "without the middleware there is no user"


async def test_the_user_of_fastapi(app: Windlass) -> None:
    from windlass.contrib.fastapi import dashboard_user

    host = FastAPI()
    host.add_middleware(AuthenticationMiddleware, backend=Cookies())
    host.mount("/admin/jobs", create_app(app, auth=dashboard_user(ROLES), **OPTIONS))
    await check(host, "/admin/jobs", "user=ada/ops", "user=bob", ["user=mallory", "user=gone/ops"])


def beside(dashboard: Any, other: Any) -> Any:
    async def host(scope: Any, receive: Any, send: Any) -> None:
        inner = dashboard if scope["path"].startswith("/admin/jobs") else other
        await inner(scope, receive, send)

    return host


async def test_the_user_of_django(app: Windlass) -> None:
    await asyncio.to_thread(django_host.start)
    from django.core.asgi import get_asgi_application
    from django.db import connections

    from windlass.contrib.django.dashboard import dashboard_user

    def cookies() -> list[str]:
        try:
            return make()
        finally:
            connections.close_all()

    def make() -> list[str]:
        return [
            django_host.sign_in("ada", groups=("ops",)),
            django_host.sign_in("bob", groups=("staff",)),
            django_host.sign_in("mallory"),
            django_host.sign_in("gone", groups=("ops",), active=False),
            django_host.sign_in("root", superuser=True),
        ]

    ops, bob, mallory, gone, root = await asyncio.to_thread(cookies)
    dashboard = create_app(app, prefix="/admin/jobs", auth=dashboard_user(ROLES), **OPTIONS)
    host = beside(dashboard, get_asgi_application())
    await check(host, "/admin/jobs", ops, bob, [mallory, gone])
    whole = create_app(app, prefix="/admin/jobs", auth=dashboard_user(Roles()), limits=FREE)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(whole), base_url="http://x") as client:
        assert (await client.get("/api/jobs", headers={"Cookie": root})).status_code == 200
        assert (await client.get("/api/jobs", headers={"Cookie": ops})).status_code == 401


async def test_the_user_of_flask(app: Windlass) -> None:
    from asgiref.sync import ThreadSensitiveContext
    from asgiref.wsgi import WsgiToAsgi
    from flask import Flask, session

    from windlass.contrib.flask import dashboard_user

    flask = Flask(__name__)
    flask.secret_key = "the secret of the application"

    @flask.get("/enter/<name>/<group>")
    def enter(name: str, group: str) -> str:
        session.update(name=name, groups=[group])
        return "in"

    def load() -> tuple[str, list[str]] | None:
        return (session["name"], session["groups"]) if "name" in session else None

    dashboard = create_app(app, prefix="/admin/jobs", auth=dashboard_user(flask, load, ROLES), **OPTIONS)
    host = beside(dashboard, WsgiToAsgi(flask))  # type: ignore[no-untyped-call]

    async def sign_in(name: str, group: str) -> str:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(host), base_url="http://x") as client:
            async with ThreadSensitiveContext():
                answer = await client.get(f"/enter/{name}/{group}")
            return str(answer.headers["set-cookie"].partition(";")[0])

    others = [await sign_in("mallory", "staff")]
    await check(host, "/admin/jobs", await sign_in("ada", "ops"), await sign_in("bob", "staff"), others)
