"""``scripts/bench speedups``: each speed-up on the work that it is for, beside its plain twin.

``WINDLASS_SPEEDUPS`` turns one off for every second run, so both meet the same machine; the medians count.
What wins less than 5 % is deleted. See ``docs/benchmarks.md``.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._common import Report, console, scratch
from benchmarks._processes import worker
from benchmarks._stamps import StampFile
from tools.services.rabbitmq import rabbitmq_binary, running
from windlass import Windlass
from windlass.speedups import VARIABLE

_BATCH = 1_000


@dataclass(frozen=True, slots=True)
class Case:
    """A speed-up, and the work on which it is measured: a full queue, drained by a worker or opened again."""

    speedup: str
    store: str
    jobs: int
    concurrency: int = 0
    #: Whether it saves the processor's time, which a busy machine tells too, or waiting.
    saves: str = "s of processor"

    @property
    def name(self) -> str:
        return f"{self.speedup}: {'drain' if self.concurrency else 'open'} on {self.store}"


CASES = (
    Case("amqp", "amqp", 20_000, 50),
    Case("flush_behind", "sqlite", 40_000, 16, saves="s"),
    Case("recast", "file", 40_000),
)


class Bench:
    """One run."""

    def __init__(self, directory: Path, broker: str, repetitions: int, part: float) -> None:
        self.report = Report("speedups", repetitions=repetitions, settings={"part": part})
        self._directory = directory
        self._broker = broker
        self._part = part
        self._numbers = itertools.count()

    def measure(self, case: Case) -> None:
        """The drain with the speed-up and without it, in turn."""
        self.report.rounds(case.name, self._step(case, "on"), self._step(case, "off"))
        self.report.compare(f"{case.name}, on", f"{case.name}, off", 1.05)

    def _step(self, case: Case, mode: str) -> Callable[[], None]:
        def step() -> None:
            with _set(case.speedup if mode == "off" else ""):
                self.report.add(f"{case.name}, {mode}", f"jobs/{case.saves}", self._run(case))

        return step

    def _run(self, case: Case) -> float:
        number, jobs = next(self._numbers), int(case.jobs * self._part)
        url = {
            "amqp": f"{self._broker}?namespace=bench{number}",
            "file": f"file://{self._directory}/{number}",
            "sqlite": f"sqlite:///{self._directory}/{number}.db",
        }[case.store]
        asyncio.run(_fill(url, jobs))
        before = _processor_s()
        if not case.concurrency:
            subprocess.run([sys.executable, "-m", "benchmarks.speedups", "--open", url], check=True)
            return jobs / (_processor_s() - before)
        stamps = StampFile(self._directory / f"{number}.stamps")
        with worker(url, stamps, ["bench"], concurrency=case.concurrency):
            stamps.wait(jobs)
        return stamps.rate(jobs) if case.saves == "s" else jobs / (_processor_s() - before)


def _processor_s() -> float:
    """Time of the processor that ended children took, what they needed to start included."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


async def _open(url: str) -> None:
    """Let the store read what is there."""
    async with Windlass(url) as app:
        await app.queue("bench").count()


async def _fill(url: str, jobs: int) -> None:
    async with Windlass(url) as app:
        batch = [{"name": "noop", "data": {"text": "x" * 100}}] * min(_BATCH, jobs)
        for _ in range(jobs // len(batch)):
            await app.queue("bench").add_bulk(batch)


@contextmanager
def _set(off: str) -> Iterator[None]:
    """What processes that are started in the block read."""
    os.environ[VARIABLE] = off
    try:
        yield
    finally:
        del os.environ[VARIABLE]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes: does it run at all?")
    parser.add_argument("--only", nargs="*", default=[], help="some speed-ups, by name")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--open", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.open:
        asyncio.run(_open(arguments.open))
        return
    binary = rabbitmq_binary()
    if binary is None:
        sys.exit("rabbitmq-server is missing: apt-get install rabbitmq-server")
    part, rounds = (0.05, 1) if arguments.smoke else (1.0, arguments.rounds)
    with scratch() as directory, running(binary) as server:
        bench = Bench(directory, server.url, rounds, part)
        for case in CASES:
            if not arguments.only or case.speedup in arguments.only:
                bench.measure(case)
        bench.report.show()
        console.print(f"written to {bench.report.save()}")


if __name__ == "__main__":
    main()
