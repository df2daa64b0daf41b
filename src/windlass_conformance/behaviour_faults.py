"""A store that loses replies or becomes unreachable: workers and producers recover by themselves."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from windlass import Job, JobState, StorageError
from windlass.backend import requests as rq
from windlass.core.outcome import Outcome
from windlass_conformance.harness import Harness
from windlass_conformance.stage import QUEUE, Stage


class Runs:
    """A handler that counts the runs of each job."""

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()

    async def __call__(self, job: Job[Any]) -> str:
        self.count[job.id] += 1
        return "done"


@pytest.mark.feature("Z14", "A1")
async def test_a_lost_reply_to_an_add_adds_once(harness: Harness) -> None:
    async with Stage(harness) as stage:
        stage.faults.lose_reply(rq.Add)
        job = await stage.queue.add("n")
        assert (job.outcome, await stage.queue.count()) == ("queued", 1)


@pytest.mark.feature("Z14", "Z15")
async def test_a_store_that_stays_away_is_an_error_for_the_producer(harness: Harness) -> None:
    async with Stage(harness) as stage:
        stage.faults.refuse(rq.Add, times=100)
        with pytest.raises(StorageError):
            await stage.queue.add("n")


@pytest.mark.feature("Z14", "J24")
async def test_a_lost_reply_to_a_claim_neither_loses_nor_doubles_nor_stalls_a_job(harness: Harness) -> None:
    async with Stage(harness) as stage:
        runs = Runs()
        jobs = await stage.queue.add_bulk([{"name": "n"} for _ in range(5)])
        stage.faults.lose_reply(rq.Claim)
        await stage.work(runs)
        await stage.advance(1)
        for job in jobs:
            assert await job.result() == "done"
        assert runs.count == {job.id: 1 for job in jobs}
        assert {(job.deliveries, job.stalled_count) for job in jobs} == {(2, 0)}


@pytest.mark.feature("Z14", "J24")
async def test_a_lost_reply_to_a_settle_completes_each_job_once(harness: Harness) -> None:
    async with Stage(harness) as stage:
        runs = Runs()
        stage.faults.lose_reply(rq.Settle, times=3)
        await stage.work(runs, concurrency=2)
        jobs = await stage.queue.add_bulk([{"name": "n"} for _ in range(10)])
        await stage.advance(5)
        for job in jobs:
            assert await job.result() == "done"
        assert runs.count == {job.id: 1 for job in jobs}
        totals = {row.outcome: row.total for row in await stage.queue.get_metrics()}
        assert totals["completed"] == 10
        assert {job.stalled_count for job in jobs} == {0}


@pytest.mark.feature("Z14", "J17")
async def test_a_worker_outlives_a_store_that_goes_away_and_comes_back(harness: Harness) -> None:
    async with Stage(harness) as stage:
        runs = Runs()
        worker = await stage.work(runs, poll=2)
        errors: list[BaseException] = []
        worker.on("error", errors.append)
        stage.faults.refuse(rq.Claim, times=5)
        job = await stage.queue.add("n")
        await stage.advance(30)
        assert await job.result() == "done"
        assert errors and all(isinstance(error, StorageError) for error in errors)


@pytest.mark.feature("Z14", "E6")
async def test_whoever_waits_outlives_a_store_that_goes_away(harness: Harness) -> None:
    async with Stage(harness) as stage:
        job = await stage.queue.add("n")
        await harness.take(QUEUE)
        await stage.settle()
        stage.faults.refuse(rq.GetJobs, times=2, skip=1)
        record = await harness.get(job.id, QUEUE)
        waiting = asyncio.create_task(job.wait_until_finished(timeout=3_600))
        await stage.settle()
        await harness.settle(record, Outcome.COMPLETE)
        await stage.advance(60)
        assert await waiting is JobState.COMPLETED
