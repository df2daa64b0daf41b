"""``scripts/bench amqp``: Windlass on RabbitMQ beside Celery, Dramatiq, taskiq, FastStream and Repid.

Windlass is measured by its class API (``Queue`` and a handler) and by its tasks. Persistent messages and
publisher confirms for all. Each measurement runs alone, several times in turn with what it is compared to;
the medians count. See ``docs/benchmarks.md``.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pika

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._amqp_raw import BareLoops
from benchmarks._common import Report, console, percentile, run, scratch
from benchmarks._peers import Peer, installed
from benchmarks._processes import handler_worker, wait_for_worker, worker
from benchmarks._stamps import StampFile
from tools.services.rabbitmq import Server, rabbitmq_binary, running
from windlass import Windlass

QUEUE = "bench"
#: Jobs that run at once, one row of drains for each.
DRAINS = (1, 10, 50)
#: For jobs that come one by one.
IDLE = 10
#: The worker configuration with which each peer is fastest at the highest concurrency.
BEST = {"Celery": 10, "Dramatiq": 8}
#: The queues of the peers.
PEER_QUEUES = (QUEUE, "dramatiq", "taskiq", "faststream.noop", "faststream.late", "faststream.echo", "repid")
#: Peers that return no results over a broker.
SILENT = {"Dramatiq", "taskiq", "Repid"}
CLASSES, TASKS = "Windlass", "Windlass tasks"
#: The same messages in a loop that does nothing else: the limit of broker and client library.
BARE = "bare pika"
PARTS = ("one", "bulk", "drain", "latency", "calls")


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of the measurements."""

    repetitions: int = 3
    one: int = 500
    bulk: int = 20_000
    drain: int = 20_000
    peer: int = 4_000
    arrivals: int = 500
    calls: int = 500


SMOKE = Sizes(1, 50, 1_000, 1_000, 300, 30, 20)


@dataclass(frozen=True, slots=True)
class Api:
    """One way to use Windlass: how jobs are added, how a call is made, and what its worker is."""

    name: str
    worker: Callable[[str, StampFile, int], AbstractContextManager[None]]
    add: Callable[[Windlass, str, dict[str, Any]], Awaitable[Any]]
    add_many: Callable[[Windlass, list[dict[str, Any]]], Awaitable[Any]]
    call: Callable[[Windlass, int], Awaitable[Any]]


def _tasks(app: Windlass) -> dict[str, Any]:
    """The tasks of the worker (``_windlass_jobs``), as a producer knows them."""

    async def noop(text: str) -> None: ...
    async def late(asked_ns: int) -> None: ...
    async def echo(number: int) -> int:
        return number

    return {fn.__name__: app.task(name=fn.__name__, queue=QUEUE)(fn) for fn in (noop, late, echo)}


#: The tasks of each app; an app registers a task once.
_known: WeakKeyDictionary[Windlass, dict[str, Any]] = WeakKeyDictionary()


def _task(app: Windlass, name: str) -> Any:
    if app not in _known:
        _known[app] = _tasks(app)
    return _known[app][name]


def _many_tasks(app: Windlass, items: list[dict[str, Any]]) -> Awaitable[Any]:
    """Tasks have no bulk add: many callers at once."""
    noop = _task(app, "noop")
    return asyncio.gather(*(noop.enqueue(**item) for item in items))


APIS = (
    Api(
        CLASSES,
        lambda url, stamps, concurrency: handler_worker(url, stamps, QUEUE, concurrency=concurrency),
        lambda app, name, data: app.queue(QUEUE).add(name, data),
        lambda app, items: app.queue(QUEUE).add_bulk({"name": "noop", "data": item} for item in items),
        lambda app, number: app.queue(QUEUE).add_and_wait("echo", {"number": number}),
    ),
    Api(
        TASKS,
        lambda url, stamps, concurrency: worker(url, stamps, [QUEUE], concurrency=concurrency),
        lambda app, name, data: _task(app, name).enqueue(**data),
        _many_tasks,
        lambda app, number: _task(app, "echo").call(number),
    ),
)


class Bench:
    """One run: its broker, its peers, its sizes, its report."""

    def __init__(self, server: Server, directory: Path, sizes: Sizes, peers: list[Peer]) -> None:
        self.sizes = sizes
        self.report = Report("amqp", repetitions=sizes.repetitions, settings=asdict(sizes))
        self._server = server
        self._directory = directory
        self._peers = peers
        self._numbers = itertools.count()
        self._text = "x" * 100

    def _url(self) -> str:
        """A new namespace for each measurement."""
        return f"{self._server.url}?namespace=bench{next(self._numbers)}"

    def _stamps(self) -> StampFile:
        return StampFile(self._directory / f"{next(self._numbers)}.stamps")

    def _rounds(self, title: str, unit: str, steps: Mapping[str, Callable[[], float]]) -> None:
        names = {f"{title}: {name}": step for name, step in steps.items()}
        self.report.rounds(title, *(partial(self._note, name, unit, step) for name, step in names.items()))
        self._compare_best(title)

    def _note(self, name: str, unit: str, step: Callable[[], float]) -> None:
        self.report.add(name, unit, step())

    def _compare_best(self, row: str) -> None:
        names = [
            f"{row}: {peer.name}" for peer in self._peers if f"{row}: {peer.name}" in self.report.measures
        ]
        for api in APIS if names else ():
            self.report.compare(f"{row}: {api.name}", max(names, key=self.report.value), 1.0)

    def _empty_peers(self) -> None:
        """Delete messages of earlier measurements from the queues of the peers."""
        connection = pika.BlockingConnection(pika.URLParameters(self._server.url))
        try:
            for name in PEER_QUEUES:
                connection.channel().queue_delete(name)  # no error if it does not exist
        finally:
            connection.close()

    def _bare(self, loop: Callable[[BareLoops], float]) -> float:
        """A bare loop on a namespace of its own."""
        loops = BareLoops(self._url(), self._text)
        run(loops.declare())
        return loop(loops)

    # --- add -------------------------------------------------------------------------------------

    def one(self) -> None:
        """Jobs added one by one, each confirmed."""
        count = self.sizes.one
        steps: dict[str, Callable[[], float]] = {
            api.name: partial(self._fill, api, None, count, 1) for api in APIS
        }
        steps |= {
            peer.name: partial(peer.do, self._server.url, "one", count, self._text) for peer in self._peers
        }
        steps[BARE] = lambda: self._bare(lambda loops: loops.adds(count, 1))
        self._rounds("one by one", "jobs/s", steps)

    def bulk(self) -> None:
        """Jobs added as fast as the API allows; the peers have no bulk add."""
        count = self.sizes.bulk
        steps: dict[str, Callable[[], float]] = {
            api.name: partial(self._fill, api, None, count, 1_000) for api in APIS
        }
        steps |= {
            peer.name: partial(peer.do, self._server.url, "bulk", self.sizes.peer, self._text)
            for peer in self._peers
        }
        steps[BARE] = lambda: self._bare(lambda loops: loops.adds(count, 1_000))
        self._rounds("bulk", "jobs/s", steps)

    def _fill(self, api: Api, url: str | None, count: int, batch: int) -> float:
        return run(self._added(api, url or self._url(), count, batch))

    async def _added(self, api: Api, url: str, count: int, batch: int) -> float:
        async with Windlass(url) as app:
            item = {"text": self._text}
            await api.add(app, "noop", item)  # connect
            started = time.perf_counter()
            for _ in range(count // batch):
                if batch == 1:
                    await api.add(app, "noop", item)
                else:
                    await api.add_many(app, [item] * batch)
            return count / (time.perf_counter() - started)

    # --- drain -----------------------------------------------------------------------------------

    def drain(self) -> None:
        """One worker process on a full queue."""
        for concurrency in DRAINS:
            steps: dict[str, Callable[[], float]] = {
                api.name: partial(self._drained, api, concurrency) for api in APIS
            }
            steps |= {peer.name: partial(self._drained_by, peer, concurrency) for peer in self._peers}
            steps[BARE] = partial(self._drained_bare, concurrency)
            self._rounds(f"drain at {concurrency}", "jobs/s", steps)

    def _drained(self, api: Api, concurrency: int) -> float:
        url, stamps = self._url(), self._stamps()
        self._fill(APIS[0], url, self.sizes.drain, min(1_000, self.sizes.drain))
        with api.worker(url, stamps, concurrency):
            stamps.wait(self.sizes.drain)
            return stamps.rate(self.sizes.drain)

    def _drained_by(self, peer: Peer, concurrency: int) -> float:
        stamps = self._stamps()
        self._empty_peers()
        peer.do(self._server.url, "bulk", self.sizes.peer, self._text)
        most = BEST.get(peer.name, concurrency) if concurrency == DRAINS[-1] else concurrency
        with peer.worker(self._server.url, stamps, most):
            stamps.wait(self.sizes.peer)
            return stamps.rate(self.sizes.peer)

    def _drained_bare(self, concurrency: int) -> float:
        return self._bare(lambda loops: loops.drain(self.sizes.drain, concurrency))

    # --- idle workers ----------------------------------------------------------------------------

    def latency(self) -> None:
        """A hundred jobs a second for an idle worker, from the call that adds to the handler."""
        steps: list[Callable[[], None]] = [partial(self._latency, api) for api in APIS]
        steps += [partial(self._peer_latency, peer) for peer in self._peers]
        self.report.rounds("enqueue to start", *steps)
        for api in APIS:
            self.report.bound(f"enqueue to start, p50: {api.name}", 3)
            self.report.bound(f"enqueue to start, p99: {api.name}", 10)

    def _note_latency(self, name: str, values: list[int]) -> None:
        late = [nanoseconds / 1e6 for nanoseconds in values]
        for part, value in (("p50", 50.0), ("p99", 99.0)):
            self.report.add(f"enqueue to start, {part}: {name}", "ms", percentile(late, value))

    def _latency(self, api: Api) -> None:
        url, stamps = self._url(), self._stamps()
        with api.worker(url, stamps, IDLE):
            run(self._arrivals(api, url))
            stamps.wait(self.sizes.arrivals)
        self._note_latency(api.name, stamps.values())

    async def _arrivals(self, api: Api, url: str) -> None:
        async with Windlass(url) as app:
            await wait_for_worker(app)
            for _ in range(self.sizes.arrivals):
                await asyncio.sleep(0.01)
                await api.add(app, "late", {"asked_ns": time.monotonic_ns()})

    def _peer_latency(self, peer: Peer) -> None:
        url, stamps = self._server.url, self._stamps()
        self._empty_peers()
        with peer.worker(url, stamps, IDLE):
            peer.do(url, "one", 1, self._text)
            stamps.wait(2, timeout=60)  # the worker runs; two jobs were added, the first one to connect
            peer.do(url, "late", self.sizes.arrivals, self._text)
            stamps.wait(2 + self.sizes.arrivals, timeout=60)
        self._note_latency(peer.name, stamps.values()[2:])

    def calls(self) -> None:
        """A job and its result, one after the other, beside the peers that return results over a broker."""
        steps: dict[str, Callable[[], float]] = {api.name: partial(self._calls, api) for api in APIS}
        steps |= {
            peer.name: partial(self._peer_calls, peer) for peer in self._peers if peer.name not in SILENT
        }
        steps[BARE] = lambda: self._bare(lambda loops: loops.calls(self.sizes.calls))
        self._rounds("request and response", "calls/s", steps)

    def _calls(self, api: Api) -> float:
        url = self._url()
        with api.worker(url, self._stamps(), IDLE):
            return run(self._timed_calls(api, url))

    async def _timed_calls(self, api: Api, url: str) -> float:
        async with Windlass(url) as app:
            await wait_for_worker(app)
            await api.call(app, 0)
            started = time.perf_counter()
            for number in range(self.sizes.calls):
                if await api.call(app, number) != number:
                    raise RuntimeError("a wrong answer")
            return self.sizes.calls / (time.perf_counter() - started)

    def _peer_calls(self, peer: Peer) -> float:
        self._empty_peers()
        with peer.worker(self._server.url, self._stamps(), IDLE):
            return peer.do(self._server.url, "call", self.sizes.calls)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, to check that everything runs")
    parser.add_argument(
        "--peers", default="celery,dramatiq,taskiq,faststream,repid", help="which peers, by name; '' for none"
    )
    parser.add_argument("--parts", default=",".join(PARTS), help="rows to measure, separated by commas")
    arguments = parser.parse_args()
    binary = rabbitmq_binary()
    if binary is None:
        sys.exit("rabbitmq-server is missing: apt-get install rabbitmq-server")
    peers = installed(arguments.peers.lower().split(",")) if arguments.peers else []
    sizes = SMOKE if arguments.smoke else Sizes()
    with scratch() as directory, running(binary) as server:
        bench = Bench(server, directory, sizes, peers)
        for part in arguments.parts.split(","):
            getattr(bench, part)()
        bench.report.show()
        console.print(f"written to {bench.report.save()}")


if __name__ == "__main__":
    main()
