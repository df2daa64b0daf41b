"""One server: a few connections to it, each carrying one request at a time.

The connections are redis-py's own (TLS, passwords, RESP by hiredis); what is written here is only who uses
which one when. A request that was cut short leaves its connection unusable, so it is closed and replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable
from typing import Any

import hiredis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError

from windlass.backends.valkey.errors import NotSentError, tls_problem
from windlass.backends.valkey.settings import Settings
from windlass.backends.valkey.wire import Straight, StraightConnection, StraightSSLConnection

#: A connection that rested longer is asked whether it is still there before it is used.
_RESTED_S = 15.0
_PING_S = 2.0
#: Part of a request's time that connecting may take: the caller then hears that nothing was sent.
_CONNECT = 0.8

Resolve = Callable[[], Awaitable[tuple[str, int]]]


def pack_command(*parts: str | bytes | int) -> bytes:
    """A command in the server's protocol."""
    packed: bytes = hiredis.pack_command(parts)  # type: ignore[arg-type]  # its stub allows one part only
    return packed


_PING = pack_command("PING")
#: Before a command about a slot that is just moving to its server.
ASKING = pack_command("ASKING")


def new_connection(settings: Settings, host: str, port: int, *, sentinel: bool = False) -> Straight:
    """A connection, not yet open."""
    options: dict[str, Any] = {
        "host": host,
        "port": port,
        "db": 0 if sentinel else settings.db,
        "username": settings.sentinel_username if sentinel else settings.username,
        "password": settings.sentinel_password if sentinel else settings.password,
        "protocol": 2,
        "driver_info": None,
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": None,
        "socket_connect_timeout": settings.timeout_s,
        "socket_keepalive": True,
        "health_check_interval": 0,
    }
    if settings.tls:
        return StraightSSLConnection(**options, **dict(settings.tls_options))
    return StraightConnection(**options)


class _Slots(asyncio.Semaphore):
    """One for every connection that may be in use."""

    def take_now(self) -> bool:
        """``acquire`` if that needs no wait; whether it did."""
        if not self._value or self._waiters:
            return False
        self._value -= 1
        return True


class Node:
    """A server at one address, or at the address that ``resolve`` finds (Sentinel)."""

    def __init__(
        self, settings: Settings, host: str = "", port: int = 0, resolve: Resolve | None = None
    ) -> None:
        self._settings = settings
        self._address = (host, port)
        self._resolve = resolve
        self._idle: list[tuple[Straight, float]] = []
        self._slots = _Slots(settings.connections)
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._ping_s = min(_PING_S, settings.timeout_s / 4)

    @property
    def where(self) -> str:
        host, port = self._address
        return f"{host}:{port}" if host else "the sentinels in the URL"

    async def request(self, packed: bytes) -> Any:
        """Send one command and give its answer. ``NotSentError`` when it surely did not reach the server."""
        return await self.answer(await self.send(await self.reach(), packed))

    def send_now(self, packed: bytes) -> Straight | None:
        """``reach`` and ``send`` if a connection is at hand; to be followed by ``answer`` at once."""
        if not self._idle or self._loop.time() - self._idle[-1][1] >= _RESTED_S or not self._slots.take_now():
            return None
        connection, since = self._idle.pop()
        if connection.send_now(packed):
            return connection
        self._idle.append((connection, since))  # ``reach`` sees to it
        self._slots.release()
        return None

    async def reach(self) -> Straight:
        """A connection that may be sent on; to be followed by ``send`` at once."""
        await self._slots.acquire()
        try:
            return await self._take()
        except BaseException:
            self._slots.release()
            raise

    async def send(self, connection: Straight, packed: bytes) -> Straight:
        """Send one command; to be followed by ``answer`` at once."""
        try:
            await connection.send_packed_command(packed, check_health=False)
        except BaseException:
            self._slots.release()
            await _hang_up(connection)
            raise
        return connection

    async def answer(self, connection: Straight, *, asked: bool = False) -> Any:
        """The answer to what was sent; ``asked``: there is one to ``ASKING`` before it."""
        try:
            return await self._read(connection, asked=asked)
        finally:
            self._slots.release()

    async def connect(self) -> Straight:
        """A connection of the caller's own, open, within the time that the settings give."""
        try:
            async with asyncio.timeout(_CONNECT * self._settings.timeout_s):
                if self._resolve is None:
                    return await open_connection(self._settings, *self._address)
                self._address = await self._resolve()
                connection = await open_connection(self._settings, *self._address)
                await _check_primary(connection)
                return connection
        except TimeoutError as exc:
            hint = " (does it speak TLS?)" if self._settings.tls else ""
            raise NotSentError(OSError(f"it took too long to connect{hint}")) from exc

    async def hang_up(self) -> None:
        """Close the idle connections; the next request opens a new one."""
        idle, self._idle = self._idle, []
        for connection, _ in idle:
            await _hang_up(connection)

    async def close(self) -> None:
        """Close for good: connections still in use close when they come back."""
        self._closed = True
        await self.hang_up()

    def abandon(self) -> None:
        """Close without a running loop: the one that these connections belonged to is gone."""
        self._closed = True
        idle, self._idle = self._idle, []
        for connection, _ in idle:
            _close_socket(connection)

    async def _read(self, connection: Straight, *, asked: bool) -> Any:
        """The answer that comes next, and the connection goes back."""
        try:
            if asked:
                await connection.read_response(timeout=math.inf)
            answer = await connection.read_response(timeout=math.inf)
        except ResponseError:
            self._give_back(connection)
            raise
        except BaseException:
            await _hang_up(connection)
            raise
        self._give_back(connection)
        return answer

    async def _take(self) -> Straight:
        while self._idle:
            connection, since = self._idle.pop()
            rested = self._loop.time() - since >= _RESTED_S
            if _is_open(connection) and (not rested or await _answers(connection, self._ping_s)):
                return connection
            await _hang_up(connection)
            if rested:
                await self.hang_up()  # the others rested even longer: do not ask each of them in vain
        return await self.connect()

    def _give_back(self, connection: Straight) -> None:
        if self._closed:
            _close_writer(connection)
        else:
            self._idle.append((connection, self._loop.time()))


def _is_open(connection: Straight) -> bool:
    """Whether nobody closed the connection while it rested."""
    reader = getattr(connection, "_reader", None)
    return (
        connection.is_connected and reader is not None and not reader.at_eof() and reader.exception() is None
    )


async def _answers(connection: Straight, patience_s: float) -> bool:
    try:
        async with asyncio.timeout(patience_s):
            await connection.send_packed_command(_PING, check_health=False)
            await connection.read_response(timeout=math.inf)
    except (RedisError, OSError, TimeoutError):
        return False
    except BaseException:
        await _hang_up(connection)
        raise
    return True


async def open_connection(settings: Settings, host: str, port: int, *, sentinel: bool = False) -> Straight:
    """A connection that is open and has given its password. ``NotSentError`` when nobody answers there."""
    connection = new_connection(settings, host, port, sentinel=sentinel)
    try:
        await connection.connect()
    except (RedisError, OSError) as exc:
        await _hang_up(connection)
        if isinstance(exc, (ResponseError, AuthenticationError)):
            raise
        raise tls_problem(exc) or NotSentError(exc) from exc
    except BaseException:
        await _hang_up(connection)
        raise
    return connection


async def _check_primary(connection: Straight) -> None:
    """Refuse a server that Sentinel names although it is a replica by now: it would answer with old news."""
    try:
        role = (await ask_once(connection, "ROLE"))[0].decode()
    except NoPermissionError:  # then a write will tell
        return
    except BaseException:
        await _hang_up(connection)
        raise
    if role != "master":
        await _hang_up(connection)
        raise NotSentError(OSError("the server is no longer the primary"))


async def _hang_up(connection: Straight) -> None:
    with contextlib.suppress(RedisError, OSError):
        await connection.disconnect(nowait=True)


def _close_writer(connection: Straight) -> None:
    writer = getattr(connection, "_writer", None)
    if writer is not None:
        with contextlib.suppress(OSError, RuntimeError):
            writer.close()
    connection._reader = connection._writer = None


def _close_socket(connection: Straight) -> None:
    writer = getattr(connection, "_writer", None)
    transport = writer.transport if writer is not None else None
    if transport is not None:
        with contextlib.suppress(OSError, RuntimeError):
            transport.abort()
    connection._reader = connection._writer = None


async def ask_once(connection: Straight, *parts: str | bytes | int) -> Any:
    """One command on a connection that nobody else uses."""
    await connection.send_packed_command(pack_command(*parts), check_health=False)
    return await connection.read_response(timeout=math.inf)
