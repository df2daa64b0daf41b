"""The workloads of ``scripts/bench against``, in a process with one of the two trees on its path.

It reads a line of JSON, ``{"work": NAME, ...its arguments}``, and writes a line: ``figures`` or ``error``.
Both trees run this file, so it uses only what both have: the public classes and verbs, and the requests of
the store. Each workload is written twice, with the class API and with tasks.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import windlass
from benchmarks._common import percentile, run
from benchmarks._processes import handler_worker, wait_for_worker, worker
from benchmarks._stamps import StampFile
from windlass import Job, Queue, Windlass, Worker
from windlass.backend import requests as rq
from windlass.core.ids import new_id
from windlass.core.job import NewJob
from windlass.core.outcome import Outcome, Settlement

QUEUE = "bench"
BATCH = 1_000
SLOTS = 50
TEXT = "x" * 89  # a payload of a hundred bytes, its key and quotes included
PATIENCE_S = 120

Figures = dict[str, float]
#: When something began and ended, by the monotonic clock, in ns.
Span = tuple[int, int]


class Starts:
    """The start times of jobs, and an event for when all have started."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._times: list[int] = []
        self._all = asyncio.Event()

    def note(self) -> None:
        self._times.append(time.monotonic_ns())
        if len(self._times) == self._count:
            self._all.set()

    async def span(self) -> Span:
        """The times of the first and the last start."""
        await asyncio.wait_for(self._all.wait(), PATIENCE_S)
        return self._times[0], self._times[self._count - 1]


class Classes:
    """The class API: a queue, a worker with one handler."""

    worker_process = staticmethod(lambda url, stamps: handler_worker(url, stamps, QUEUE, concurrency=10))

    def __init__(self, url: str) -> None:
        self._queue = Queue(QUEUE, url)
        self.app = self._queue.app

    async def __aenter__(self) -> Classes:
        await self._queue.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._queue.__aexit__(*exc)

    async def add(self) -> None:
        await self._queue.add("noop", {"text": TEXT})

    async def bulk(self, count: int) -> None:
        await self._queue.add_bulk([{"name": "noop", "data": {"text": TEXT}}] * count)

    async def late(self) -> None:
        await self._queue.add("late", {"asked_ns": time.monotonic_ns()})

    async def call(self, number: int) -> Any:
        return await self._queue.add_and_wait("echo", {"number": number})

    @staticmethod
    def worker(url: str, starts: Starts, concurrency: int) -> Worker:
        async def handle(job: Job[Any]) -> None:
            starts.note()

        return Worker(QUEUE, handle, url_or_app=url, concurrency=concurrency)


class Tasks:
    """An app and its tasks."""

    worker_process = staticmethod(lambda url, stamps: worker(url, stamps, [QUEUE], concurrency=10))

    def __init__(self, url: str, starts: Starts | None = None) -> None:
        self.app = Windlass(url)

        @self.app.task(name="noop", queue=QUEUE)
        async def noop(text: str) -> None:
            if starts is not None:
                starts.note()

        @self.app.task(name="late", queue=QUEUE)
        async def late(asked_ns: int) -> None: ...

        @self.app.task(name="echo", queue=QUEUE)
        async def echo(number: int) -> int:
            return number

        self._noop, self._late, self._echo = noop, late, echo

    async def __aenter__(self) -> Tasks:
        await self.app.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.app.__aexit__(*exc)

    async def add(self) -> None:
        await self._noop.enqueue(TEXT)

    async def bulk(self, count: int) -> None:
        await self._noop.map([TEXT] * count)

    async def late(self) -> None:
        await self._late.enqueue(time.monotonic_ns())

    async def call(self, number: int) -> Any:
        return await self._echo.call(number)

    @staticmethod
    def worker(url: str, starts: Starts, concurrency: int) -> Worker:
        return Worker(QUEUE, url_or_app=Tasks(url, starts).app, concurrency=concurrency)


STYLES: dict[str, type[Classes] | type[Tasks]] = {"class": Classes, "task": Tasks}


# --- the workloads --------------------------------------------------------------------------------


def per_second(count: int, span: Span) -> float:
    return count / ((span[1] - span[0]) / 1e9)


async def add(url: str, style: str, count: int) -> Figures:
    """W1: jobs added one by one, each awaited."""
    return {"rate": per_second(count, await _add_in_turn(url, style, count))}


async def _add_in_turn(url: str, style: str, count: int) -> Span:
    async with STYLES[style](url) as client:
        await client.add()  # connect first
        started = time.monotonic_ns()
        for _ in range(count):
            await client.add()
        return started, time.monotonic_ns()


async def bulk(url: str, style: str, count: int) -> Figures:
    """W2: jobs added a thousand at a time."""
    async with STYLES[style](url) as client:
        await client.add()
        batch = min(BATCH, count)
        started = time.perf_counter()
        for _ in range(count // batch):
            await client.bulk(batch)
        return {"rate": count / (time.perf_counter() - started)}


async def drain(url: str, style: str, count: int, concurrency: int) -> Figures:
    """W3: a full queue and one worker."""
    await _fill(url, style, count)
    return {"rate": per_second(count - 1, await _drain_all(url, style, count, concurrency))}


async def _fill(url: str, style: str, count: int) -> None:
    async with STYLES[style](url) as client:
        for first in range(0, count, BATCH):
            await client.bulk(min(BATCH, count - first))


async def _drain_all(url: str, style: str, count: int, concurrency: int) -> Span:
    starts = Starts(count)
    async with STYLES[style].worker(url, starts, concurrency):
        return await starts.span()


async def floor_of_adds(folder: str, style: str, count: int) -> Figures:
    """The SQL of W1 on another thread, and nothing else."""
    prepare = partial(_fill, style=style, count=1)
    return await _floor(folder, count, prepare, partial(_add_in_turn, style=style, count=count))


async def floor_of_drain(folder: str, style: str, count: int, concurrency: int) -> Figures:
    """The SQL of W3 on another thread, and nothing else."""
    work = partial(_drain_all, style=style, count=count, concurrency=concurrency)
    return await _floor(folder, count - 1, partial(_fill, style=style, count=count), work)


async def _floor(
    folder: str, count: int, prepare: Callable[[str], Awaitable[None]], work: Callable[[str], Awaitable[Span]]
) -> Figures:
    from benchmarks._sqlite_floor import Floor  # not for an older tree

    floor = await Floor.of(Path(folder) / "floor", prepare, work)
    gc.collect()
    return {
        name: count / await floor.seconds(Path(folder) / f"{name}.db", flush=flush)
        for name, flush in (("flushed", True), ("unflushed", False))
    }


async def idle(url: str, style: str, arrivals: int, calls: int, stamps: str) -> Figures:
    """W4 and W5: an idle worker process; jobs that come now and then, then calls that wait for an answer."""
    late = StampFile(Path(stamps))
    chosen = STYLES[style]
    with chosen.worker_process(url, late):
        async with chosen(url) as client:
            await wait_for_worker(client.app)
            await client.call(0)
            for _ in range(arrivals):
                await asyncio.sleep(0.01)
                await client.late()
            await asyncio.to_thread(late.wait, arrivals, timeout=PATIENCE_S)
            started = time.perf_counter()
            for number in range(calls):
                if await client.call(number) != number:
                    raise RuntimeError("a wrong answer")
            took = time.perf_counter() - started
    waits = [nanoseconds / 1e6 for nanoseconds in late.values()]
    return {"p50": percentile(waits, 50), "p99": percentile(waits, 99), "rate": calls / took}


async def bare(url: str, count: int) -> Figures:
    """The store alone: single adds, bulk adds of a thousand, then complete and claim fifty repeatedly."""

    def new_job() -> NewJob:
        return NewJob(queue=QUEUE, id=new_id(), task="noop", payload=TEXT.encode())

    async with Windlass(url) as app:
        execute = app.store.execute
        singles = [rq.Add(jobs=[new_job()]) for _ in range(count // 4)]
        batches = [rq.Add(jobs=[new_job() for _ in range(BATCH)]) for _ in range(count // BATCH)]
        single = await _rate(len(singles), singles, execute)
        many = await _rate(len(batches) * BATCH, batches, execute)
        done, ends = 0, list[Settlement]()
        started = time.perf_counter()
        while done < count:
            await execute(rq.Settle(items=ends))
            queues = [rq.ClaimQueue(QUEUE, SLOTS, SLOTS)]
            claim = rq.Claim(worker="w", queues=queues, limit=SLOTS, claim_id=new_id())
            jobs = (await execute(claim)).jobs
            ends = [
                Settlement(queue=job.queue, id=job.id, token=job.token or "", outcome=Outcome.COMPLETE)
                for job in jobs
            ]
            done += len(jobs)
        return {"single": single, "many": many, "drain": done / (time.perf_counter() - started)}


async def _rate(count: int, requests: list[Any], execute: Callable[[Any], Awaitable[Any]]) -> float:
    started = time.perf_counter()
    for request in requests:
        await execute(request)
    return count / (time.perf_counter() - started)


async def remove(url: str) -> Figures:
    """Remove the queues of a namespace from the broker, so that they cost nothing later."""
    async with Classes(url) as client:
        await client.add()  # it removes the queues that this process has used
        await client.app.store.backend.remove_all()  # type: ignore[attr-defined]
    return {}


async def hop(count: int) -> Figures:
    """An empty call on another thread, awaited: the least cost of a write that does not block the loop."""
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1) as thread:
        await loop.run_in_executor(thread, int)
        started = time.perf_counter()
        for _ in range(count):
            await loop.run_in_executor(thread, int)
        return {"rate": count / (time.perf_counter() - started)}


_WORKS = (add, bulk, drain, idle, bare, hop, floor_of_adds, floor_of_drain, remove)
WORKS: dict[str, Callable[..., Any]] = {work.__name__: work for work in _WORKS}


def main() -> None:
    logging.getLogger("pika").setLevel(logging.ERROR)  # older trees let it warn of each refused coordinator
    print(json.dumps({"figures": {}, "tree": str(Path(windlass.__file__).parents[1])}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        gc.collect()
        try:
            answer: dict[str, Any] = {"figures": run(WORKS[order.pop("work")](**order))}
        except Exception:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
