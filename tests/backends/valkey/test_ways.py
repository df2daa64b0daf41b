"""The two ways to a server, redis-py's and our own: what holds for one holds for the other."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import struct
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.exceptions import ConnectionError as LostError
from redis.exceptions import RedisError

from tests.backends.valkey.servers import need, scratch
from tools.services.certificates import Authority
from tools.services.valkey import Server, redis_binary
from windlass.backend.urls import parse_url
from windlass.backends.valkey.client import ValkeyClient
from windlass.backends.valkey.settings import parse
from windlass.errors import StorageError
from windlass.speedups import valkey
from windlass.speedups.valkey import (
    ConnectionClosedError,
    PlainConnection,
    QuickConnection,
    ask,
    open_connection,
)

backend_name = "valkey"

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
WAYS = [PlainConnection, QuickConnection]


@pytest.fixture(params=WAYS, ids=["plain", "quick"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(valkey, "_kind", request.param)


@asynccontextmanager
async def a_server(serve: Serve) -> AsyncIterator[int]:
    """Something that listens; gives its port."""
    tasks: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await serve(reader, writer)
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _said(text: str) -> tuple[type[RedisError], str]:
    """What a connection raises when a server says ``text`` instead of an answer."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"PING\r\n")
        writer.write(f"-{text}\r\n".encode())
        await reader.read()

    async with a_server(serve) as port:
        connection = await open_connection("127.0.0.1", port, None)
        try:
            with pytest.raises(RedisError) as raised:
                await ask(connection, "PING")
        finally:
            await connection.close()
    return type(raised.value), str(raised.value)


@pytest.mark.parametrize(
    "text",
    [
        "ASK 3999 127.0.0.1:6381",
        "BUSY Redis is busy running a script",
        "CLUSTERDOWN The cluster is down",
        "CROSSSLOT Keys in request don't hash to the same slot",
        "ERR Function not found",
        "ERR max number of clients reached",
        "ERR unknown command 'FCALL'",
        "LOADING the dataset",
        "MASTERDOWN Link with MASTER is down",
        "MISCONF cannot write",
        "MOVED 3999 127.0.0.1:6381",
        "NOAUTH Authentication required.",
        "NOPERM this user has no permissions",
        "NOREPLICAS Not enough good replicas to write.",
        "OOM command not allowed",
        "READONLY You can't write against a read only replica.",
        "TRYAGAIN Multiple keys request during rehashing of slot",
        "UNKILLABLE a script",
        "WRONGPASS invalid username-password pair",
        "WRONGTYPE Operation against a key",
    ],
)
async def test_both_ways_make_the_same_of_an_error(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for one in WAYS:
        monkeypatch.setattr(valkey, "_kind", one)
        found.append(await _said(text))
    assert found[0] == found[1]


async def _hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def _reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    end: socket.socket = writer.get_extra_info("socket")
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # as a server that died


@pytest.mark.parametrize("serve", [_hang_up, _reset])
@pytest.mark.usefixtures("way")
async def test_a_connection_that_the_server_closed_is_not_used(serve: Serve) -> None:
    gone = asyncio.Event()

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await serve(reader, writer)
        gone.set()

    async with a_server(once) as port:
        connection = await open_connection("127.0.0.1", port, None)
        await gone.wait()
        async with asyncio.timeout(20):
            while await connection.is_open():
                try:
                    await connection.send(b"PING\r\n")
                except LostError:  # the bytes may have left, so it says less than ConnectionClosedError
                    break
                await asyncio.sleep(0)
        await connection.close()
        with pytest.raises(ConnectionClosedError):
            await connection.send(b"PING\r\n")
        assert not connection.send_now(b"PING\r\n")
        assert not await connection.is_open()


@pytest.mark.usefixtures("way")
async def test_news_are_told_as_they_come_until_the_connection_is_lost() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"*2\r\n$1\r\na\r\n$1\r\nb\r\n+PO")
        await reader.readuntil(b"more\r\n")
        writer.write(b"NG\r\n")
        await writer.drain()

    heard: list[Any] = []
    first = asyncio.Event()

    def hear(answer: Any) -> None:
        heard.append(answer)
        first.set()

    async with a_server(serve) as port:
        connection = await open_connection("127.0.0.1", port, None)
        listening = asyncio.create_task(connection.listen(hear))
        await first.wait()
        await connection.send(b"more\r\n")
        with pytest.raises((LostError, OSError)):
            await listening
        await connection.close()
    assert heard == [[b"a", b"b"], b"PONG"]


async def _deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.pause_reading()  # type: ignore[attr-defined]  # it is one that reads
    await asyncio.get_running_loop().create_future()


@pytest.mark.usefixtures("way")
async def test_a_request_that_the_server_does_not_take_has_an_unknown_outcome_in_time() -> None:
    async with a_server(_deaf) as port:
        client = ValkeyClient(parse(parse_url(f"valkey://127.0.0.1:{port}?timeout=0.3")))
        with pytest.raises(StorageError, match="outcome unknown, repeat with the same id"):
            await client.call("add_plain", ["root"], "", b"x" * 30_000_000)
        await client.close()


@pytest.mark.filterwarnings("ignore:unclosed")  # asyncio cannot end a transport without its loop
@pytest.mark.usefixtures("way")
def test_a_connection_can_be_closed_after_its_loop_is_gone() -> None:
    async def open_one(port: int) -> valkey.ServerConnection:
        return await open_connection("127.0.0.1", port, None)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        with asyncio.Runner() as runner:
            connection = runner.run(open_one(listening.getsockname()[1]))
        asyncio.run(connection.close())
        assert not connection.send_now(b"PING\r\n")
        del connection
        gc.collect()


@pytest.fixture(scope="module")
def tls_server() -> Iterator[tuple[Server, Authority]]:
    authority = Authority(scratch())
    certificate, key = authority.sign("server", "IP:127.0.0.1")
    settings = ("--tls-auth-clients", "no")
    tls = (certificate, key, authority.ca)
    server = Server(need(redis_binary(), "redis-server"), scratch(), *settings, tls=tls).start()
    yield server, authority
    server.stop()


@pytest.mark.service("valkey")
@pytest.mark.usefixtures("way")
def test_closing_a_connection_does_not_wait_for_the_goodbye_of_a_server(
    tls_server: tuple[Server, Authority],
) -> None:
    """A busy server says it late. The socket must not outlive the connection, nor its loop."""
    server, authority = tls_server
    context = ssl.create_default_context(cafile=str(authority.ca))

    async def open_and_close() -> None:
        connection = await open_connection("127.0.0.1", server.port, context)
        assert await ask(connection, "PING") == b"PONG"
        server.freeze()
        await connection.close()

    with warnings.catch_warnings(record=True) as unclosed:
        warnings.simplefilter("always")
        try:
            asyncio.run(open_and_close())
        finally:
            server.thaw()
        gc.collect()
    assert [str(one.message) for one in unclosed] == []
