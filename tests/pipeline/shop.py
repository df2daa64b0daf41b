"""A worker in a process of its own: ``python shop.py URL [FILE]`` works until nothing is left.

Its tasks fail, snooze, cancel themselves, and kill the process that runs them. ``sold`` writes what it was
called with to FILE.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from windlass import Cancel, Snooze, UnrecoverableError, Windlass, Worker, current_job

QUEUES = ("mail", "pdf")
#: Short, so that the jobs of a killed worker are soon somebody else's.
LEASE_S = 1
#: How many workers the job ``deadly`` takes with it.
KILLS = 3


def build(url: str, sold_file: str = os.devnull) -> Windlass:
    """The app, with its tasks."""
    app = Windlass(url)
    retry_soon = {"type": "fixed", "delay": 0.05, "jitter": 0}
    sold_fd = os.open(sold_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    @app.task(name="send", queue="mail", max_attempts=3, backoff=retry_soon)
    async def send(n: int) -> int:
        if n % 5 == 0 and current_job().attempt < 3:
            raise ConnectionError("busy")
        if n % 7 == 0:
            raise UnrecoverableError("no such address")
        return n

    @app.task(name="render", queue="pdf", max_attempts=2, backoff=retry_soon)
    def render(n: int) -> int:
        if n % 4 == 0:
            raise ValueError("never works")
        return n

    @app.task(name="shy", queue="pdf")
    async def shy(n: int) -> None:
        if n % 2:
            raise Cancel("not today")
        if current_job().deliveries == 1:
            raise Snooze(0.05)

    @app.task(name="deadly", queue="mail", max_stalls=KILLS)
    async def deadly() -> None:
        if current_job().deliveries <= KILLS:
            os.kill(os.getpid(), signal.SIGKILL)

    @app.task(name="sold", queue="mail")
    async def sold(id: int) -> None:
        os.write(sold_fd, b"%d\n" % id)

    return app


async def work(url: str, sold_file: str = os.devnull, *, burst: bool = True) -> None:
    app = build(url, sold_file)
    concurrency = 8 if burst else 200
    worker = Worker(
        QUEUES, url_or_app=app, burst=burst, lease=LEASE_S if burst else 30, poll=0.2, concurrency=concurrency
    )
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, lambda: loop.create_task(worker.close()))
    async with app:
        await worker.run()


if __name__ == "__main__":
    asyncio.run(work(*sys.argv[1:], burst=len(sys.argv) == 2))
