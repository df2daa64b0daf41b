"""A wire that can go dead without a word: connections through it stay open but carry nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class Wire:
    """Passes bytes on, until it is cut."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []
        self.opened = 0
        self.port = 0

    def cut(self) -> None:
        """Make every connection that is open now half-open: nobody hears of it, nothing arrives."""
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        there, back = await asyncio.open_connection("127.0.0.1", self._to)
        self._writers += [writer, back]
        self._tasks |= {asyncio.create_task(_carry(reader, back)), asyncio.create_task(_carry(there, writer))}

    async def close(self) -> None:
        tasks = list(self._tasks)
        self.cut()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in self._writers:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def wire_to(port: int) -> AsyncIterator[Wire]:
    """A wire to the server on ``port``."""
    wire = Wire(port)
    server = await asyncio.start_server(wire.accept, "127.0.0.1", 0)
    wire.port = server.sockets[0].getsockname()[1]
    try:
        yield wire
    finally:
        server.close()
        await wire.close()
