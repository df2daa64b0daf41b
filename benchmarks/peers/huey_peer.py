"""Huey: ``huey_consumer benchmarks.peers.huey_peer.huey``. Callers poll for a result every millisecond."""

from __future__ import annotations

import time

from huey import RedisHuey

from benchmarks._stamps import StampWriter
from benchmarks.peers._driver import URL, serve

huey = RedisHuey("bench", url=URL)
stamps = StampWriter()


@huey.task()  # type: ignore[untyped-decorator]
def noop(text: str) -> None:
    stamps.now()


@huey.task()  # type: ignore[untyped-decorator]
def late(asked_ns: int) -> None:
    stamps.write(time.monotonic_ns() - asked_ns)


@huey.task()  # type: ignore[untyped-decorator]
def echo(number: int) -> int:
    return number


if __name__ == "__main__":
    from benchmarks.peers import huey_peer as jobs  # import it under the name that the consumer uses

    def call(number: int) -> object:
        return jobs.echo(number).get(blocking=True, timeout=30, backoff=1, max_delay=0.001)

    serve(jobs.noop, jobs.late, call)
