"""Runs the dashboard on a server of its own."""

from __future__ import annotations

import socket
from collections.abc import Callable

import uvicorn

from windlass.dashboard.guard import Guard

#: Seconds that open requests get when the server stops; event streams do not end by themselves.
_GRACE_S = 2


class DashboardServer(uvicorn.Server):
    """Tells its port once it listens."""

    def __init__(self, app: Guard, host: str, port: int, on_up: Callable[[int], None]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                host=host,
                port=port,
                log_level="warning",
                access_log=False,
                server_header=False,
                proxy_headers=False,  # who asks is decided by us alone
                lifespan="on",
                timeout_graceful_shutdown=_GRACE_S,
                limit_concurrency=1_000,
                h11_max_incomplete_event_size=65_536,
            )
        )
        self._on_up = on_up

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        await super().startup(sockets)
        if self.started:
            self._on_up(self.servers[0].sockets[0].getsockname()[1])
