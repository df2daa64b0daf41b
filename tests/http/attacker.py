"""A stranger, as a process of its own: ``attacker.py PORT ADDRESS CONNECTIONS GUESSES_PER_SECOND``.

Opens connections that never finish a request (and opens them again when they are closed, a hundred a second),
and guesses passwords and tokens. Says ``ready`` when all connections were opened once, and goes on until it
is told a line; then says what its guesses were answered, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from contextlib import suppress

from windlass.dashboard.serve import allow_files

_HALF = b"GET /api/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "
_REOPENED_PER_SECOND = 100


class Attacker:
    """Everything that one address does."""

    def __init__(self, port: int, address: str) -> None:
        self._port = port
        self._address = address
        self._closed: asyncio.Queue[None] = asyncio.Queue()
        self._held: set[asyncio.Task[None]] = set()
        self.answers: Counter[str] = Counter()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self._port, local_addr=(self._address, 0))

    async def open_slow(self) -> None:
        """Send half a request, and hold the connection as long as the server lets us."""
        reader, writer = await self._connect()
        writer.write(_HALF)
        task = asyncio.create_task(self._hold(reader, writer))
        self._held.add(task)
        task.add_done_callback(self._held.discard)

    async def _hold(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            await reader.read()
        writer.close()
        self._closed.put_nowait(None)

    async def reopen(self) -> None:
        """Open again what was closed."""
        while True:
            await self._closed.get()
            with suppress(OSError):
                await self.open_slow()
            await asyncio.sleep(1 / _REOPENED_PER_SECOND)

    async def guess(self, per_second: float) -> None:
        """Guess at a steady rate, passwords and tokens in turn."""
        loop, number = asyncio.get_running_loop(), 0
        begun = loop.time()
        pending: set[asyncio.Task[None]] = set()
        while True:
            task = asyncio.create_task(self._guess(number))
            pending.add(task)
            task.add_done_callback(pending.discard)
            number += 1
            await asyncio.sleep(max(begun + number / per_second - loop.time(), 0))

    async def _guess(self, number: int) -> None:
        body = json.dumps({"username": "ada", "password": f"guess {number}"}).encode()
        if number % 2:
            head = f"GET /api/jobs HTTP/1.1\r\nAuthorization: Bearer wrong-token-number-{number:022}\r\n"
            body = b""
            kind = "token"
        else:
            kind = "password"
            head = "POST /api/session HTTP/1.1\r\nX-Windlass-CSRF: 1\r\nContent-Type: application/json\r\n"
        head += f"Host: 127.0.0.1\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        try:
            reader, writer = await self._connect()
            writer.write(head.encode() + body)
            line = await reader.readline()
            await reader.read()
            writer.close()
            self.answers[f"{kind} {line.split(b' ')[1].decode() if line else 'closed'}"] += 1
        except OSError:
            self.answers[f"{kind} closed"] += 1


async def main(port: int, address: str, connections: int, guesses: float) -> None:
    """Attack until told a line."""
    allow_files(connections * 2 + 1_000)
    attacker = Attacker(port, address)
    for _ in range(connections):
        await attacker.open_slow()
    running = [asyncio.create_task(attacker.reopen()), asyncio.create_task(attacker.guess(guesses))]
    print("ready", flush=True)  # noqa: T201 - how it talks to the test
    await asyncio.to_thread(sys.stdin.readline)
    for task in running:
        task.cancel()
    print(json.dumps(attacker.answers))  # noqa: T201 - how it talks to the test


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))
