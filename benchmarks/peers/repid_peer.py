"""Repid on RabbitMQ: ``python -m benchmarks.peers.repid_peer work N``. No results over a broker.

Its releases from 2 on speak AMQP 1.0, which Debian's RabbitMQ has only as a plugin; the last one before that
speaks the protocol of the others here.
"""

from __future__ import annotations

import asyncio
import sys
import time

from repid import BasicConverter, Connection, Job, Queue, RabbitMessageBroker, Repid, Router, Worker

from benchmarks._stamps import StampWriter
from benchmarks.peers._driver import PREFETCH, URL, serve_async

#: Persistent messages and confirms are what it does by default.
app = Repid(Connection(RabbitMessageBroker(URL)))
#: Actors name the plain converter: that for pydantic, which FastStream brings, cannot read text annotations.
router = Router()
stamps = StampWriter()


@router.actor(queue="repid", converter=BasicConverter)  # type: ignore[untyped-decorator]
async def noop(text: str) -> None:
    stamps.now()


@router.actor(queue="repid", converter=BasicConverter)  # type: ignore[untyped-decorator]
async def late(asked_ns: int) -> None:
    stamps.write(time.monotonic_ns() - asked_ns)


async def main() -> None:
    async with app.magic(auto_disconnect=True):
        if sys.argv[1] == "work":
            await Worker(routers=[router], tasks_limit=PREFETCH).run()
            return
        await Queue("repid").declare()
        await serve_async(
            lambda text: Job("noop", queue="repid", args={"text": text}).enqueue(),
            lambda asked: Job("late", queue="repid", args={"asked_ns": asked}).enqueue(),
        )


if __name__ == "__main__":
    asyncio.run(main())
