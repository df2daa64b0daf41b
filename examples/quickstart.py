"""The smallest useful program: a task, a job, a worker, a result.

In real life the worker is another process (``windlass worker module:app``). Here it runs in the same one.

Prints::

    added a job: waiting
    hello ada
    the job is completed after 1 delivery
"""

from __future__ import annotations

import asyncio
import os

from windlass import Windlass, Worker

app = Windlass(os.environ.get("WINDLASS_URL") or "memory://")


@app.task(queue="greetings")
async def greet(name: str) -> str:
    return f"hello {name}"


async def main() -> None:
    async with app:
        job = await greet.enqueue("ada")
        print(f"added a job: {job.state}")
        await Worker("greetings", url_or_app=app).drain()  # works until nothing is left, then stops
        print(await job.result())
        print(f"the job is {job.state} after {job.deliveries} delivery")


if __name__ == "__main__":
    asyncio.run(main())
