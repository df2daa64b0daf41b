"""Handlers in child processes: a crash, an endless loop or a leak hurts only its own job.

Prints::

    in another process: True
    crashed: WorkerCrashError
    endless loop: JobTimeoutError
    the worker still works: 55
"""

from __future__ import annotations

import asyncio
import os
import signal

from windlass import Windlass, Worker

app = Windlass(os.environ.get("WINDLASS_URL") or "memory://")


@app.task(isolation="process", max_attempts=1)
def whoami() -> int:
    return os.getpid()


@app.task(isolation="process", max_attempts=1)
def crash() -> None:
    os.kill(os.getpid(), signal.SIGKILL)  # as a broken C extension, or the kernel's memory killer, would


@app.task(isolation="process", max_attempts=1, timeout=0.5)
def endless() -> None:
    while True:
        pass


@app.task(isolation="process", memory_limit=500_000_000)
def total(values: list[int]) -> int:
    return sum(values)


async def main() -> None:
    async with app:
        ours, crashed, stuck = await whoami.enqueue(), await crash.enqueue(), await endless.enqueue()
        await Worker("default", url_or_app=app, process_slots=2).drain()
        print(f"in another process: {await ours.result() != os.getpid()}")
        print(f"crashed: {(await crashed.refresh()).errors[-1].error_class}")
        print(f"endless loop: {(await stuck.refresh()).errors[-1].error_class}")
        job = await total.enqueue(list(range(11)))
        await Worker("default", url_or_app=app).drain()
        print(f"the worker still works: {await job.result()}")


if __name__ == "__main__":
    asyncio.run(main())
