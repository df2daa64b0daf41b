"""``scripts/bench amqp_hops``: where the time of one job goes on RabbitMQ, hop by hop.

A producer, a worker and a coordinator are three processes beside a broker. Each records when it passes a hop.
Calls are sequential, with a pause after each result, so all hops until the next call belong to a call. It
prints the medians, counted from the call; what comes after the result costs the caller nothing.
``BENCH_TREE`` selects another tree whose package is measured; ``--picture FILE`` draws the hops.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._common import console, scratch
from benchmarks._processes import TREE, search_path, wait_for_worker
from benchmarks._timeline import draw
from tools.services.rabbitmq import rabbitmq_binary, running
from windlass import Job, Windlass, Worker
from windlass.backends.amqp.client import AmqpClient
from windlass.backends.amqp.consumer import Consumer
from windlass.backends.amqp.coordinator import Coordinator
from windlass.backends.amqp.intake import Intake
from windlass.backends.amqp.session import AmqpSession
from windlass.backends.amqp.wire import read_entry

ROOT = Path(__file__).resolve().parents[1]
QUEUE = "hops"
#: After each result, until the next call.
_PAUSE_S = 0.05

Stamps = list[tuple[int, str]]


def note(stamps: Stamps, hop: str) -> None:
    stamps.append((time.monotonic_ns(), hop))


def watch(stamps: Stamps, owner: type, name: str, label: Callable[..., str]) -> None:
    """Record every call of a method before it runs."""
    inner = getattr(owner, name)

    @wraps(inner)
    def noted(*args: Any, **options: Any) -> Any:
        note(stamps, label(*args))
        return inner(*args, **options)

    setattr(owner, name, noted)


def watch_all(stamps: Stamps, role: str) -> None:
    """Record the hops of this process."""
    watch(stamps, AmqpSession, "_confirm", lambda *_: f"{role}: the broker confirms")
    watch(
        stamps,
        AmqpClient,
        "_on_message",
        lambda _, properties, __: f"{role}: hears {properties.type or 'an answer'}",
    )
    watch(stamps, AmqpClient, "ask", lambda _, request, *__: f"{role}: asks {type(request).__name__}")
    if role == "worker":
        for name in ("_on_idle_message", "_on_prefetched"):
            watch(stamps, Intake, name, lambda *_: "worker: the job's message comes")
        watch(stamps, Consumer, "claim", lambda *_: "worker: claims")
        watch(stamps, Consumer, "_complete", lambda *_: "worker: tells the end")
    watch(stamps, Coordinator, "_read", lambda *args: f"coordinator: reads {read_entry(args[-1]).name}")


async def run_worker(url: str, stamps: Stamps) -> None:
    async def handle(job: Job[Any]) -> dict[str, int]:
        note(stamps, "worker: the handler starts")
        return {"n": 1}

    await Worker(QUEUE, handle, url_or_app=url, concurrency=10).run(handle_signals=True)


async def run_coordinator(url: str, stamps: Stamps) -> None:
    async with Windlass(url) as app:
        await app.store.backend.coordinate()  # type: ignore[attr-defined]
        await asyncio.Event().wait()


def run_role(role: str, url: str, path: str) -> None:
    # A shell lets programs in the background ignore interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    stamps: Stamps = []
    watch_all(stamps, role)
    work = {"worker": run_worker, "coordinator": run_coordinator}[role]
    try:
        asyncio.run(work(url, stamps))
    except KeyboardInterrupt:
        pass
    finally:
        Path(path).write_text(json.dumps(stamps))


@contextmanager
def process(role: str, url: str, path: Path) -> Iterator[None]:
    env = {**os.environ, "PYTHONPATH": search_path(os.environ.get(TREE, str(ROOT)))}
    started = subprocess.Popen([sys.executable, __file__, "--role", role, url, str(path)], env=env)
    try:
        yield
    finally:
        started.send_signal(signal.SIGINT)
        started.wait(30)


async def calls(url: str, count: int, stamps: Stamps) -> list[tuple[int, int]]:
    """Call and wait, ``count`` times; returns when each began, and when the pause after it ended."""
    spans = []
    async with Windlass(url) as app:
        await wait_for_worker(app)
        queue = app.queue(QUEUE)
        for n in range(count + 5):
            began = time.monotonic_ns()
            await queue.add_and_wait("job", {"n": n}, timeout=30)
            note(stamps, "producer: the result is there")
            await asyncio.sleep(_PAUSE_S)  # until the coordinator has read the log, and the worker is idle
            spans.append((began, time.monotonic_ns()))
    return spans[5:]


async def remove(url: str) -> None:
    """Remove everything from the broker, when no other process uses it any more."""
    async with Windlass(url) as app:
        await app.store.backend.prepare([QUEUE])  # type: ignore[attr-defined]
        await app.store.backend.remove_all()  # type: ignore[attr-defined]


def table(spans: list[tuple[int, int]], stamps: Stamps) -> list[tuple[str, float, int]]:
    """For each hop the median time of its first occurrence per call (ms) and the number of calls with it."""
    found: dict[str, list[float]] = {}
    for began, ended in spans:
        seen: set[str] = set()
        for at, hop in stamps:
            if began <= at <= ended and hop not in seen:
                seen.add(hop)
                found.setdefault(hop, []).append((at - began) / 1e6)
    rows = [(hop, statistics.median(times), len(times)) for hop, times in found.items()]
    return sorted(rows, key=lambda row: row[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--role", nargs=3, metavar=("ROLE", "URL", "FILE"), help=argparse.SUPPRESS)
    parser.add_argument("--url", help="a running broker")
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--smoke", action="store_true", help="few calls, to check that everything runs")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="also draw the hops into this SVG file")
    arguments = parser.parse_args()
    count = 10 if arguments.smoke else arguments.calls
    if arguments.role:
        run_role(*arguments.role)
        return
    if arguments.url:
        measure(arguments.url, count, arguments.picture)
        return
    binary = rabbitmq_binary()
    if binary is None:
        sys.exit("rabbitmq-server is missing: apt-get install rabbitmq-server")
    with running(binary) as server:
        measure(server.url, count, arguments.picture)


def measure(url: str, count: int, picture: Path | None) -> None:
    stamps: Stamps = []
    watch_all(stamps, "producer")
    url = f"{url}?namespace=hops{os.getpid()}"
    with scratch() as folder:
        paths = {role: folder / f"{role}.json" for role in ("coordinator", "worker")}
        with process("coordinator", url, paths["coordinator"]):
            time.sleep(3)  # it becomes the coordinator before others try
            with process("worker", url, paths["worker"]):
                spans = asyncio.run(calls(url, count, stamps))
        asyncio.run(remove(url))
        for path in paths.values():
            stamps += [(at, hop) for at, hop in json.loads(path.read_text())]
    stamps.sort()
    rows = table(spans, stamps)
    for hop, median_ms, times in rows:
        console.print(f"{median_ms:9.2f} ms  {hop}  ({times} of {count})", highlight=False)
    if picture is not None:
        often = [(at, *hop.partition(": ")[::2]) for hop, at, times in rows if times > count / 2]
        began = (0.0, "producer", "calls")
        draw(picture, "One call and its result on RabbitMQ, idle worker", [began, *often])


if __name__ == "__main__":
    main()
