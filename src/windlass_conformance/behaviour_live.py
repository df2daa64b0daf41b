"""A busy worker as in production: the machine's clock, and nothing between it and its store."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from windlass import Job, JobState, Worker
from windlass_conformance.stage import QUEUE, Gate, eventually, live

if TYPE_CHECKING:
    from windlass_conformance.harness import Harness

SLOTS = 32


@pytest.mark.feature("J1", "J5")
async def test_a_busy_worker_runs_every_job_once_and_no_more_at_a_time_than_it_has_slots(
    harness: Harness,
) -> None:
    ran: Counter[str] = Counter()
    running: set[str] = set()
    most = 0

    async def handler(job: Job[Any]) -> str:
        nonlocal most
        ran[job.id] += 1
        running.add(job.id)
        most = max(most, len(running))
        await asyncio.sleep(0)
        running.discard(job.id)
        return job.id

    async with live(harness) as app:
        queue = app.queue(QUEUE)
        jobs = await queue.add_bulk({"name": "n"} for _ in range(400))
        async with Worker(QUEUE, handler, url_or_app=app, concurrency=SLOTS, duties=False):
            await eventually(lambda: len(ran) == len(jobs), timeout=20)
            assert [await job.result(timeout=10) for job in jobs[-3:]] == [job.id for job in jobs[-3:]]
        counts = await queue.get_job_counts()
    assert set(ran.values()) == {1}
    assert most <= SLOTS
    assert {state: count for state, count in counts.items() if count} == {JobState.COMPLETED: 400}


@pytest.mark.feature("J1", "H1")
async def test_a_busy_worker_fills_all_its_slots_again_and_again(harness: Harness) -> None:
    """A claim whose answer is lost would leave its slots empty forever."""
    running, full = 0, asyncio.Condition()

    async def handler(job: Job[Any]) -> int:
        nonlocal running
        async with full:
            running += 1
            full.notify_all()
            mine = (running - 1) // SLOTS + 1
            await full.wait_for(lambda: running >= mine * SLOTS)
        return mine

    async with live(harness) as app:
        queue = app.queue(QUEUE)
        jobs = await queue.add_bulk({"name": "n"} for _ in range(4 * SLOTS))
        async with Worker(QUEUE, handler, url_or_app=app, concurrency=SLOTS, duties=False):
            rounds = Counter([await job.result(timeout=20) for job in jobs])
    assert rounds == dict.fromkeys((1, 2, 3, 4), SLOTS)


@pytest.mark.feature("G1", "G5")
async def test_a_busy_worker_with_one_slot_runs_jobs_in_order_of_arrival(harness: Harness) -> None:
    ran: list[str] = []
    states: set[JobState] = set()

    async def handler(job: Job[Any]) -> None:
        states.add(await job.get_state())
        ran.append(job.id)

    async with live(harness) as app:
        queue = app.queue(QUEUE)
        jobs = await queue.add_bulk({"name": "n"} for _ in range(60))
        async with Worker(QUEUE, handler, url_or_app=app, concurrency=1, duties=False):
            await eventually(lambda: len(ran) == len(jobs), timeout=20)
    assert ran == [job.id for job in jobs]
    assert states == {JobState.ACTIVE}  # what runs is known to run


@pytest.mark.feature("J1")
async def test_jobs_that_come_one_by_one_start_while_slots_are_free_though_none_ends(
    harness: Harness,
) -> None:
    """No job ends, and only hints can wake the worker: it polls every ten minutes."""
    gate = Gate()

    async def handler(job: Job[Any]) -> None:
        await gate.pass_through()

    async with live(harness) as app:
        queue = app.queue(QUEUE)
        async with Worker(QUEUE, handler, url_or_app=app, concurrency=SLOTS, duties=False, poll=600):
            for count in range(1, SLOTS + 1):
                job = await queue.add("n")
                await gate.reached_times(count)
            gate.open()
            await job.result(timeout=20)


async def test_jobs_that_come_one_by_one_to_an_idle_worker_run_once_each(harness: Harness) -> None:
    ran: Counter[str] = Counter()

    async def handler(job: Job[Any]) -> str:
        ran[job.id] += 1
        return job.id

    async with live(harness) as app:
        queue = app.queue(QUEUE)
        async with Worker(QUEUE, handler, url_or_app=app, concurrency=2, duties=False) as worker:
            await worker.wait_until_ready()
            for _ in range(10):
                job = await queue.add("n")
                assert await job.result(timeout=10) == job.id
        counts = await queue.get_job_counts()
    assert set(ran.values()) == {1}
    assert counts[JobState.COMPLETED] == 10
