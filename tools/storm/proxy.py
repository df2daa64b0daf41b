"""A wire on the loopback that can be cut, slowed down, or go dead without a word."""

from __future__ import annotations

import asyncio
import contextlib


class FaultyProxy:
    """Passes bytes between its port and a server's, as long as nothing is wrong with it."""

    def __init__(self, to: int) -> None:
        self._to = to
        self._server: asyncio.Server | None = None
        self._pairs: set[_Pair] = set()
        self.port = 0
        #: No new connections.
        self.refusing = False
        #: Seconds that each piece takes.
        self.delay = 0.0

    async def open(self) -> FaultyProxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    def cut(self) -> None:
        """Close every connection, in the middle of whatever it carries."""
        for pair in list(self._pairs):
            pair.abort()

    def go_dead(self) -> None:
        """Every connection that is open now stays so and carries nothing more."""
        for pair in list(self._pairs):
            pair.dead = True

    def mend(self) -> None:
        """Nothing is wrong any more, except with connections that went dead: those are over."""
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
