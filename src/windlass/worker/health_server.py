"""Liveness and readiness over HTTP, for process managers and load balancers.

``/live`` answers 200 as long as the event loop runs. ``/ready`` answers 200 while the worker is connected and
makes progress, else 503 with the reason. ``/metrics`` answers the figures of the app's ``PrometheusMetrics``,
if it uses one. Only the first line of a request is used. A request that is too large or too slow is refused.
At the limit of connections the oldest one is closed, so that idle connections cannot block a probe and get a
healthy worker restarted.
"""

from __future__ import annotations

import asyncio
import json
import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from windlass.core.text import printable

if TYPE_CHECKING:
    from windlass.worker.worker import Worker

log: Final = logging.getLogger("windlass.worker")

_REQUEST_BYTES = 8_192
_REQUEST_SECONDS = 5.0
_CONNECTIONS = 64
_GET = ("GET", "HEAD")


class HealthServer:
    """A small HTTP server for a worker. ``stale``: seconds without progress until it is not ready."""

    def __init__(
        self,
        worker: Worker,
        port: int,
        *,
        host: str = "127.0.0.1",
        stale: float = 30,
        limit: int = _CONNECTIONS,
    ) -> None:
        self._worker = worker
        self._host = host
        self._port = port
        self._stale_ms = stale * 1000
        self._limit = limit
        #: The oldest first.
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """The port that it listens on; the actual one when 0 was given."""
        if self._server is None:
            return self._port
        number: int = self._server.sockets[0].getsockname()[1]
        return number

    async def start(self) -> None:
        """Start to listen. Raises ``OSError`` when the port is in use."""
        self._server = await asyncio.start_server(self._accept, self._host, self._port, limit=_REQUEST_BYTES)

    async def stop(self) -> None:
        """Stop listening and close open connections. Idempotent."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        dropped = list(self._open)
        for task in dropped:
            self._drop(task)
        await asyncio.gather(*dropped, return_exceptions=True)
        await server.wait_closed()

    def live(self) -> dict[str, Any]:
        """Return the body of ``/live``."""
        return {"live": True, "worker": self._worker.id}

    def ready(self) -> tuple[bool, dict[str, Any]]:
        """Return whether the worker is ready, and the body of ``/ready``."""
        worker = self._worker
        reason = ""
        since_ms = self._since_progress_ms()
        if not worker.is_running:
            reason = "not running"
        elif since_ms is not None and since_ms > self._stale_ms:
            reason = f"no contact with the store for {since_ms / 1000:.0f} s"
        facts: dict[str, Any] = {"ready": not reason, "worker": worker.id, "busy": worker.busy}
        facts["slots"] = worker.options.concurrency
        if since_ms is not None:
            facts["since_progress_ms"] = round(since_ms)
        if reason:
            facts["reason"] = reason
        return not reason, facts

    def _since_progress_ms(self) -> float | None:
        last: float | None = getattr(self._worker, "last_progress_ms", None)
        return None if last is None else self._worker.app.clock.monotonic_ms() - last

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= self._limit:
            self._drop(next(iter(self._open)))
        task = asyncio.ensure_future(self._converse(reader, writer))
        self._open[task] = writer
        task.add_done_callback(lambda done: self._open.pop(done, None))

    def _drop(self, task: asyncio.Task[None]) -> None:
        """Close a connection. A task that is cancelled before its first step would not close it."""
        writer = self._open.pop(task)
        task.cancel()
        writer.transport.abort()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_REQUEST_SECONDS):
                head = await _read_head(reader)
                writer.write(await self._answer(head))
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the client hung up, or was too slow to be served
        finally:
            writer.close()

    async def _answer(self, head: bytes | None) -> bytes:
        if head is None:
            return _response(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, {"error": "request too large"})
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return _response(HTTPStatus.BAD_REQUEST, {"error": "not an HTTP/1 request"})
        method, path = words[0], words[1].partition("?")[0]
        if method not in _GET:
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, {"error": "use GET"})
        if path == "/live":
            return _response(HTTPStatus.OK, self.live(), body=method == "GET")
        if path == "/ready":
            good, facts = self.ready()
            status = HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE
            return _response(status, facts, body=method == "GET")
        if path == "/metrics":
            return await self._metrics(body=method == "GET")
        return _response(HTTPStatus.NOT_FOUND, {"error": "try /live or /ready"}, body=method == "GET")

    async def _metrics(self, *, body: bool) -> bytes:
        app = self._worker.app
        for used in app.hooks.used:
            if hasattr(used, "text") and hasattr(used, "content_type"):
                try:
                    text = await used.text(app)
                except Exception as exc:  # above all: the store is unreachable
                    log.warning("the metrics cannot be read: %s", printable(str(exc)))
                    facts = {"error": "the metrics cannot be read now"}
                    return _response(HTTPStatus.SERVICE_UNAVAILABLE, facts, body=body)
                return _raw_response(HTTPStatus.OK, used.content_type, text, body=body)
        error = "no metrics: the app does not use windlass.telemetry.PrometheusMetrics"
        return _response(HTTPStatus.NOT_FOUND, {"error": error}, body=body)


async def _read_head(reader: asyncio.StreamReader) -> bytes | None:
    """Read the request up to its empty line; None when it is too large."""
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        return None


def _response(status: HTTPStatus, facts: dict[str, Any], *, body: bool = True) -> bytes:
    return _raw_response(status, "application/json", json.dumps(facts).encode() + b"\n", body=body)


def _raw_response(status: HTTPStatus, content_type: str, data: bytes, *, body: bool) -> bytes:
    allow = "Allow: GET, HEAD\r\n" if status is HTTPStatus.METHOD_NOT_ALLOWED else ""
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n"
        f"Content-Type: {content_type}\r\n"
        f"Content-Length: {len(data)}\r\n"
        f"{allow}Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (data if body else b"")
