"""One call for many jobs; some of them fail and are tried again alone.

Prints::

    call 1: ['a', 'b', 'c', 'd']
    call 2: ['c']
    results: [1, 1, 1, 1]
    attempts of c: 2
"""

from __future__ import annotations

import asyncio
import os

from windlass import Batch, BatchError, Job, Windlass, Worker

app = Windlass(os.environ.get("WINDLASS_URL") or "memory://")
calls = 0


@app.task(queue="search", batch=Batch(size=50, timeout=0.02), backoff=0)
async def index(documents: list[str]) -> list[int]:
    global calls
    calls += 1
    print(f"call {calls}: {documents}")
    lengths = [len(text) for text in documents]
    if calls == 1:
        raise BatchError({documents.index("c"): ConnectionError("no answer for c")}, lengths)
    return lengths


async def main() -> None:
    async with app:
        jobs: list[Job[int]] = [await index.enqueue(text) for text in "abcd"]
        await Worker("search", url_or_app=app).drain()
        print(f"results: {[await job.result() for job in jobs]}")
        print(f"attempts of c: {(await jobs[2].refresh()).attempt}")


if __name__ == "__main__":
    asyncio.run(main())
