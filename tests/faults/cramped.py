"""A producer process whose files may not grow beyond a size: adds jobs until the store refuses."""

from __future__ import annotations

import asyncio
import resource
import signal
import sys

from tests.faults.handlers import app, note
from windlass import StorageError


async def main(limit: int) -> None:
    async with app:
        queue = app.queue("q")
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        try:
            for n in range(100_000):
                job = await queue.add("noop", {"n": n, "text": "x" * 1_000})
                note("cramped", job.id)
        except StorageError:
            note("cramped", "StorageError")


if __name__ == "__main__":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    asyncio.run(main(int(sys.argv[1])))
