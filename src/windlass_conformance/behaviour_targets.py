"""Performance targets for every store on any machine: fast reads, punctual schedules, little memory."""

from __future__ import annotations

import gc
import time
from typing import Any

import pytest

from windlass import Job, Worker
from windlass.backend import requests as rq
from windlass.worker.heartbeat import rss_kb
from windlass_conformance.harness import Harness
from windlass_conformance.stage import QUEUE, live


@pytest.mark.feature("Z9")
async def test_reading_a_hundred_entries_of_a_log_costs_less_than_5_ms(harness: Harness) -> None:
    """Processor time is measured, since the elapsed time depends on the load of the machine."""
    async with live(harness) as app:
        queue = app.queue(QUEUE)
        await queue.add_bulk([{"name": "n", "data": {"n": n}} for n in range(200)])
        costs: list[float] = []
        for _ in range(20):
            began = time.process_time()
            page = await queue.store.execute(rq.ReadEvents(queue=QUEUE, after=50, limit=100))
            costs.append(time.process_time() - began)
            assert len(page.events) == 100
        assert min(costs) < 0.005, f"{min(costs) * 1000:.1f} ms"


@pytest.mark.feature("Z9")
async def test_a_scheduled_job_starts_within_5_seconds_of_its_time(harness: Harness) -> None:
    async with live(harness) as app:
        queue, starts = app.queue(QUEUE), list[int]()

        async def handler(job: Job[Any]) -> None:
            starts.append(job.started_ms or 0)

        async with Worker(QUEUE, handler, url_or_app=app):
            jobs = [await queue.add("n", delay=0.3 * n) for n in range(1, 4)]
            due = [job.run_at_ms or 0 for job in jobs]
            for job in jobs:
                await job.result(timeout=30)
        assert all(0 <= start - at < 5_000 for start, at in zip(sorted(starts), due, strict=True))


@pytest.mark.feature("Z9")
async def test_thousands_of_jobs_take_little_memory(harness: Harness) -> None:
    async def handler(job: Job[Any]) -> None:
        return None

    async with live(harness) as app:
        queue = app.queue(QUEUE)
        gc.collect()
        before = rss_kb()
        for _ in range(2):
            await queue.add_bulk([{"name": "n", "data": {"text": "x" * 100}} for _ in range(1_000)])
        async with Worker(QUEUE, handler, url_or_app=app, concurrency=50, burst=True) as worker:
            await worker.run()
        gc.collect()
        grown = rss_kb() - before
        assert grown < 500_000, f"{grown} kB"
