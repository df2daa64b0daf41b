"""Runs the dashboard on its own server."""

from __future__ import annotations

import resource
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import uvicorn

from windlass.dashboard.connections import Connections, protocol_of
from windlass.dashboard.guard import Guard
from windlass.dashboard.stores import StoresDashboard

#: Seconds for open requests when the server stops. Event streams do not end by themselves.
_GRACE_S = 2
#: Open files that a process needs, so that it can still accept connections when many clients connect.
_FILES = 8_192
_BUSY = b"Service Unavailable"


class DashboardServer(uvicorn.Server):
    """Reports its port when it listens. ``connections`` applies the connection limits of ``ServerLimits``."""

    def __init__(
        self, app: Guard | StoresDashboard, host: str, port: int, on_up: Callable[[int], None]
    ) -> None:
        limits = app.settings.limits
        self.open_connections = Connections(limits)
        super().__init__(
            uvicorn.Config(
                ConcurrencyLimit(app, limits.requests),
                host=host,
                port=port,
                http=protocol_of(self.open_connections),
                ws="none",
                log_level="error",  # warnings are about bad requests, with which a client could fill the log
                access_log=False,
                server_header=False,
                proxy_headers=False,  # only ``headers`` decides about the client's address
                lifespan="on",
                timeout_graceful_shutdown=_GRACE_S,
                h11_max_incomplete_event_size=65_536,
            )
        )
        self._on_up = on_up

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening."""
        allow_files(_FILES)
        await super().startup(sockets)
        if self.started:
            self._on_up(self.servers[0].sockets[0].getsockname()[1])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening and close connections."""
        await super().shutdown(sockets)
        self.open_connections.stop()


class ConcurrencyLimit:
    """Answers 503 when too many requests are being processed."""

    def __init__(self, app: Guard | StoresDashboard, most: int) -> None:
        self._app = app
        self._most = most
        self._running = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._running >= self._most:
            headers = [
                (b"content-length", b"%d" % len(_BUSY)),
                (b"retry-after", b"1"),
                (b"connection", b"close"),
            ]
            await send({"type": "http.response.start", "status": 503, "headers": headers})
            await send({"type": "http.response.body", "body": _BUSY})
            return
        self._running += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._running -= 1


def allow_files(wanted: int) -> None:
    """Raise this process's limit of open files to ``wanted``, or to its hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
