"""FastStream on RabbitMQ: ``python -m benchmarks.peers.faststream_peer work N``. One event loop."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

from faststream.rabbit import Channel, RabbitBroker, RabbitQueue

from benchmarks._stamps import StampWriter
from benchmarks.peers._driver import PREFETCH, URL, serve_async

broker = RabbitBroker(URL, default_channel=Channel(prefetch_count=PREFETCH), logger=None)
noops, lates, echoes = (RabbitQueue(f"faststream.{name}", durable=True) for name in ("noop", "late", "echo"))
stamps = StampWriter()


@broker.subscriber(noops)  # type: ignore[untyped-decorator]
async def noop(text: str) -> None:
    stamps.now()


@broker.subscriber(lates)  # type: ignore[untyped-decorator]
async def late(asked_ns: int) -> None:
    stamps.write(time.monotonic_ns() - asked_ns)


@broker.subscriber(echoes)  # type: ignore[untyped-decorator]
async def echo(number: int) -> int:
    return number


async def call(number: int) -> Any:
    answer = await broker.request(number, echoes, timeout=30)
    return await answer.decode()


async def main() -> None:
    if sys.argv[1] == "work":
        await broker.start()
        await asyncio.Event().wait()
    await broker.connect()
    for queue in (noops, lates, echoes):
        await broker.declare_queue(queue)
    await serve_async(
        lambda text: broker.publish(text, noops, persist=True),
        lambda asked: broker.publish(asked, lates, persist=True),
        call,
    )
    await broker.stop()


if __name__ == "__main__":
    asyncio.run(main())
