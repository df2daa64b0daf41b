"""``windlass bench``: measures the speed of a store on this machine."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

import click

from windlass.cli.output import Column, Out
from windlass.cli.store_commands import StoreOptions, shown_url, sqlite_path, store_command
from windlass.cli.values import show_rate, show_span
from windlass.core.clock import SYSTEM_CLOCK
from windlass.core.ids import new_id

if TYPE_CHECKING:
    from pathlib import Path

    from windlass.api.app import Windlass
    from windlass.api.queue import Queue

_DATA = {"text": "x" * 80}
_TASK = "bench"
_TOGETHER = 64


@dataclass(frozen=True, kw_only=True)
class BenchOptions(StoreOptions):
    """``jobs`` is for the bulk steps; steps that add jobs one by one use fewer."""

    jobs: int = 10_000
    concurrency: int = 16


@dataclass(frozen=True, slots=True)
class TimedStep:
    """One measured step. It has latencies only if each job was timed."""

    step: str
    jobs: int
    seconds: float
    p50_ms: float | None = None
    p99_ms: float | None = None

    @property
    def per_second(self) -> float:
        return self.jobs / max(self.seconds, 1e-9)


async def run(options: BenchOptions, out: Out) -> int:
    """Measure in a separate namespace, which is removed afterwards."""
    few = max(min(options.jobs // 10, 1_000), 1)
    async with _fresh_app(options, out) as app:
        queue = app.queue("bench")
        measures = [
            await add_one_by_one(queue, few, out),
            await add_together(queue, few * 4, out),
            await add_bulk(queue, options.jobs, out),
            await drain(app, few * 5 + options.jobs, options.concurrency, out),
            await latency(app, min(few, 300), out),
        ]
        await queue.obliterate(force=True)
    _report(measures, options, out)
    return 0


@asynccontextmanager
async def _fresh_app(options: BenchOptions, out: Out) -> AsyncIterator[Windlass]:
    """An app with its own namespace; on sqlite, with its own file next to the database, on the same disk."""
    from windlass.api.app import Windlass
    from windlass.backend.urls import default_url

    url = asked = options.url or default_url()
    name = f"bench-{new_id()[-12:]}"
    path = sqlite_path(url)
    if path is not None:
        query = url.partition("?")[2]
        path = (path.parent / f".windlass-{name}.db").absolute()
        url = f"sqlite:///{path}" + (f"?{query}" if query else "")
    else:
        url += f"{'&' if '?' in url else '?'}namespace={name}"
    out.note(f"Measuring {shown_url(asked)} ...")
    try:
        async with Windlass(url) as app:
            yield app
    finally:
        if path is not None:
            _remove(path)


def _remove(path: Path) -> None:
    for file in path.parent.glob(path.name + "*"):
        if file.is_dir():  # the folder through which processes notify each other
            shutil.rmtree(file, ignore_errors=True)
        else:
            file.unlink(missing_ok=True)


async def add_one_by_one(queue: Queue, jobs: int, out: Out) -> TimedStep:
    """Await each ``add`` before the next, as a single producer does."""
    times: list[float] = []

    async def step() -> None:
        start = SYSTEM_CLOCK.monotonic_ms()
        await queue.add(_TASK, _DATA)
        times.append(SYSTEM_CLOCK.monotonic_ms() - start)

    with out.progress("Add one by one", jobs) as advance:
        seconds = await _timed(lambda: _repeat(step, jobs, advance))
    return TimedStep("add, one by one", jobs, seconds, *_percentiles(times))


async def add_together(queue: Queue, jobs: int, out: Out) -> TimedStep:
    """Many producers at once. The store may share one commit among them."""
    with out.progress(f"Add, {_TOGETHER} at once", jobs) as advance:

        async def producer(count: int) -> None:
            for _ in range(count):
                await queue.add(_TASK, _DATA)
                advance(1)

        shares = [jobs // _TOGETHER + (n < jobs % _TOGETHER) for n in range(_TOGETHER)]
        seconds = await _timed(lambda: asyncio.gather(*map(producer, shares)))
    return TimedStep(f"add, {_TOGETHER} at once", jobs, seconds)


async def add_bulk(queue: Queue, jobs: int, out: Out) -> TimedStep:
    """``add_bulk`` in chunks of 1,000."""
    seconds = 0.0
    with out.progress("Add in bulk", jobs) as advance:
        for start in range(0, jobs, 1_000):
            chunk = [{"name": _TASK, "data": _DATA}] * min(1_000, jobs - start)
            seconds += await _timed(lambda chunk=chunk: queue.add_bulk(chunk))  # type: ignore[misc]
            advance(len(chunk))
    return TimedStep("add in bulk", jobs, seconds)


async def drain(app: Windlass, jobs: int, concurrency: int, out: Out) -> TimedStep:
    """One worker runs empty jobs until the queue is empty."""
    from windlass.worker import Worker

    done = count()
    with out.progress("Drain", jobs) as advance:

        async def work(job: object) -> None:
            if next(done) % 100 == 99:  # drawing must not affect the measurement
                advance(100)

        worker = Worker("bench", work, url_or_app=app, concurrency=concurrency, burst=True)
        seconds = await _timed(worker.run)
    return TimedStep(f"drain, {concurrency} slots", jobs, seconds)


async def latency(app: Windlass, jobs: int, out: Out) -> TimedStep:
    """From ``add`` to the start of the handler, on an idle worker."""
    from windlass.worker import Worker

    started: asyncio.Queue[float] = asyncio.Queue()

    async def work(job: object) -> None:
        started.put_nowait(SYSTEM_CLOCK.monotonic_ms())

    times: list[float] = []
    queue = app.queue("bench")

    async def step() -> None:
        start = SYSTEM_CLOCK.monotonic_ms()
        await queue.add(_TASK, _DATA)
        times.append(await started.get() - start)

    worker = Worker("bench", work, url_or_app=app, concurrency=1)
    await worker.start()
    try:
        with out.progress("Add to start", jobs) as advance:
            seconds = await _timed(lambda: _repeat(step, jobs, advance))
    finally:
        await worker.close()
    return TimedStep("add to start, idle", jobs, seconds, *_percentiles(times))


async def _timed(work: Callable[[], Awaitable[Any]]) -> float:
    start = SYSTEM_CLOCK.monotonic_ms()
    await work()
    return (SYSTEM_CLOCK.monotonic_ms() - start) / 1000


async def _repeat(step: Callable[[], Awaitable[None]], times: int, advance: Callable[[float], None]) -> None:
    for _ in range(times):
        await step()
        advance(1)


def _percentiles(times: list[float]) -> tuple[float, float]:
    ordered = sorted(times)
    return ordered[len(ordered) // 2], ordered[min(int(len(ordered) * 0.99), len(ordered) - 1)]


def _report(measures: list[TimedStep], options: BenchOptions, out: Out) -> None:
    if out.as_json:
        out.document([{**_fields(m), "per_second": round(m.per_second, 1)} for m in measures])
        return
    columns = [
        Column("step"),
        Column("jobs", right=True),
        Column("time", right=True),
        Column("per second", right=True, style="bold"),
        Column("p50", right=True),
        Column("p99", right=True),
    ]
    rows = [
        [
            measure.step,
            f"{measure.jobs:,}",
            show_span(measure.seconds * 1000),
            show_rate(measure.per_second),
            _latency(measure.p50_ms),
            _latency(measure.p99_ms),
        ]
        for measure in measures
    ]
    out.table(columns, rows)
    out.note(
        "Figures depend on this machine, its disk and what else runs on it: compare only runs made here."
    )


def _fields(measure: TimedStep) -> dict[str, Any]:
    return {name: getattr(measure, name) for name in TimedStep.__slots__}


def _latency(ms: float | None) -> str:
    return "" if ms is None else f"{ms:.2f}ms" if ms < 100 else show_span(ms)


@store_command(
    "bench",
    run,
    fast=True,
    examples="""
windlass bench
windlass bench --jobs 50000 --concurrency 64
windlass bench --url sqlite:///shop.db --json       beside shop.db, on its disk
""",
)
@click.option("--jobs", "-n", type=click.IntRange(10, 1_000_000), default=10_000, show_default=True)
@click.option("--concurrency", "-c", type=click.IntRange(1, 10_000), default=16, show_default=True)
def command(**values: Any) -> BenchOptions:
    """Measure adding, draining and latency on this machine.

    Uses a separate namespace (for sqlite, a separate file next to the database) and removes it afterwards.
    Jobs have about 100 bytes and do nothing.
    """
    return BenchOptions(**values)
