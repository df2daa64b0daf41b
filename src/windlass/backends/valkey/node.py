"""One server: a few connections to it, each carrying one request at a time.

What is written here is who uses which connection when. A request that was cut short leaves its connection
unusable, so it is closed and replaced.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Any

from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError

from windlass.backends.valkey.errors import NotSentError, tls_problem
from windlass.backends.valkey.settings import Tls, ValkeySettings
from windlass.speedups import valkey
from windlass.speedups.valkey import ConnectionClosedError, ServerConnection, ask, pack_command

#: A connection that rested longer is asked whether it is still there before it is used.
_RESTED_S = 15.0
_PING_S = 2.0
#: Part of a request's time that connecting may take: the caller then learns that nothing was sent.
_CONNECT = 0.8

Resolve = Callable[[], Awaitable[tuple[str, int]]]


_PING = pack_command("PING")
#: Before a command about a slot that is just moving to its server.
ASKING = pack_command("ASKING")


class ServerNode:
    """A server at one address, or at the address that ``resolve`` finds (Sentinel)."""

    def __init__(
        self, settings: ValkeySettings, host: str = "", port: int = 0, resolve: Resolve | None = None
    ) -> None:
        self._settings = settings
        self._address = (host, port)
        self._resolve = resolve
        self._idle: list[tuple[ServerConnection, float]] = []
        #: One entry for every connection that may be in use.
        self._slots: asyncio.Queue[None] = asyncio.Queue()
        for _ in range(settings.connections):
            self._slots.put_nowait(None)
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._ping_s = min(_PING_S, settings.timeout_s / 4)

    @property
    def where(self) -> str:
        host, port = self._address
        return f"{host}:{port}" if host else "the sentinels in the URL"

    async def request(self, packed: bytes) -> Any:
        """Send one command and give its answer. ``NotSentError`` when it surely did not reach the server."""
        connection = await self.reach()
        await self.send(connection, packed)
        return await self.answer(connection)

    def send_now(self, packed: bytes) -> ServerConnection | None:
        """``reach`` and ``send`` if a connection is at hand; to be followed by ``answer`` at once."""
        if not self._idle or self._loop.time() - self._idle[-1][1] >= _RESTED_S or self._slots.empty():
            return None
        self._slots.get_nowait()
        connection, since = self._idle.pop()
        if connection.send_now(packed):
            return connection
        self._idle.append((connection, since))  # ``reach`` sees to it
        self._slots.put_nowait(None)
        return None

    async def reach(self) -> ServerConnection:
        """A connection that may be sent on; to be followed by ``send`` at once."""
        await self._slots.get()
        try:
            return await self._take()
        except BaseException:
            self._slots.put_nowait(None)
            raise

    async def send(self, connection: ServerConnection, packed: bytes) -> None:
        """Send one command; to be followed by ``answer`` at once."""
        try:
            await connection.send(packed)
        except BaseException as exc:
            self._slots.put_nowait(None)
            await connection.close()
            if isinstance(exc, ConnectionClosedError):
                raise NotSentError(exc) from exc
            raise

    async def answer(self, connection: ServerConnection, *, asked: bool = False) -> Any:
        """The answer to what was sent; ``asked``: there is one to ``ASKING`` before it."""
        try:
            return await self._read(connection, asked=asked)
        finally:
            self._slots.put_nowait(None)

    async def connect(self) -> ServerConnection:
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
            await connection.close()

    async def close(self) -> None:
        """Close for good: connections still in use close when they come back."""
        self._closed = True
        await self.hang_up()

    async def _read(self, connection: ServerConnection, *, asked: bool) -> Any:
        """The answer that comes next, and the connection goes back unless it is in doubt."""
        kept = False
        try:
            if asked:
                await connection.read()
            answer = await connection.read()
            kept = True
        except ResponseError:
            kept = True
            raise
        finally:
            if kept and not self._closed:
                self._idle.append((connection, self._loop.time()))
            else:
                await connection.close()
        return answer

    async def _take(self) -> ServerConnection:
        while self._idle:
            connection, since = self._idle.pop()
            rested = self._loop.time() - since >= _RESTED_S
            if await connection.is_open() and (not rested or await _answers(connection, self._ping_s)):
                return connection
            await connection.close()
            if rested:
                await self.hang_up()  # the others rested even longer: do not ask each of them in vain
        return await self.connect()


async def _answers(connection: ServerConnection, patience_s: float) -> bool:
    try:
        async with asyncio.timeout(patience_s):
            await connection.send(_PING)
            await connection.read()
    except (RedisError, OSError, TimeoutError):
        return False
    except BaseException:
        await connection.close()
        raise
    return True


async def open_connection(
    settings: ValkeySettings, host: str, port: int, *, sentinel: bool = False
) -> ServerConnection:
    """A connection that is open and has given its password. ``NotSentError`` when no server answers there."""
    try:
        context = _context(settings.tls) if settings.tls is not None else None
        connection = await valkey.open_connection(host, port, context)
        try:
            await _log_in(connection, settings, sentinel=sentinel)
        except BaseException:
            await connection.close()
            raise
        return connection
    except (RedisError, OSError) as exc:
        if isinstance(exc, (ResponseError, AuthenticationError)):
            raise
        raise tls_problem(exc) or NotSentError(exc) from exc


async def _log_in(connection: ServerConnection, settings: ValkeySettings, *, sentinel: bool) -> None:
    user = settings.sentinel_username if sentinel else settings.username
    password = settings.sentinel_password if sentinel else settings.password
    if user or password:
        try:
            await ask(connection, "AUTH", *([user] if user else []), password or "")
        except ResponseError as exc:  # also that there is no such user, or that no password is wanted
            raise AuthenticationError(str(exc)) from None
    if settings.db and not sentinel:
        await ask(connection, "SELECT", settings.db)


@lru_cache(16)
def _context(tls: Tls) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=tls.ca)
    context.check_hostname = tls.verify == "full"
    context.verify_mode = ssl.CERT_NONE if tls.verify == "none" else ssl.CERT_REQUIRED
    if tls.cert or tls.key:
        context.load_cert_chain(tls.cert or "", tls.key)
    return context


async def _check_primary(connection: ServerConnection) -> None:
    """Refuse a server that Sentinel names although it is a replica by now: it would answer with old news."""
    try:
        role = (await ask(connection, "ROLE"))[0].decode()
    except NoPermissionError:  # then a write will show it
        return
    except BaseException:
        await connection.close()
        raise
    if role != "master":
        await connection.close()
        raise NotSentError(OSError("the server is no longer the primary"))
