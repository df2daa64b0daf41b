"""Order inside a queue (priority) and between queues (weights, caps, reserves).

Prints::

    by priority: critical, high, first normal, second normal, low
    by weight, first 20 jobs: high 12, middle 6, low 2
    reports ran at most 2 at once
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from typing import Any

from windlass import Job, Priority, QueueSpec, Windlass, Worker

app = Windlass(os.environ.get("WINDLASS_URL") or "memory://")


async def by_priority() -> None:
    queue = app.queue("tasks")
    order: list[str] = []

    async def handler(job: Job[Any]) -> None:
        order.append(job.data)

    await queue.add("task", "first normal")
    await queue.add("task", "low", priority=Priority.LOW)
    await queue.add("task", "second normal")
    await queue.add("task", "critical", priority=Priority.CRITICAL)
    await queue.add("task", "high", priority=Priority.HIGH)
    await Worker("tasks", handler, url_or_app=app, concurrency=1).drain()
    print(f"by priority: {', '.join(order)}")


async def by_weight() -> None:
    order: list[str] = []

    async def handler(job: Job[Any]) -> None:
        order.append(job.queue_name)

    for name in ("high", "middle", "low"):
        await app.queue(name).add_bulk([{"name": "task"} for _ in range(20)])
    await Worker({"high": 6, "middle": 3, "low": 1}, handler, url_or_app=app, concurrency=1).drain()
    first = Counter(order[:20])
    shares = ", ".join(f"{name} {first[name]}" for name in ("high", "middle", "low"))
    print(f"by weight, first 20 jobs: {shares}")


async def with_a_cap() -> None:
    running = most = 0

    async def handler(job: Job[Any]) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.005)
        running -= 1

    await app.queue("reports").add_bulk([{"name": "report"} for _ in range(10)])
    queues = {"reports": QueueSpec(cap=2), "mail": QueueSpec(reserve=1)}
    await Worker(queues, handler, url_or_app=app, concurrency=8).drain()
    print(f"reports ran at most {most} at once")


async def main() -> None:
    async with app:
        await by_priority()
        await by_weight()
        await with_a_cap()


if __name__ == "__main__":
    asyncio.run(main())
