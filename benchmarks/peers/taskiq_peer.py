"""taskiq on RabbitMQ: ``taskiq worker benchmarks.peers.taskiq_peer:broker``. No results over a broker."""

from __future__ import annotations

import asyncio
import time

from taskiq_aio_pika import AioPikaBroker, Exchange, Queue, QueueType

from benchmarks._stamps import StampWriter
from benchmarks.peers._driver import PREFETCH, URL, serve_async

#: A classic queue, as the others have; persistent messages and confirms are what aio-pika does by default.
broker = AioPikaBroker(
    URL,
    qos=PREFETCH,
    exchange=Exchange(name="taskiq"),
    task_queues=[Queue(name="taskiq", type=QueueType.CLASSIC)],
    dead_letter_queue=Queue(name="taskiq.dead", type=QueueType.CLASSIC),
)
stamps = StampWriter()


@broker.task(task_name="noop")  # type: ignore[untyped-decorator]
async def noop(text: str) -> None:
    stamps.now()


@broker.task(task_name="late")  # type: ignore[untyped-decorator]
async def late(asked_ns: int) -> None:
    stamps.write(time.monotonic_ns() - asked_ns)


async def main() -> None:
    await broker.startup()
    await serve_async(noop.kiq, late.kiq)
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
