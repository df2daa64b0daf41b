"""``scripts/bench amqp``: Windlass on RabbitMQ beside Celery and Dramatiq on the same broker.

Persistent messages and publisher confirms for all. Each measurement runs alone, several times in turn with
what it is compared to; the medians count. See ``docs/benchmarks.md``.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._common import Report, console, scratch
from benchmarks._peers import Peer, installed
from benchmarks._processes import worker
from benchmarks._stamps import StampFile
from tools.services.rabbitmq import Server, rabbitmq_binary, running
from windlass import Windlass

CONCURRENCY = 50
#: The shape that suits each peer best.
BEST = {"Celery": 10, "Dramatiq": 8}


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    repetitions: int = 3
    one: int = 500
    bulk: int = 20_000
    drain: int = 20_000
    peer: int = 4_000


SMOKE = Sizes(1, 50, 1_000, 1_000, 300)


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
        """A namespace of its own for each measurement."""
        return f"{self._server.url}?namespace=bench{next(self._numbers)}"

    def _stamps(self) -> StampFile:
        return StampFile(self._directory / f"{next(self._numbers)}.stamps")

    def _rounds(self, title: str, steps: dict[str, Callable[[], float]]) -> None:
        names = {f"{title}: {name}": step for name, step in steps.items()}
        self.report.rounds(title, *(partial(self._note, name, step) for name, step in names.items()))

    def _note(self, name: str, step: Callable[[], float]) -> None:
        self.report.add(name, "jobs/s", step())

    def _compare_best(self, row: str, wanted: float) -> None:
        names = [f"{row}: {peer.name}" for peer in self._peers]
        if names:
            self.report.compare(f"{row}: Windlass", max(names, key=self.report.value), wanted)

    # --- add -------------------------------------------------------------------------------------

    def one(self) -> None:
        """Jobs added one by one, each confirmed."""
        count = self.sizes.one
        steps = {"Windlass": lambda: asyncio.run(self._added(self._url(), count, 1))}
        steps |= {
            peer.name: partial(peer.do, self._server.url, "one", count, self._text) for peer in self._peers
        }
        self._rounds("one by one", steps)
        self._compare_best("one by one", 0.9)

    def bulk(self) -> None:
        """Jobs added as fast as the interface allows."""
        steps = {"Windlass": lambda: asyncio.run(self._added(self._url(), self.sizes.bulk, 1_000))}
        self._rounds("bulk", steps)

    async def _added(self, url: str, count: int, batch: int) -> float:
        async with Windlass(url) as app:
            queue = app.queue("bench")
            await queue.add("noop", {"text": self._text})  # connect
            started = time.perf_counter()
            if batch == 1:
                for _ in range(count):
                    await queue.add("noop", {"text": self._text})
            else:
                jobs = [{"name": "noop", "data": {"text": self._text}}] * batch
                for _ in range(count // batch):
                    await queue.add_bulk(jobs)
            return count / (time.perf_counter() - started)

    # --- drain -----------------------------------------------------------------------------------

    def drain(self) -> None:
        """A full queue, worked off by one process."""
        steps: dict[str, Callable[[], float]] = {"Windlass": self._drained}
        steps |= {peer.name: partial(self._drained_by, peer) for peer in self._peers}
        self._rounds("drain", steps)
        self._compare_best("drain", 2.0)

    def _drained(self) -> float:
        url, stamps = self._url(), self._stamps()
        asyncio.run(self._added(url, self.sizes.drain, min(1_000, self.sizes.drain)))
        with worker(url, stamps, ["bench"], concurrency=CONCURRENCY):
            stamps.wait(self.sizes.drain)
            return stamps.rate(self.sizes.drain)

    def _drained_by(self, peer: Peer) -> float:
        stamps = self._stamps()
        peer.do(self._server.url, "bulk", self.sizes.peer, self._text)
        with peer.worker(self._server.url, stamps, BEST.get(peer.name, CONCURRENCY)):
            stamps.wait(self.sizes.peer)
            return stamps.rate(self.sizes.peer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes: does it run at all?")
    parser.add_argument("--peers", default="celery,dramatiq", help="which peers, by name; '' for none")
    arguments = parser.parse_args()
    binary = rabbitmq_binary()
    if binary is None:
        sys.exit("rabbitmq-server is missing: apt-get install rabbitmq-server")
    peers = installed(arguments.peers.lower().split(",")) if arguments.peers else []
    sizes = SMOKE if arguments.smoke else Sizes()
    with scratch() as directory, running(binary) as server:
        bench = Bench(server, directory, sizes, peers)
        for step in (bench.one, bench.bulk, bench.drain):
            step()
        bench.report.show()
        console.print(f"written to {bench.report.save()}")


if __name__ == "__main__":
    main()
