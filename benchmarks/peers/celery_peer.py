"""Celery: ``celery -A benchmarks.peers.celery_peer worker``. Only awaited tasks keep their result."""

from __future__ import annotations

import time

from celery import Celery

from benchmarks._stamps import StampWriter
from benchmarks.peers._driver import URL, serve

AMQP = URL.startswith("amqp://")
app = Celery("bench", broker=URL, backend="rpc://" if AMQP else URL)
if AMQP:
    app.conf.broker_transport_options = {"confirm_publish": True}
app.conf.update(worker_prefetch_multiplier=4, task_default_queue="bench", result_expires=60)
stamps = StampWriter()


@app.task(ignore_result=True)  # type: ignore[untyped-decorator]
def noop(text: str) -> None:
    stamps.now()


@app.task(ignore_result=True)  # type: ignore[untyped-decorator]
def late(asked_ns: int) -> None:
    stamps.write(time.monotonic_ns() - asked_ns)


@app.task  # type: ignore[untyped-decorator]
def echo(number: int) -> int:
    return number


if __name__ == "__main__":
    from benchmarks.peers import celery_peer as jobs  # import it under the name that the worker uses

    serve(jobs.noop.delay, jobs.late.delay, lambda number: jobs.echo.delay(number).get(timeout=30))
