"""Each job runs in a task and a context of its own, also when many that never wait run at once."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any

import pytest

from tests.unit.app.support import states_of, work_off, working
from windlass import Job, JobState, Queue, Windlass, current_job
from windlass.worker.heartbeat import dump_stacks

_mark: ContextVar[str] = ContextVar("mark", default="clean")
#: As many as run at once.
_SLOTS = 4


async def _add(queue: Queue, count: int) -> None:
    await queue.add_bulk([{"name": "n", "data": number} for number in range(count)])


async def _work(app: Windlass, queue: Queue, handler: Any, count: int = 3 * _SLOTS) -> None:
    await _add(queue, count)
    await work_off(app, "default", handler, concurrency=_SLOTS)


@pytest.mark.feature("J1")
async def test_jobs_that_never_wait_share_nothing(app: Windlass, queue: Queue) -> None:
    tasks: list[object] = []
    seen: list[tuple[Any, str]] = []

    async def handler(job: Job[Any]) -> None:
        tasks.append(asyncio.current_task())
        seen.append((current_job().data, _mark.get()))
        _mark.set("left behind")

    await _work(app, queue, handler)
    assert seen == [(number, "clean") for number in range(12)]
    assert len(set(tasks)) == len(tasks)


async def test_a_job_that_waits_after_others_did_not_keeps_its_task_and_context(
    app: Windlass, queue: Queue
) -> None:
    steps: list[tuple[int, object, str, int]] = []
    ran, go = [], asyncio.Event()

    async def handler(job: Job[Any]) -> None:
        if job.data == 5:
            _mark.set("mine")
            steps.append((job.data, asyncio.current_task(), _mark.get(), current_job().data))
            await asyncio.sleep(0)
            await go.wait()
            steps.append((job.data, asyncio.current_task(), _mark.get(), current_job().data))
        else:
            assert all(asyncio.current_task() is not task for _, task, _, _ in steps)
            ran.append(job.data)
            if job.data == 11:
                go.set()

    await _work(app, queue, handler)
    assert len(steps) == 2
    assert steps[0] == steps[1]
    assert steps[0][2:] == ("mine", 5)
    assert ran == [number for number in range(12) if number != 5]
    assert await states_of(queue) == {JobState.COMPLETED: 12}


async def test_code_that_keeps_the_task_of_a_job_or_cancels_it_meets_no_other_job(
    app: Windlass, queue: Queue
) -> None:
    kept: dict[int, asyncio.Task[Any]] = {}

    async def handler(job: Job[Any]) -> None:
        task = asyncio.current_task()
        assert task is not None
        assert task not in kept.values()
        if job.data == 5:
            kept[5] = task
        if job.data == 13:
            task.cancel()
        if job.data in (6, 14):
            if job.data == 6:
                kept[5].cancel()
            await asyncio.sleep(0)

    await _work(app, queue, handler, 16)
    assert await states_of(queue) == {JobState.COMPLETED: 16}


async def test_a_job_between_others_can_be_stopped_while_it_waits(app: Windlass, queue: Queue) -> None:
    waiting = asyncio.Event()

    async def handler(job: Job[Any]) -> str:
        if job.data == 6:
            waiting.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                _mark.set("cleaned up")
                await asyncio.sleep(0)
                assert _mark.get() == "cleaned up"
                raise
        return "done"

    await _add(queue, 8)
    async with working(app, "default", handler, concurrency=_SLOTS) as worker:
        await waiting.wait()
        (running,) = [job for job in await queue.get_jobs(JobState.ACTIVE) if job.data == 6]
        assert "asyncio.Event().wait()" in dump_stacks()
        assert worker.abort_job(running.id)
        await running.wait_until_finished(timeout=10)
    assert await running.get_state() is JobState.CANCELLED


async def test_an_error_is_its_own_jobs_alone(app: Windlass, queue: Queue) -> None:
    async def handler(job: Job[Any]) -> None:
        if job.data % 3 == 0:
            raise ValueError(job.data)

    await queue.add_bulk([{"name": "n", "data": number, "max_attempts": 1} for number in range(12)])
    await work_off(app, "default", handler, concurrency=_SLOTS)
    assert await states_of(queue) == {JobState.COMPLETED: 8, JobState.FAILED: 4}
