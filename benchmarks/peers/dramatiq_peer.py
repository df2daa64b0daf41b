"""Dramatiq: ``dramatiq benchmarks.peers.dramatiq_peer``."""

from __future__ import annotations

import time

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend, StubBackend

from benchmarks._stamps import StampWriter
from benchmarks.peers._driver import URL, serve

#: On a broker the queue of another peer has other arguments.
QUEUE = "bench"
if URL.startswith("amqp://"):
    QUEUE = "dramatiq"
    broker = RabbitmqBroker(url=URL, confirm_delivery=True)
    broker.add_middleware(Results(backend=StubBackend()))
else:
    broker = RedisBroker(url=URL)
    broker.add_middleware(Results(backend=RedisBackend(url=URL)))
dramatiq.set_broker(broker)
stamps = StampWriter()


@dramatiq.actor(queue_name=QUEUE)  # type: ignore[untyped-decorator]
def noop(text: str) -> None:
    stamps.now()


@dramatiq.actor(queue_name=QUEUE)  # type: ignore[untyped-decorator]
def late(asked_ns: int) -> None:
    stamps.write(time.monotonic_ns() - asked_ns)


@dramatiq.actor(queue_name=QUEUE, store_results=True)  # type: ignore[untyped-decorator]
def echo(number: int) -> int:
    return number


if __name__ == "__main__":
    serve(noop.send, late.send, lambda number: echo.send(number).get_result(block=True, timeout=30_000))
