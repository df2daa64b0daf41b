"""A connection to a server: bytes go straight from its socket to hiredis, and from there to the waiting task.

The login and TLS happen in ``open_wire``. A connection carries one request at a time (``send``, then
``read``), or news (``listen``).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from typing import Any, cast

import hiredis
import redis.exceptions as theirs
from redis.exceptions import ConnectionError as LostError
from redis.exceptions import RedisError, ResponseError

from windlass.backends.valkey.errors import NotSentError, reply_error
from windlass.backends.valkey.settings import Settings, Tls

_NOTHING = object()


def pack_command(*parts: str | bytes | int) -> bytes:
    """A command in the server's protocol."""
    packed: bytes = hiredis.pack_command(parts)  # type: ignore[arg-type]  # its stub allows one part only
    return packed


class ClosedError(NotSentError, LostError):
    """The connection was closed before anything was sent on it."""


class Wire(asyncio.Protocol):
    """One connection of one event loop."""

    def __init__(self) -> None:
        reader = hiredis.Reader(
            protocolError=theirs.InvalidResponse, replyError=reply_error, notEnoughData=_NOTHING
        )
        self._feed, self._gets = reader.feed, reader.gets
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._answers: deque[Any] = deque()
        self._waiter: asyncio.Future[Any] | None = None
        self._hear: Callable[[Any], None] | None = None
        self._lost: Exception | None = None

    @property
    def is_open(self) -> bool:
        """Whether neither side has closed the connection, as far as is known here."""
        return self._lost is None and not self._transport.is_closing()

    def send(self, packed: bytes) -> None:
        if not self.send_now(packed):
            raise ClosedError(self._lost or LostError("the connection is closed"))

    def send_now(self, packed: bytes) -> bool:
        """Send; False when the connection is closed."""
        if self._lost is not None or self._transport.is_closing():
            return False
        self._transport.write(packed)
        return True

    def close(self) -> None:
        """Close at once: nothing is on its way, and TLS would wait for the other side to say goodbye."""
        self._transport.abort()

    async def read(self) -> Any:
        """The next answer; errors of the server are raised."""
        if self._answers:
            answer = self._answers.popleft()
        elif self._lost is not None:
            raise self._lost
        else:
            waiter = self._waiter = self._loop.create_future()
            try:
                answer = await waiter
            finally:
                self._waiter = None
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def ask(self, *parts: str | bytes | int) -> Any:
        """One command on a connection that no other task uses."""
        self.send(pack_command(*parts))
        return await self.read()

    async def listen(self, hear: Callable[[Any], None]) -> None:
        """Tell ``hear`` of everything that comes, as it comes, until the connection is lost: raises why."""
        while self._answers:
            hear(self._answers.popleft())
        self._hear = hear
        try:
            await self.read()
        finally:
            self._hear = None

    # --- called by the event loop ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are no subclass of it

    def data_received(self, data: bytes) -> None:
        try:
            self._feed(data)
            while (answer := self._gets()) is not _NOTHING:
                waiter = self._waiter
                if self._hear is not None:
                    self._hear(answer)
                elif waiter is not None and not waiter.done() and not self._answers:
                    waiter.set_result(answer)
                else:
                    self._answers.append(answer)
        except (RedisError, OSError) as exc:  # not the server's protocol, or not what was asked for
            self._lose(exc)
            self._transport.abort()

    def eof_received(self) -> None:
        self._lose(LostError("the server closed the connection"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(
            LostError(f"the connection was lost: {exc}" if exc else "the server closed the connection")
        )

    def _lose(self, error: Exception) -> None:
        if self._lost is None:
            self._lost = error
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_exception(error)


async def open_wire(settings: Settings, host: str, port: int, *, sentinel: bool = False) -> Wire:
    """A connection that is open and logged in; raises what the socket, TLS or the server says."""
    context = _context(settings.tls) if settings.tls is not None else None
    transport, wire = await asyncio.get_running_loop().create_connection(Wire, host, port, ssl=context)
    try:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        await _log_in(wire, settings, sentinel=sentinel)
    except BaseException:
        wire.close()
        raise
    return wire


async def _log_in(wire: Wire, settings: Settings, *, sentinel: bool) -> None:
    user = settings.sentinel_username if sentinel else settings.username
    password = settings.sentinel_password if sentinel else settings.password
    if user or password:
        try:
            await wire.ask("AUTH", *([user] if user else []), password or "")
        except ResponseError as exc:  # also that there is no such user, or that no password is wanted
            raise theirs.AuthenticationError(str(exc)) from None
    if settings.db and not sentinel:
        await wire.ask("SELECT", settings.db)


@lru_cache(16)
def _context(tls: Tls) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=tls.ca)
    context.check_hostname = tls.verify == "full"
    context.verify_mode = ssl.CERT_NONE if tls.verify == "none" else ssl.CERT_REQUIRED
    if tls.cert or tls.key:
        context.load_cert_chain(tls.cert or "", tls.key)
    return context
