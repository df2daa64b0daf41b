"""One piece of work on the memory or file store, in a process of its own: ``_engine_cases.py CASE COUNT``.

Prints the seconds of the processor that it took. It imports nothing of the benchmarks, so that ``PYTHONPATH``
alone says which tree is measured, an older one too.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable

from windlass import Windlass, Worker
from windlass.backend import requests as rq
from windlass.backends.memory.store import MemoryStore
from windlass.core.job import JobRecord, NewJob
from windlass.core.outcome import Outcome, Settlement

NOW_MS = 1_750_000_000_000
BATCH = 1_000


def _jobs(first: int, count: int) -> list[NewJob]:
    return [
        NewJob(queue="bench", id=f"job-{number}", task="noop", payload=b"x" * 100, request_id=f"r{number}")
        for number in range(first, first + count)
    ]


def _timed(step: Callable[[], object]) -> float:
    started = time.process_time()
    step()
    return time.process_time() - started


# --- the bare memory store ------------------------------------------------------------------------


def adds(count: int, size: int) -> float:
    """Add ``count`` jobs, ``size`` in a request."""
    store = MemoryStore()
    requests = [rq.Add(jobs=_jobs(first, size)) for first in range(0, count, size)]

    def run() -> None:
        for request in requests:
            store.apply(request, NOW_MS)

    return _timed(run)


def steps(count: int, size: int) -> float:
    """Settle and claim ``size`` jobs at a time, until ``count`` are done."""
    store = MemoryStore()
    store.apply(rq.Add(jobs=_jobs(0, count)), NOW_MS)

    def claim(number: int) -> rq.Claim:
        queues = [rq.ClaimQueue("bench", size, size)]
        return rq.Claim(worker="worker", queues=queues, limit=size, claim_id=f"c{number}")

    def ends(jobs: list[JobRecord]) -> list[Settlement]:
        return [
            Settlement(queue="bench", id=job.id, token=job.token or "", outcome=Outcome.COMPLETE, result=b"1")
            for job in jobs
        ]

    def run() -> None:
        held = store.apply(claim(0), NOW_MS)[0].jobs
        for number in range(1, count // size):
            claimed = store.apply(rq.Settle(items=ends(held), claim=claim(number)), NOW_MS)[0].claimed
            assert claimed is not None
            held = claimed.jobs

    return _timed(run)


# --- whole programs -------------------------------------------------------------------------------


async def _add_each(url: str, count: int) -> float:
    async with Windlass(url) as app:
        queue = app.queue("bench")
        await queue.count()
        started = time.process_time()
        for _ in range(count):
            await queue.add("noop", {"text": "x" * 80})
        return time.process_time() - started


async def _drain(url: str, count: int, slots: int) -> float:
    async with Windlass(url) as app:

        @app.task(name="noop", queue="bench")
        async def noop(text: str) -> None: ...

        queue = app.queue("bench")
        items = [{"name": "noop", "data": {"text": "x" * 80}}] * BATCH
        for _ in range(count // BATCH):
            await queue.add_bulk(items)
        worker = Worker("bench", url_or_app=app, concurrency=slots)
        started = time.process_time()
        await worker.drain()
        return time.process_time() - started


def _on_file(run: Callable[[str], float]) -> float:
    with tempfile.TemporaryDirectory() as directory:
        return run(f"file://{directory}")


CASES: dict[str, Callable[[int], float]] = {
    "memory: add": lambda count: adds(count, 1),
    "memory: add 1,000": lambda count: adds(count, BATCH),
    "memory: settle and claim 1": lambda count: steps(count, 1),
    "memory: settle and claim 50": lambda count: steps(count, 50),
    "memory: worker, 1 slot": lambda count: asyncio.run(_drain("memory://", count, 1)),
    "memory: worker, 50 slots": lambda count: asyncio.run(_drain("memory://", count, 50)),
    "file: add": lambda count: _on_file(lambda url: asyncio.run(_add_each(url, count))),
    "file: worker, 1 slot": lambda count: _on_file(lambda url: asyncio.run(_drain(url, count, 1))),
    "file: worker, 10 slots": lambda count: _on_file(lambda url: asyncio.run(_drain(url, count, 10))),
    "file: worker, 50 slots": lambda count: _on_file(lambda url: asyncio.run(_drain(url, count, 50))),
}

if __name__ == "__main__":
    print(CASES[sys.argv[1]](int(sys.argv[2])))
