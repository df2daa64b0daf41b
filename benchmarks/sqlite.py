"""``scripts/bench sqlite``: Windlass on SQLite beside plain ``sqlite3`` and beside huey's SqliteHuey.

Each measurement runs alone, on a fresh file, several times in turn with what it is compared to; the
medians count. Windlass runs with its default durability, ``synchronous=FULL``. See ``docs/benchmarks.md``.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import itertools
import os
import random
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._common import Report, console, percentile, scratch
from benchmarks._processes import consumer, wait_for_worker, worker
from benchmarks._sqlite_raw import RawStore
from benchmarks._sqlite_replay import Replay, drain
from benchmarks._stamps import StampFile
from windlass import Windlass

BATCH = 1_000
CONCURRENCY = 16
PAYLOAD_BYTES = 100
HUEY_MODES = (("thread", 1), ("thread", 10), ("process", 2))


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of the measurements."""

    repetitions: int = 3
    bulk: int = 50_000
    commits: int = 2_000
    concurrent: int = 20_000
    drain: int = 20_000
    huey: int = 3_000
    arrivals: int = 500
    calls: int = 500
    flat: int = 10_000
    backlogs: tuple[int, ...] = (1_000, 100_000)


SMOKE = Sizes(1, 2_000, 50, 300, 300, 50, 20, 20, 200, (100, 1_000))


class Bench:
    """One run: its directory, its sizes, its report."""

    def __init__(self, directory: Path, sizes: Sizes, name: str) -> None:
        self.sizes = sizes
        self.report = Report(name, repetitions=sizes.repetitions, settings=asdict(sizes))
        self._directory = directory
        self._numbers = itertools.count()
        overhead = len(Windlass("memory://").queue("bench").prepare("noop", {"text": ""}).payload)
        self.text = "x" * (PAYLOAD_BYTES - overhead)

    def fresh(self, suffix: str = "db") -> Path:
        """A new path."""
        return self._directory / f"{next(self._numbers)}.{suffix}"

    def fresh_url(self) -> str:
        return f"sqlite:///{self.fresh()}"

    @contextmanager
    def raw(self) -> Iterator[RawStore]:
        store = RawStore(self.fresh(), self.text)
        try:
            yield store
        finally:
            store.close()

    # --- add --------------------------------------------------------------------------------------

    def bulk(self) -> None:
        """add_bulk beside executemany, a thousand rows in each transaction."""
        self.report.rounds("bulk", self._raw_bulk, self._add_bulk)
        self.report.compare("add_bulk", "raw bulk insert", 1 / 3)

    def _raw_bulk(self) -> None:
        with self.raw() as store:
            self.report.add("raw bulk insert", "jobs/s", store.bulk(self.sizes.bulk, BATCH))

    def _add_bulk(self) -> None:
        self.report.add("add_bulk", "jobs/s", asyncio.run(self._timed_bulk()))

    async def _timed_bulk(self) -> float:
        items = [{"name": "noop", "data": {"text": self.text}} for _ in range(self.sizes.bulk)]
        async with Windlass(self.fresh_url()) as app:
            queue = app.queue("bench")
            started = time.perf_counter()
            for first in range(0, len(items), BATCH):
                await queue.add_bulk(items[first : first + BATCH])
            return len(items) / (time.perf_counter() - started)

    def adds(self) -> None:
        """Single adds, in turn and many at once, beside one commit each and beside their SQL alone."""
        count = self.sizes.commits
        floor = Replay(self.fresh("adds"), partial(self._adds, count=1), partial(self._adds, count=count))
        replayed = partial(self._replayed, floor, "the SQL of these adds alone", count)
        self.report.rounds(
            "adds", self._raw_commits, self._raw_hops, self._add_in_turn, replayed, self._add_at_once
        )
        self.report.compare("add, one by one", "raw insert + commit on a thread", 0.7)
        self.report.compare("the SQL of these adds alone", "raw insert + commit", 0.7)
        self.report.compare("add, 100 at once", "raw insert + commit", 2)

    def _raw_commits(self) -> None:
        with self.raw() as store:
            self.report.add("raw insert + commit", "jobs/s", store.one_by_one(self.sizes.commits))

    def _raw_hops(self) -> None:
        """The same from an event loop that must not block: it awaits a thread that commits."""
        rate = asyncio.run(self._timed_hops(self.sizes.commits))
        self.report.add("raw insert + commit on a thread", "jobs/s", rate)

    async def _timed_hops(self, count: int) -> float:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1) as thread:
            raw = await loop.run_in_executor(thread, RawStore, self.fresh(), self.text)
            rows = await loop.run_in_executor(thread, raw.rows, count)
            started = time.perf_counter()
            for row in rows:
                await loop.run_in_executor(thread, raw.insert, [row])
            rate = count / (time.perf_counter() - started)
            await loop.run_in_executor(thread, raw.close)
        return rate

    def _add_in_turn(self) -> None:
        self.report.add("add, one by one", "jobs/s", asyncio.run(self._timed_adds(self.sizes.commits, 1)))

    def _add_at_once(self) -> None:
        rate = asyncio.run(self._timed_adds(self.sizes.concurrent, 100))
        self.report.add("add, 100 at once", "jobs/s", rate)

    async def _timed_adds(self, count: int, tasks: int) -> float:
        async with Windlass(self.fresh_url()) as app:
            queue = app.queue("bench")
            left = iter(range(count))

            async def produce() -> None:
                for _ in left:
                    await queue.add("noop", {"text": self.text})

            started = time.perf_counter()
            await asyncio.gather(*(produce() for _ in range(tasks)))
            return count / (time.perf_counter() - started)

    async def _adds(self, app: Windlass, *, count: int) -> None:
        queue = app.queue("bench")
        for _ in range(count):
            await queue.add("noop", {"text": self.text})

    def _replayed(self, floor: Replay, name: str, count: int) -> None:
        self.report.add(name, "jobs/s", count / floor.seconds(self.fresh()))

    # --- drain ------------------------------------------------------------------------------------

    def drain(self) -> None:
        """One worker process, compared with plain sqlite3, with its own SQL alone, and with huey's modes."""
        count = self.sizes.drain
        modes = HUEY_MODES if importlib.util.find_spec("huey") else ()
        peers = [partial(self._huey_drain, kind, workers) for kind, workers in modes]
        work = partial(drain, count=count, concurrency=CONCURRENCY)
        floor = Replay(self.fresh("drain"), partial(self._add_all, count=count), work)
        replayed = partial(self._replayed, floor, "the SQL of this drain alone", count)
        self.report.rounds("drain", self._raw_drain, self._windlass_drain, replayed, *peers)
        if modes:
            best = max((f"huey {kind}-{workers} drain" for kind, workers in modes), key=self.report.value)
            self.report.compare("drain", best, 6)
            self.report.compare("the SQL of this drain alone", best, 6)
        else:
            console.print("huey is not installed and was left out; scripts/bench installs it")
        self.report.compare("drain", "raw drain", 1 / 3)

    def _raw_drain(self) -> None:
        with self.raw() as store:
            self.report.add("raw drain", "jobs/s", store.drain(self.sizes.drain, CONCURRENCY))

    def _windlass_drain(self) -> None:
        url, stamps = self.fresh_url(), StampFile(self.fresh("stamps"))
        asyncio.run(self._fill(url, self.sizes.drain))
        with worker(url, stamps, ["bench"], concurrency=CONCURRENCY):
            stamps.wait(self.sizes.drain)
        self.report.add("drain", "jobs/s", stamps.rate(self.sizes.drain))

    async def _fill(self, url: str, count: int, **options: object) -> float:
        """Add ``count`` jobs; returns the rate per second."""
        async with Windlass(url) as app:
            return await self._add_all(app, count=count, **options)

    async def _add_all(self, app: Windlass, *, count: int, **options: object) -> float:
        items = [{"name": "noop", "data": {"text": self.text}, **options} for _ in range(count)]
        started = time.perf_counter()
        await app.queue("bench").add_bulk(items)
        return count / (time.perf_counter() - started)

    def _huey_drain(self, kind: str, workers: int) -> None:
        path, stamps = self.fresh(), StampFile(self.fresh("stamps"))
        self._fill_huey(path)
        with consumer(path, stamps, kind, workers):
            stamps.wait(self.sizes.huey)
        self.report.add(f"huey {kind}-{workers} drain", "jobs/s", stamps.rate(self.sizes.huey))

    def _fill_huey(self, path: Path) -> None:
        os.environ["BENCH_HUEY"] = str(path)
        sys.modules.pop("benchmarks._huey_jobs", None)  # it opens the file when it is imported
        from benchmarks._huey_jobs import huey, noop

        for _ in range(self.sizes.huey):
            noop(self.text)
        huey.storage.close()

    # --- idle workers -----------------------------------------------------------------------------

    def latency(self) -> None:
        """From the call of ``add`` to the start of the handler in an idle worker process on 50 queues."""
        self.report.rounds("latency", self._latency)
        self.report.bound("enqueue to start, p99", 50)

    def _latency(self) -> None:
        url, stamps = self.fresh_url(), StampFile(self.fresh("stamps"))
        queues = [f"queue-{number}" for number in range(50)]
        with worker(url, stamps, queues):
            asyncio.run(self._arrivals(url, queues))
            stamps.wait(self.sizes.arrivals)
        late = [nanoseconds / 1e6 for nanoseconds in stamps.values()]
        for name, value in (("p50", 50.0), ("p99", 99.0), ("max", 100.0)):
            self.report.add(f"enqueue to start, {name}", "ms", percentile(late, value))

    async def _arrivals(self, url: str, queues: list[str]) -> None:
        rng = random.Random(50)
        async with Windlass(url) as app:
            await wait_for_worker(app)
            for _ in range(self.sizes.arrivals):
                await asyncio.sleep(rng.uniform(0.01, 0.03))
                queue = app.queue(rng.choice(queues))
                await queue.add("late", {"asked_ns": time.monotonic_ns()})

    def calls(self) -> None:
        """Requests that wait for their answer, one after the other and ten at once."""
        self.report.rounds("request and response", partial(self._calls, 1), partial(self._calls, 10))

    def _calls(self, tasks: int) -> None:
        url, stamps = self.fresh_url(), StampFile(self.fresh("stamps"))
        with worker(url, stamps, ["bench"]):
            rate = asyncio.run(self._timed_calls(url, tasks))
        self.report.add(f"request and response, {tasks} at once", "calls/s", rate)

    async def _timed_calls(self, url: str, tasks: int) -> float:
        async with Windlass(url) as app:
            await wait_for_worker(app)
            queue = app.queue("bench")
            left = iter(range(self.sizes.calls))

            async def call() -> None:
                for number in left:
                    assert await queue.add_and_wait("echo", {"number": number}) == number

            started = time.perf_counter()
            await asyncio.gather(*(call() for _ in range(tasks)))
            return self.sizes.calls / (time.perf_counter() - started)

    # --- size -------------------------------------------------------------------------------------

    def flat(self) -> None:
        """The same work in front of ever longer queues."""
        steps = [partial(self._in_front_of, backlog) for backlog in self.sizes.backlogs]
        self.report.rounds("behind a backlog", *steps)
        smallest, *larger = self.sizes.backlogs
        for backlog in larger:
            for verb in ("add_bulk", "drain"):
                self.report.compare(f"{verb} before {backlog:,}", f"{verb} before {smallest:,}", 0.7)

    def _in_front_of(self, backlog: int) -> None:
        url, stamps = self.fresh_url(), StampFile(self.fresh("stamps"))
        asyncio.run(self._fill(url, backlog))
        rate = asyncio.run(self._fill(url, self.sizes.flat, priority=1))
        self.report.add(f"add_bulk before {backlog:,}", "jobs/s", rate)
        with worker(url, stamps, ["bench"], concurrency=CONCURRENCY):
            stamps.wait(self.sizes.flat)
        self.report.add(f"drain before {backlog:,}", "jobs/s", stamps.rate(self.sizes.flat))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="scripts/bench sqlite")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, to check that everything runs")
    parser.add_argument("--full", action="store_true", help="also a million waiting jobs")
    parser.add_argument("--only", nargs="+", metavar="PART", choices=PARTS, help=" ".join(PARTS))
    options = parser.parse_args()
    sizes = SMOKE if options.smoke else Sizes()
    if options.full:
        sizes = Sizes(backlogs=(*sizes.backlogs, 1_000_000))
    with scratch() as directory:
        bench = Bench(directory, sizes, "sqlite-smoke" if options.smoke else "sqlite")
        for part in options.only or PARTS:
            getattr(bench, part)()
        bench.report.show()
    console.print(f"written to {bench.report.save().name} in .reports")


PARTS = ("bulk", "adds", "drain", "latency", "calls", "flat")

if __name__ == "__main__":
    main()
