"""Several stores in one dashboard: each under its name, with the same users."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windlass.dashboard.application import create_app
from windlass.dashboard.guard import Guard, with_headers
from windlass.dashboard.headers import inside
from windlass.dashboard.problems import MEDIA_TYPE, encode, problem
from windlass.dashboard.scope import BASE, Receive, Scope, Send
from windlass.dashboard.settings import DashboardSettings
from windlass.errors import ConfigError

if TYPE_CHECKING:
    from windlass.api.app import Windlass

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class StoresDashboard:
    """An ASGI application: ``/NAME/...`` is the dashboard of store NAME; ``/`` redirects to the first."""

    def __init__(self, dashboards: Mapping[str, Guard], prefix: str = "") -> None:
        self.dashboards = dict(dashboards)
        self._prefix = prefix.rstrip("/")

    @property
    def settings(self) -> DashboardSettings:
        """The settings that all of them share."""
        return next(iter(self.dashboards.values())).settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        seen = inside(scope, self._prefix)
        root, path = seen[BASE], seen["path"]
        name = path.strip("/").partition("/")[0]
        if not name:
            await _lead_to(with_headers(send), f"{root}/{next(iter(self.dashboards))}/")
            return
        found = self.dashboards.get(name)
        if found is None:
            await _refuse(with_headers(send), path)
            return
        await found({**scope, "root_path": f"{root}/{name}", "path": root + path}, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            kind = (await receive())["type"]
            try:
                for guard in self.dashboards.values():
                    hook = guard.on_startup if kind == "lifespan.startup" else guard.on_shutdown
                    if hook is not None:
                        await hook()
            except Exception as exc:
                await send({"type": f"{kind}.failed", "message": str(exc)})
                return
            await send({"type": f"{kind}.complete"})
            if kind == "lifespan.shutdown":
                return


async def _lead_to(send: Send, address: str) -> None:
    headers = [(b"location", address.encode()), (b"content-length", b"0"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 307, "headers": headers})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _refuse(send: Send, path: str) -> None:
    """Answer 404 for a path without the name of a store. It is never served by the first store."""
    advice = "Put the name of a store before it, as in /NAME/api/session."
    body = encode(problem(404, "not_found", "there is no such store", advice, path))
    headers = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 404, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def create_stores_app(stores: Mapping[str, str | Windlass], **options: Any) -> StoresDashboard:
    """One dashboard for several stores, by name: ``{"shop": "valkey://...", "mail": "sqlite:///mail.db"}``.

    ``options`` are those of ``create_app``, for all stores. At an OpenID Connect provider, register
    ``<public_url>/NAME/api/session/openid/callback`` for each store. Each store has its own pages, sessions
    and audit log (``audit_file`` ``audit.jsonl`` becomes ``audit-NAME.jsonl``). ``GET NAME/api/session``
    lists the other stores. Probes are at ``/NAME/live`` and ``/NAME/ready``.
    """
    if not stores or not all(_NAME.fullmatch(name) for name in stores):
        raise ConfigError("stores", "a mapping from names such as shop to stores", list(stores))
    prefix, openid, audit_file = (options.pop(name, None) for name in ("prefix", "openid", "audit_file"))
    names = tuple(stores)

    def dashboard(name: str, store: str | Windlass) -> Guard:
        own = (
            None if openid is None else replace(openid, public_url=f"{openid.public_url.rstrip('/')}/{name}")
        )
        trail = None if audit_file is None else _of_store(Path(audit_file), name)
        return create_app(store, stores=names, store=name, openid=own, audit_file=trail, **options)

    return StoresDashboard({name: dashboard(name, store) for name, store in stores.items()}, prefix or "")


def _of_store(file: Path, name: str) -> Path:
    """``audit.jsonl`` becomes ``audit-NAME.jsonl``."""
    return file.with_name(f"{file.stem}-{name}{file.suffix}")
