"""A TCP proxy on the loopback interface that can close, delay or silently drop connections."""

from __future__ import annotations

import asyncio
import contextlib


class FaultyProxy:
    """Forwards bytes between its port and the port of a server, unless a fault is injected."""

    def __init__(self, to: int) -> None:
        self._to = to
        self._server: asyncio.Server | None = None
        self._pairs: set[_Pair] = set()
        self.port = 0
        #: Whether new connections are refused.
        self.refusing = False
        #: Seconds by which each read is delayed.
        self.delay = 0.0

    async def open(self) -> FaultyProxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    def cut(self) -> None:
        """Abort every connection."""
        for pair in list(self._pairs):
            pair.abort()

    def stall(self) -> None:
        """Keep all present connections open, but forward no more data on them."""
        for pair in list(self._pairs):
            pair.dead = True

    def repair(self) -> None:
        """End all faults. Connections that were stalled are aborted."""
        self.refusing, self.delay = False, 0.0
        for pair in list(self._pairs):
            if pair.dead:
                pair.abort()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()
        await asyncio.gather(*(pair.over.wait() for pair in list(self._pairs)))

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refusing:
            writer.transport.abort()
            return
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            writer.transport.abort()
            return
        pair = _Pair(writer, back)
        self._pairs.add(pair)
        carriers = (self._carry(pair, reader, back), self._carry(pair, there, writer))
        await asyncio.gather(*carriers, return_exceptions=True)
        self._pairs.discard(pair)
        pair.over.set()

    async def _carry(self, pair: _Pair, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError):
                while data := await reader.read(65_536):
                    if self.delay:
                        await asyncio.sleep(self.delay)
                    if not pair.dead:
                        writer.write(data)
                        await writer.drain()
        finally:
            if not pair.dead:
                writer.close()


class _Pair:
    """The two ends of one connection."""

    def __init__(self, *writers: asyncio.StreamWriter) -> None:
        self._writers = writers
        self.dead = False
        self.over = asyncio.Event()

    def abort(self) -> None:
        self.dead = False
        for writer in self._writers:
            writer.transport.abort()
