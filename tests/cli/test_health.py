"""The probes' server: what it answers, and what it refuses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from windlass import StorageError, Windlass, Worker
from windlass.telemetry import PrometheusMetrics
from windlass.worker.health_server import HealthServer

pytestmark = pytest.mark.feature("R6")
backend_name = "memory"


@pytest.fixture
async def worker() -> AsyncIterator[Worker]:
    worker = Worker("mail", lambda job: None, url_or_app="memory://health", concurrency=3)
    yield worker
    await worker.close()


@pytest.fixture
async def server(worker: Worker) -> AsyncIterator[HealthServer]:
    server = HealthServer(worker, 0)
    await server.start()
    yield server
    await server.stop()
    await server.stop()


async def ask(server: HealthServer, request: bytes) -> tuple[int, Any]:
    """Send raw bytes; the status and the body of the answer (0 when there is none)."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        writer.write(request)
        answer = await asyncio.wait_for(reader.read(), 10)
    finally:
        writer.close()
    if not answer:
        return 0, None
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), json.loads(body) if body else None


async def test_live_whether_or_not_it_works(server: HealthServer, worker: Worker) -> None:
    status, facts = await ask(server, b"GET /live HTTP/1.1\r\n\r\n")
    assert (status, facts) == (200, {"live": True, "worker": worker.id})


async def test_ready_only_while_it_works(server: HealthServer, worker: Worker) -> None:
    request = b"GET /ready?probe=1 HTTP/1.1\r\nHost: x\r\n\r\n"
    status, facts = await ask(server, request)
    assert (status, facts["reason"]) == (503, "not running")
    await worker.start()
    status, facts = await ask(server, request)
    assert (status, facts["ready"], facts["slots"]) == (200, True, 3)
    await worker.close()
    assert (await ask(server, request))[0] == 503


async def test_not_ready_when_the_pump_stands_still(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    await worker.start()
    server = HealthServer(worker, 0, stale=10)
    now = worker.app.clock.monotonic_ms()
    monkeypatch.setattr(Worker, "last_progress_ms", now - 5_000)
    assert server.ready()[0]
    monkeypatch.setattr(Worker, "last_progress_ms", now - 60_000)
    good, facts = server.ready()
    assert not good
    assert facts["reason"].startswith("no contact with the store for 60 s")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"HEAD /live HTTP/1.1\r\n\r\n", 200),
        (b"GET /metrics HTTP/1.1\r\n\r\n", 404),
        (b"POST /live HTTP/1.1\r\n\r\n", 405),
        (b"hello\r\n\r\n", 400),
        (b"\x00\xff\xfe\r\n\r\n", 400),
        (b"GET /live HTTP/1.1\r\nX: " + b"x" * 20_000 + b"\r\n\r\n", 431),
        (b"GET /live HTT", 0),
    ],
)
async def test_other_requests(server: HealthServer, request_: bytes, status: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request_)
    writer.write_eof()
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    assert (int(answer.split(b" ")[1]) if answer else 0) == status


async def idle_seen(server: HealthServer) -> int:
    """How many connections are open, once there is one."""
    async with asyncio.timeout(10):
        while not server._open:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0)
    return len(server._open)


async def test_idle_connections_do_not_keep_a_probe_out(worker: Worker) -> None:
    server = HealthServer(worker, 0, limit=1)
    await server.start()
    silent, idle = await asyncio.open_connection("127.0.0.1", server.port)
    idle.write(b"GET /live")
    await idle.drain()
    assert (await idle_seen(server)) == 1
    assert (await ask(server, b"GET /live HTTP/1.1\r\n\r\n"))[0] == 200
    assert await asyncio.wait_for(drained(silent), 10) == b"", "the oldest was closed"
    idle.close()
    await server.stop()


async def test_connections_that_come_at_once_are_closed_too(worker: Worker) -> None:
    server = HealthServer(worker, 0, limit=1)
    await server.start()
    opened = await asyncio.gather(*[asyncio.open_connection("127.0.0.1", server.port) for _ in range(50)])
    ends = [asyncio.ensure_future(drained(reader)) for reader, _ in opened]
    async with asyncio.timeout(10):
        while sum(end.done() for end in ends) < len(ends) - 1:
            await asyncio.wait([end for end in ends if not end.done()], return_when=asyncio.FIRST_COMPLETED)
        assert len(server._open) == 1
        await server.stop()
        await asyncio.gather(*ends)
    for _, writer in opened:
        writer.close()


async def drained(reader: asyncio.StreamReader) -> bytes:
    """What comes until the other side ends the connection, however it does."""
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


@pytest.mark.feature("Q8")
async def test_metrics_of_an_app_that_measures(server: HealthServer, worker: Worker) -> None:
    status, facts = await ask(server, b"GET /metrics HTTP/1.1\r\n\r\n")
    assert status == 404
    assert "PrometheusMetrics" in facts["error"]
    worker.app.use(PrometheusMetrics())
    await worker.app.queue("mail").add("work")
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
    head, _, body = (await asyncio.wait_for(reader.read(), 10)).partition(b"\r\n\r\n")
    writer.close()
    assert b"Content-Type: text/plain" in head
    assert b'windlass_jobs_enqueued_total{queue="mail",task="work"} 1.0' in body
    assert b'windlass_queue_jobs{queue="mail",state="waiting"} 1.0' in body


async def test_metrics_while_the_store_is_away(
    server: HealthServer, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(app: Windlass) -> list[Any]:
        raise StorageError("away")

    worker.app.use(PrometheusMetrics())
    monkeypatch.setattr(Windlass, "queues", away)
    status, facts = await ask(server, b"GET /metrics HTTP/1.1\r\n\r\n")
    assert (status, facts) == (503, {"error": "the metrics cannot be read now"})
