"""Jobs that an app adds by name without the task: options that it leaves open come from the worker's task."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from windlass import JobState, Queue, Windlass, current_job
from windlass.backend import requests as rq
from windlass.backend.store import Store
from windlass_conformance.harness import Harness
from windlass_conformance.stage import QUEUE, Stage


def stranger(stage: Stage, **options: Any) -> Windlass:
    """An app of the same store that has none of the tasks."""
    app = Windlass("memory://", clock=stage.clock, **options)
    app.store = Store(stage.faults, stage.clock)
    return app


@pytest.mark.feature("A38")
async def test_a_job_added_by_name_has_the_attempts_and_the_backoff_of_the_task(harness: Harness) -> None:
    async with Stage(harness) as stage:
        runs: list[int] = []

        @stage.app.task(name="mail", queue=QUEUE, max_attempts=2, backoff=60)
        async def mail() -> None:
            runs.append(current_job().max_attempts)
            raise ValueError("no")

        job = await stage.queue.add("mail")
        await stage.work()
        await stage.until_state(job, JobState.RETRYING)
        await stage.advance(59)
        assert await job.get_state() is JobState.RETRYING
        await stage.advance(2)
        assert await job.wait_until_finished() is JobState.FAILED
        assert (job.reason, runs) == ("attempts", [2, 2])
        (listed,) = await stage.queue.get_jobs()
        assert listed.max_attempts == 3  # as the guide says: what the app that added it would have used


@pytest.mark.feature("A38")
async def test_a_job_added_by_name_has_the_timeout_of_the_task(harness: Harness) -> None:
    async with Stage(harness) as stage:

        @stage.app.task(name="slow", queue=QUEUE, max_attempts=1, timeout=5)
        async def slow() -> None:
            await asyncio.Event().wait()

        job = await stage.queue.add("slow")
        await stage.work()
        await stage.until_state(job, JobState.ACTIVE)
        await stage.advance(5)
        assert await job.wait_until_finished() is JobState.FAILED
        await job.refresh()
        assert job.errors[-1].error_class == "JobTimeoutError"


@pytest.mark.feature("A38", "A13", "E5")
async def test_a_job_added_by_name_is_kept_as_the_task_says(harness: Harness) -> None:
    async with Stage(harness) as stage:

        @stage.app.task(name="short", queue=QUEUE, result_ttl=30, keep_completed={"age": 120})
        async def short() -> int:
            return 7

        @stage.app.task(name="gone", queue=QUEUE, result_ttl=0, keep_completed=False)
        async def gone() -> int:
            return 8

        queue = stage.queue
        await stage.work()
        kept = await queue.add("short")
        assert await kept.result() == 7
        assert await queue.add_and_wait("gone") == 8
        assert [job.id for job in await queue.get_jobs()] == [kept.id]
        (record,) = await stage.app.store.execute(rq.GetJobs(refs=[kept.ref]))
        assert record is not None
        assert (record.options.result_ttl_ms, record.options.keep_completed.age_ms) == (30_000, 120_000)
        assert record.result_until_ms == (record.finished_ms or 0) + 30_000


@pytest.mark.feature("A38")
async def test_what_an_add_or_its_queue_says_overrules_the_task(harness: Harness) -> None:
    async with Stage(harness) as stage:
        seen: dict[str, tuple[int, float]] = {}

        @stage.app.task(name="task", queue=QUEUE, max_attempts=5, timeout=50)
        async def task() -> None:
            job = current_job()
            options = job.record.options
            seen[job.id] = (options.max_attempts, (options.timeout_ms or 0) / 1000)

        app = stranger(stage, defaults={"max_attempts": 9})
        queue = Queue(QUEUE, app, defaults={"timeout": 20})
        said: dict[str, Any] = {"a": {}, "b": {"max_attempts": 3}, "c": {"timeout": 10}}
        for job_id, options in said.items():
            await queue.add("task", job_id=job_id, **options)
        await app.queue(QUEUE).add("task", job_id="d")
        await task.options(max_attempts=2).enqueue()
        await stage.work()
        await stage.settle()
        found = [seen[job_id] for job_id in "abcd"]
        assert found == [(5, 20), (3, 20), (5, 10), (5, 50)]
        assert sorted(seen.values())[0] == (2, 50)
        await queue.close()


@pytest.mark.feature("A38")
async def test_what_neither_job_nor_task_says_is_as_the_app_that_added_it_says(harness: Harness) -> None:
    async with Stage(harness) as stage:

        @stage.app.task(name="task", queue=QUEUE)
        async def task() -> int:
            return current_job().max_attempts

        app = stranger(stage, defaults={"max_attempts": 9})
        added = [await app.queue(QUEUE).add("task"), await stranger(stage).queue(QUEUE).add("task")]
        await stage.work()
        found = [await stage.queue.get_job(job.id) for job in added]
        results = [await job.result() for job in found if job is not None]
        assert results == [9, 3]
