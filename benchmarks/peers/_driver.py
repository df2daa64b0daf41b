"""The commands of every Python peer: ``python -m benchmarks.peers.NAME VERB COUNT TEXT``; prints JSON."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable

URL = os.environ.get("BENCH_URL", "redis://127.0.0.1:6379")
#: How many messages a worker of an asyncio peer holds at once.
PREFETCH = int(os.environ.get("BENCH_CONCURRENCY", "10"))
#: Concurrent callers if an asyncio peer adds as fast as it can.
_CALLERS = 100


def rate(count: int, step: Callable[[], object]) -> float:
    started = time.perf_counter()
    for _ in range(count):
        step()
    return count / (time.perf_counter() - started)


def serve(
    noop: Callable[[str], object], late: Callable[[int], object], call: Callable[[int], object] | None = None
) -> None:
    """Run the verb of the command line with these functions to enqueue a job and to wait for one."""
    verb, count, text = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    found = 0.0
    if verb in ("one", "bulk"):
        noop(text)  # connect
        found = rate(count, lambda: noop(text))
    elif verb == "late":
        for _ in range(count):
            time.sleep(0.01)
            late(time.monotonic_ns())
    elif verb == "call" and call is not None:
        call(0)
        found = rate(count, lambda: call(1))
    print(json.dumps({"rate": found}))


async def serve_async(
    noop: Callable[[str], Awaitable[object]],
    late: Callable[[int], Awaitable[object]],
    call: Callable[[int], Awaitable[object]] | None = None,
) -> None:
    """``serve`` for peers whose calls are awaited."""
    verb, count, text = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    if verb in ("one", "bulk"):
        await noop(text)  # connect
    elif verb == "call" and call is not None:
        await call(0)
    started = time.perf_counter()
    if verb == "bulk":
        for first in range(0, count, _CALLERS):
            await asyncio.gather(*(noop(text) for _ in range(min(_CALLERS, count - first))))
    else:
        for _ in range(count):
            if verb == "late":
                await asyncio.sleep(0.01)
                await late(time.monotonic_ns())
            elif verb == "call" and call is not None:
                await call(1)
            else:
                await noop(text)
    print(json.dumps({"rate": count / (time.perf_counter() - started)}))
