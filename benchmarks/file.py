"""``scripts/bench file``: Windlass on a directory beside the FileStorage of @platformatic/job-queue.

Each measurement runs alone, in a fresh directory, several times in turn with what it is compared to; the
medians count. Windlass runs with its default durability, an fsync before every answer; the peer never
syncs. ``--full`` puts a million jobs through one directory. See ``docs/benchmarks.md``.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._common import Report, console, percentile, scratch
from benchmarks._peers import HOME, install_node
from benchmarks._processes import wait_for_worker, worker
from benchmarks._stamps import StampFile
from windlass import Windlass
from windlass.backend import requests as rq
from windlass.core.ids import new_id
from windlass.core.job import NewJob
from windlass.core.option_values import Keep
from windlass.core.options import StoredOptions
from windlass.core.outcome import Outcome, Settlement
from windlass.core.states import JobState

AT_ONCE = 50
PAYLOAD_BYTES = 100
PEER = "platformatic FileStorage"


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of the measurements."""

    repetitions: int = 3
    adds: int = 5_000
    bulk: int = 20_000
    drain: int = 10_000
    peer: int = 500
    arrivals: int = 200
    through: int = 50_000


SMOKE = Sizes(1, 300, 1_000, 300, 50, 20, 2_000)


class Bench:
    """One run: its directory, its sizes, its report."""

    def __init__(self, directory: Path, sizes: Sizes, name: str, *, alone: bool) -> None:
        self.sizes = sizes
        self.report = Report(name, repetitions=sizes.repetitions, settings=asdict(sizes))
        self._directory = directory
        self._numbers = itertools.count()
        overhead = len(Windlass("memory://").queue("bench").prepare("noop", {"text": ""}).payload)
        self.text = "x" * (PAYLOAD_BYTES - overhead)
        problem = "not asked for" if alone else install_node()
        self.has_peer = problem is None
        if problem:
            console.print(f"left out {PEER}: {problem}")

    def fresh(self, suffix: str = "store") -> Path:
        """A new path."""
        return self._directory / f"{next(self._numbers)}.{suffix}"

    def fresh_url(self) -> str:
        return f"file://{self.fresh()}"

    def peer(self, directory: Path, verb: str) -> float:
        """Run the peer in a separate process; returns what it measured."""
        script = str(HOME / "node" / "platformatic_peer.mjs")
        command = ["node", script, str(directory), verb, str(self.sizes.peer), self.text]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=300)
        return float(json.loads(done.stdout.splitlines()[-1])["rate"])

    # --- add --------------------------------------------------------------------------------------

    def adds(self) -> None:
        """Jobs added one by one by 50 callers at once, and in bulk."""
        self.report.rounds("adds", self._peer_adds, self._adds, self._bulk)
        if self.has_peer:
            self.report.compare("add, 50 at once", f"{PEER} add, 50 at once", 10)
            self.report.compare("add_bulk", f"{PEER} add, 50 at once", 10)

    def _peer_adds(self) -> None:
        if self.has_peer:
            self.report.add(f"{PEER} add, 50 at once", "jobs/s", self.peer(self.fresh(), "add"))

    def _adds(self) -> None:
        self.report.add("add, 50 at once", "jobs/s", asyncio.run(self._timed_adds()))

    async def _timed_adds(self) -> float:
        async with Windlass(self.fresh_url()) as app:
            queue = app.queue("bench")
            await queue.count()
            left = iter(range(self.sizes.adds))

            async def produce() -> None:
                for _ in left:
                    await queue.add("noop", {"text": self.text})

            started = time.perf_counter()
            await asyncio.gather(*(produce() for _ in range(AT_ONCE)))
            return self.sizes.adds / (time.perf_counter() - started)

    def _bulk(self) -> None:
        self.report.add("add_bulk", "jobs/s", asyncio.run(self._fill(self.fresh_url(), self.sizes.bulk)))

    async def _fill(self, url: str, count: int) -> float:
        """Add ``count`` jobs; returns the rate per second."""
        async with Windlass(url) as app:
            items = [{"name": "noop", "data": {"text": self.text}} for _ in range(count)]
            started = time.perf_counter()
            await app.queue("bench").add_bulk(items)
            return count / (time.perf_counter() - started)

    # --- drain ------------------------------------------------------------------------------------

    def drain(self) -> None:
        """One worker process with 50 slots."""
        self.report.rounds("drain", self._peer_drain, self._drain)
        if self.has_peer:
            self.report.compare("drain", f"{PEER} drain", 10)

    def _peer_drain(self) -> None:
        if self.has_peer:
            directory = self.fresh()
            self.peer(directory, "add")
            self.report.add(f"{PEER} drain", "jobs/s", self.peer(directory, "drain"))

    def _drain(self) -> None:
        url, stamps = self.fresh_url(), StampFile(self.fresh("stamps"))
        asyncio.run(self._fill(url, self.sizes.drain))
        with worker(url, stamps, ["bench"], concurrency=AT_ONCE):
            stamps.wait(self.sizes.drain)
        self.report.add("drain", "jobs/s", stamps.rate(self.sizes.drain))

    # --- idle workers -----------------------------------------------------------------------------

    def latency(self) -> None:
        """From the call of ``add`` to the start of the handler in an idle worker process."""
        self.report.rounds("latency", self._latency)
        self.report.bound("enqueue to start, p99", 50)

    def _latency(self) -> None:
        url, stamps = self.fresh_url(), StampFile(self.fresh("stamps"))
        with worker(url, stamps, ["bench"]):
            asyncio.run(self._arrivals(url))
            stamps.wait(self.sizes.arrivals)
        late = [nanoseconds / 1e6 for nanoseconds in stamps.values()]
        for name, value in (("p50", 50.0), ("p99", 99.0), ("max", 100.0)):
            self.report.add(f"enqueue to start, {name}", "ms", percentile(late, value))

    async def _arrivals(self, url: str) -> None:
        async with Windlass(url) as app:
            await wait_for_worker(app)
            for _ in range(self.sizes.arrivals):
                await asyncio.sleep(0.02)
                await app.queue("bench").add("late", {"asked_ns": time.monotonic_ns()})

    # --- size -------------------------------------------------------------------------------------

    def through(self) -> None:
        """Process very many jobs in one directory: its size, and the time to open it afterwards."""
        directory = self.fresh()
        rate, largest = asyncio.run(self._pass_through(directory))
        self.report.add("jobs through one directory", "jobs/s", rate)
        self.report.add("largest size of the directory", "MB", largest / 1e6)
        started = time.perf_counter()
        kept = asyncio.run(self._count(directory))
        self.report.add("opening it afterwards", "s", time.perf_counter() - started)
        self.report.add("jobs that it keeps then", "jobs", kept)
        self.report.bound("opening it afterwards", 30)
        self.report.bound("largest size of the directory", 500)

    async def _pass_through(self, directory: Path) -> tuple[float, int]:
        largest = 0
        options = StoredOptions(keep_completed=Keep(0, 1_000))
        async with Windlass(f"file://{directory}") as app:
            started = time.perf_counter()
            for first in range(0, self.sizes.through, 1_000):
                jobs = [
                    NewJob(
                        queue="bench", id=new_id(), task="noop", payload=b"x" * PAYLOAD_BYTES, options=options
                    )
                    for _ in range(1_000)
                ]
                # Time runs a hundred times as fast, so that finished jobs reach the end of their retention.
                now_ms = 1_750_000_000_000 + first * 20
                await app.store.execute(rq.Add(jobs=jobs, now_ms=now_ms))
                claim = rq.Claim(
                    worker="w", queues=[rq.ClaimQueue("bench", 1_000, 1_000)], limit=1_000, claim_id=new_id()
                )
                claim.now_ms = now_ms
                ends = [
                    Settlement(queue=job.queue, id=job.id, token=job.token or "", outcome=Outcome.COMPLETE)
                    for job in (await app.store.execute(claim)).jobs
                ]
                await app.store.execute(rq.Settle(items=ends, now_ms=now_ms))
                await app.store.execute(rq.Prune(now_ms=now_ms))
                largest = max(largest, _size(directory))
            return self.sizes.through / (time.perf_counter() - started), largest

    async def _count(self, directory: Path) -> int:
        async with Windlass(f"file://{directory}") as app:
            return (await app.queue("bench").get_job_counts())[JobState.COMPLETED]


def _size(directory: Path) -> int:
    """The bytes in a directory, without files that are removed meanwhile."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.stat(os.path.join(folder, name)).st_size
            except FileNotFoundError:
                continue
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="scripts/bench file")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, to check that everything runs")
    parser.add_argument("--full", action="store_true", help="a million jobs through one directory")
    parser.add_argument("--alone", action="store_true", help="without the peer, which needs node and npm")
    parser.add_argument("--only", nargs="+", metavar="PART", choices=PARTS, help=" ".join(PARTS))
    options = parser.parse_args()
    sizes = SMOKE if options.smoke else Sizes()
    if options.full:
        sizes = Sizes(through=1_000_000)
    with scratch() as directory:
        bench = Bench(directory, sizes, "file-smoke" if options.smoke else "file", alone=options.alone)
        for part in options.only or PARTS:
            getattr(bench, part)()
        bench.report.show()
    console.print(f"written to {bench.report.save().name} in .reports")


PARTS = ("adds", "drain", "latency", "through")

if __name__ == "__main__":
    main()
