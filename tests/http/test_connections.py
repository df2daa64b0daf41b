"""Connections to the dashboard's own server: deadlines, and bounds by address."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from uuid import uuid4

import pytest

from tests.http.support import OPERATOR
from windlass import Windlass
from windlass.dashboard import ServerLimits, create_app
from windlass.dashboard.serve import DashboardServer
from windlass.dashboard.throttle import network_of

backend_name = "memory"
SOON = 0.2
#: A deadline that no test waits for.
FAR = 3_600.0
HEAD = b"GET /live HTTP/1.1\r\nHost: 127.0.0.1\r\n"
WHOLE = HEAD + b"\r\n"


class Served:
    """A server in this process, and connections to it."""

    def __init__(self, server: DashboardServer, port: int) -> None:
        self.server = server
        self.port = port
        self._writers: list[asyncio.StreamWriter] = []

    async def connect(self, sent: bytes = b"", address: str = "127.0.0.1") -> tuple[Any, Any]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(address, 0))
        self._writers.append(writer)
        writer.write(sent)
        await writer.drain()
        return reader, writer

    async def ask(self, address: str = "127.0.0.1") -> bytes:
        """The status line of a whole request on a connection of its own."""
        reader, writer = await self.connect(WHOLE, address)
        line: bytes = await reader.readline()
        writer.close()
        return line

    async def close(self) -> None:
        for writer in self._writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)


async def ended(reader: asyncio.StreamReader) -> None:
    """Wait until the server has closed the connection."""
    async with asyncio.timeout(10):
        with suppress(ConnectionError):
            while await reader.read(65_536):
                pass


@asynccontextmanager
async def serving(**limits: Any) -> AsyncIterator[Served]:
    given = {"head_seconds": FAR, "body_seconds": FAR, "read_seconds": FAR, "burst": 10_000, **limits}
    app = Windlass(f"memory://connections-{uuid4().hex}")
    guard = create_app(app, operator_tokens=OPERATOR, limits=ServerLimits(**given))
    up: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    server = DashboardServer(guard, "127.0.0.1", 0, up.set_result)
    running = asyncio.create_task(server.serve())
    served = Served(server, await up)
    try:
        yield served
    finally:
        await served.close()
        server.should_exit = True
        await running
        await app.close()


@pytest.mark.parametrize(
    ("limits", "sent"),
    [
        ({"head_seconds": SOON}, b""),
        ({"head_seconds": SOON}, HEAD),
        ({"head_seconds": SOON}, WHOLE + HEAD),
        ({"body_seconds": SOON}, b"POST /api/session HTTP/1.1\r\nHost: x\r\nContent-Length: 90\r\n\r\n{"),
    ],
    ids=["nothing", "half a head", "half of a second request", "half a body"],
)
async def test_a_request_that_does_not_come_to_its_end_is_closed(
    limits: dict[str, float], sent: bytes
) -> None:
    async with serving(**limits) as served:
        reader, _ = await served.connect(sent)
        await ended(reader)
        assert (await served.ask()).startswith(b"HTTP/1.1 200")


async def test_a_client_that_does_not_read_is_closed() -> None:
    async with serving(read_seconds=SOON) as served:
        _, writer = await served.connect()
        writer.transport.pause_reading()
        with pytest.raises(ConnectionError):
            async with asyncio.timeout(30):
                while True:
                    writer.write(WHOLE * 100)
                    await writer.drain()


async def test_a_body_that_goes_on_after_its_answer_is_closed() -> None:
    async with serving(body_bytes=100_000) as served:
        head = b"POST /api/jobs/bulk HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        reader, writer = await served.connect(head)
        assert (await reader.readline()).startswith(b"HTTP/1.1 401")
        sent = 0
        with pytest.raises(ConnectionError):
            while sent < 100_000_000:
                writer.write(b"8000\r\n" + b"x" * 0x8000 + b"\r\n")
                sent += 0x8000
                await writer.drain()
        reader, writer = await served.connect(head + b"4000\r\n" + b"x" * 0x4000 + b"\r\n0\r\n\r\n" + WHOLE)
        answers = b""
        async with asyncio.timeout(10):
            while answers.count(b"HTTP/1.1 ") < 2:
                answers += await reader.read(65_536)
        assert b"HTTP/1.1 200" in answers, "one that comes to its end keeps its connection"


async def test_the_oldest_half_sent_request_of_an_address_is_closed_at_its_limit() -> None:
    async with serving(connections_per_address=3) as served:
        slow = [await served.connect(HEAD) for _ in range(3)]
        other, _ = await served.connect(HEAD, "127.0.0.2")
        kept, kept_writer = await served.connect(HEAD)
        await ended(slow[0][0])
        assert served.server.open_connections.closed == 1
        kept_writer.write(b"\r\n")
        assert (await kept.readline()).startswith(b"HTTP/1.1 200")
        assert not other.at_eof()


async def test_half_sent_requests_take_no_place_from_complete_ones() -> None:
    async with serving(connections_per_address=20) as served:
        crowd = [await served.connect(HEAD, "127.0.0.2") for _ in range(300)]
        for address in ("127.0.0.1", "127.0.0.2"):
            assert (await served.ask(address)).startswith(b"HTTP/1.1 200")
        for reader, _ in crowd[:280]:
            await ended(reader)
        assert len(served.server.open_connections) <= 21


async def test_all_addresses_together_have_a_bound_too() -> None:
    async with serving(connections=4, connections_per_address=3) as served:
        first, _ = await served.connect(HEAD, "127.0.0.2")
        for number in range(3, 7):
            await served.connect(HEAD, f"127.0.0.{number}")
        await ended(first)
        assert (await served.ask()).startswith(b"HTTP/1.1 200")


async def test_event_streams_and_waiting_connections_are_not_half_sent_requests() -> None:
    async with serving(connections_per_address=1) as served:
        stream, _ = await served.connect(
            f"GET /api/live HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {OPERATOR}\r\n\r\n".encode()
        )
        await stream.readuntil(b"event: tick")
        alive, writer = await served.connect(WHOLE)
        await alive.readuntil(b"}")
        slow = [await served.connect(HEAD) for _ in range(3)]
        await ended(slow[0][0])
        async with asyncio.timeout(10):
            await stream.readuntil(b"event: tick")
            writer.write(WHOLE)
            assert (await alive.readline()).startswith(b"HTTP/1.1 200")


async def test_connections_between_two_requests_have_a_bound_of_their_own() -> None:
    async with serving(connections_per_address=2) as served:
        slow = [await served.connect(HEAD) for _ in range(2)]
        idle = [await served.connect(WHOLE) for _ in range(3)]
        await ended(idle[0][0])
        assert served.server.open_connections.closed == 1
        for _, writer in slow:
            writer.write(b"\r\n")
        assert [(await reader.readline())[:12] for reader, _ in slow] == [b"HTTP/1.1 200"] * 2


async def test_requests_at_once_have_a_bound() -> None:
    async with serving(requests=2) as served:  # the lifespan of the application is no request
        stream = f"GET /api/live HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {OPERATOR}\r\n\r\n".encode()
        for _ in range(2):
            reader, _ = await served.connect(stream)
            await reader.readuntil(b"event: tick")
        assert (await served.ask()).startswith(b"HTTP/1.1 503")


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("::1", "::1"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("testclient", "testclient"),
    ],
)
def test_an_address_of_ipv6_counts_as_its_network(address: str, network: str) -> None:
    assert network_of(address) == network
