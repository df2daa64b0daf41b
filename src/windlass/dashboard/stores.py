"""Several stores in one dashboard: each under its name, with the same users."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from windlass.dashboard.application import create_app
from windlass.dashboard.guard import Guard
from windlass.dashboard.headers import inside
from windlass.dashboard.scope import BASE, Receive, Scope, Send
from windlass.dashboard.settings import Settings
from windlass.errors import ConfigError

if TYPE_CHECKING:
    from windlass.api.app import Windlass

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class StoresDashboard:
    """An ASGI application: ``/NAME/...`` is the dashboard of the store NAME, ``/`` leads to the first."""

    def __init__(self, dashboards: Mapping[str, Guard], prefix: str = "") -> None:
        self.dashboards = dict(dashboards)
        self._prefix = prefix.rstrip("/")

    @property
    def settings(self) -> Settings:
        """What all of them share."""
        return next(iter(self.dashboards.values())).settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        seen = inside(scope, self._prefix)
        root, path = seen[BASE], seen["path"]
        name = path.strip("/").partition("/")[0]
        if not name and scope["type"] == "http":
            await _lead_to(send, f"{root}/{next(iter(self.dashboards))}/")
            return
        inner_root = f"{root}/{name}" if name in self.dashboards else root
        inner = {**scope, "root_path": inner_root, "path": root + path}
        found = self.dashboards.get(name) or next(iter(self.dashboards.values()))  # which refuses it as ever
        await found(inner, receive, send)

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


def create_stores_app(stores: Mapping[str, str | Windlass], **options: Any) -> StoresDashboard:
    """One dashboard for several stores, by name: ``{"shop": "valkey://...", "mail": "sqlite:///mail.db"}``.

    ``options`` are those of ``create_app``, for all of them. Register
    ``<public_url>/NAME/api/session/openid/callback`` of each store at an OpenID Connect provider. Each store
    has its own pages, sessions and audit; ``GET NAME/api/session`` says which others there are.
    """
    if not stores or not all(_NAME.fullmatch(name) for name in stores):
        raise ConfigError("stores", "a mapping from names such as shop to stores", list(stores))
    prefix, openid = options.pop("prefix", ""), options.pop("openid", None)
    names = tuple(stores)

    def dashboard(name: str, store: str | Windlass) -> Guard:
        own = (
            None if openid is None else replace(openid, public_url=f"{openid.public_url.rstrip('/')}/{name}")
        )
        return create_app(store, stores=names, store=name, openid=own, **options)

    return StoresDashboard({name: dashboard(name, store) for name, store in stores.items()}, prefix)
