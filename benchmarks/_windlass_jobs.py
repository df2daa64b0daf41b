"""The tasks that the benchmarks' workers run: ``windlass worker benchmarks._windlass_jobs:app``."""

from __future__ import annotations

import time

from benchmarks._stamps import StampWriter
from windlass import Windlass

app = Windlass()
stamps = StampWriter()


@app.task(name="noop", queue="bench")
async def noop(text: str) -> None:
    """Record that the job started."""
    stamps.now()


@app.task(name="late", queue="bench")
async def late(asked_ns: int) -> None:
    """Record how long ago the producer called ``add``."""
    stamps.write(time.monotonic_ns() - asked_ns)


@app.task(name="echo", queue="bench")
async def echo(number: int) -> int:
    """The answer of a request."""
    return number
