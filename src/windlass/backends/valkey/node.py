"""A pool of connections to one server. Each connection carries one request at a time.

A request that was cancelled before its answer was read leaves its connection unusable: it is closed.
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

#: A connection that was idle for longer is pinged before it is used.
_PING_AFTER_S = 15.0
_PING_TIMEOUT_S = 2.0
#: The share of the timeout that connecting may take. The rest lets the caller learn that nothing was sent.
_CONNECT = 0.8

Resolve = Callable[[], Awaitable[tuple[str, int]]]


_PING = pack_command("PING")
#: Sent before a command for a slot that is being moved to the server.
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
        #: A semaphore: one entry for every further connection that may be in use.
        self._slots: asyncio.Queue[None] = asyncio.Queue()
        for _ in range(settings.connections):
            self._slots.put_nowait(None)
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._ping_timeout_s = min(_PING_TIMEOUT_S, settings.timeout_s / 4)

    @property
    def where(self) -> str:
        host, port = self._address
        return f"{host}:{port}" if host else "the sentinels in the URL"

    async def request(self, packed: bytes) -> Any:
        """Send a command and return its answer. ``NotSentError`` if it certainly did not reach the server."""
        connection = await self.reach()
        await self.send(connection, packed)
        return await self.answer(connection)

    def send_now(self, packed: bytes) -> ServerConnection | None:
        """``reach`` and ``send`` in one step if a connection is idle, else None. Call ``answer`` next."""
        if not self._idle or self._loop.time() - self._idle[-1][1] >= _PING_AFTER_S or self._slots.empty():
            return None
        self._slots.get_nowait()
        connection, since = self._idle.pop()
        if connection.send_now(packed):
            return connection
        self._idle.append((connection, since))  # ``reach`` will close it
        self._slots.put_nowait(None)
        return None

    async def reach(self) -> ServerConnection:
        """Take a connection from the pool, or open one. Call ``send`` next."""
        await self._slots.get()
        try:
            return await self._idle_or_new()
        except BaseException:
            self._slots.put_nowait(None)
            raise

    async def send(self, connection: ServerConnection, packed: bytes) -> None:
        """Send one command. Call ``answer`` next."""
        try:
            await connection.send(packed)
        except BaseException as exc:
            self._slots.put_nowait(None)
            await connection.close()
            if isinstance(exc, ConnectionClosedError):
                raise NotSentError(exc) from exc
            raise

    async def answer(self, connection: ServerConnection, *, asked: bool = False) -> Any:
        """Read the answer and return the connection. With ``asked`` the answer to ``ASKING`` comes first."""
        try:
            return await self._read(connection, asked=asked)
        finally:
            self._slots.put_nowait(None)

    async def connect(self) -> ServerConnection:
        """Open a connection outside of the pool, for the caller to close."""
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

    async def close_idle(self) -> None:
        """Close the idle connections; the next request opens a new one."""
        idle, self._idle = self._idle, []
        for connection, _ in idle:
            await connection.close()

    async def close(self) -> None:
        """Close the idle connections; those in use are closed when they are returned."""
        self._closed = True
        await self.close_idle()

    async def _read(self, connection: ServerConnection, *, asked: bool) -> Any:
        """Read the next answer. The connection goes back to the pool unless reading it was interrupted."""
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

    async def _idle_or_new(self) -> ServerConnection:
        while self._idle:
            connection, since = self._idle.pop()
            stale = self._loop.time() - since >= _PING_AFTER_S
            if await connection.is_open() and (not stale or await _answers(connection, self._ping_timeout_s)):
                return connection
            await connection.close()
            if stale:
                await self.close_idle()  # the others were idle for even longer
        return await self.connect()


async def _answers(connection: ServerConnection, timeout_s: float) -> bool:
    try:
        async with asyncio.timeout(timeout_s):
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
    """Open a connection and log in. ``NotSentError`` if no server answers there."""
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
        except ResponseError as exc:  # also for an unknown user, or if the server has no password
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
    """Refuse a server that has become a replica but that Sentinel still names: its data would be stale."""
    try:
        role = (await ask(connection, "ROLE"))[0].decode()
    except NoPermissionError:  # then a write will fail instead
        return
    except BaseException:
        await connection.close()
        raise
    if role != "master":
        await connection.close()
        raise NotSentError(OSError("the server is no longer the primary"))
