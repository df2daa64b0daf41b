"""How a worker closes, and what it leaves behind."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections import Counter
from typing import Any

import pytest

from tests.unit.app.support import DrivenClock, WaitingHandler, eventually, turns, watched, work_off, working
from windlass import Job, JobState, Queue, Windlass, Worker, current_job
from windlass.backend import requests as rq
from windlass.worker.attempt import Attempt


async def _ok(job: Job[Any]) -> str:
    return "ok"


@pytest.mark.feature("V2", "V4", "J17")
async def test_close_waits_for_running_jobs_within_the_grace(app: Windlass, queue: Queue) -> None:
    started, go = asyncio.Event(), asyncio.Event()

    async def handler(job: Job[Any]) -> str:
        started.set()
        await go.wait()
        return "finished in time"

    job = await queue.add("work")
    waiting = None
    worker = Worker("default", handler, url_or_app=app, concurrency=1)
    await worker.start()
    await started.wait()
    waiting = await queue.add("work")
    closing = asyncio.create_task(worker.close())
    await turns(50)
    assert not closing.done()
    go.set()
    await closing
    assert await job.result() == "finished in time"
    assert await waiting.get_state() is JobState.WAITING, "nothing new was claimed"


@pytest.mark.feature("V2", "V3", "V4", "V5", "F3", "J8")
async def test_after_the_grace_handlers_are_cancelled_and_jobs_given_back_at_their_place(
    timed_app: Windlass, clock: DrivenClock
) -> None:
    queue = timed_app.queue("default")
    handler = WaitingHandler()
    job = await queue.add("work", max_attempts=1)
    behind = await queue.add("behind")
    worker = Worker("default", handler, url_or_app=timed_app, concurrency=1)
    await worker.start()
    await clock.settle()
    closing = asyncio.create_task(worker.close())
    await clock.advance(19)
    assert handler.reasons == []
    await clock.advance(2)
    await clock.settle()
    assert closing.done()
    assert handler.reasons == ["shutdown"]
    await job.refresh()
    assert (job.state, job.attempts, job.deliveries) == (JobState.WAITING, 0, 1)
    claim = rq.Claim(worker="w", queues=[rq.ClaimQueue("default", 2, 2)], limit=2, claim_id="next")
    assert [record.id for record in (await timed_app.store.execute(claim)).jobs] == [job.id, behind.id]
    assert await queue.get_workers() == []


@pytest.mark.feature("V2", "V5")
async def test_a_forced_close_gives_running_jobs_back_at_once(app: Windlass, queue: Queue) -> None:
    handler = WaitingHandler()
    job = await queue.add("work")
    async with working(app, "default", handler):
        await handler.started.wait()
    await job.refresh()
    assert (job.state, job.attempts, job.stalled_count) == (JobState.WAITING, 0, 0)


@pytest.mark.feature("V2")
async def test_closing_again_with_force_hurries_a_close(app: Windlass, queue: Queue) -> None:
    handler = WaitingHandler()
    job = await queue.add("work")
    worker = Worker("default", handler, url_or_app=app)
    await worker.start()
    await handler.started.wait()
    patient = asyncio.create_task(worker.close())
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await worker.close(force=True)
        await patient
    assert await job.get_state() is JobState.WAITING


@pytest.mark.feature("V5", "F3")
async def test_a_thread_that_does_not_stop_gives_its_job_back_and_its_late_end_does_not_count(
    app: Windlass, queue: Queue
) -> None:
    started, go, ended = threading.Event(), threading.Event(), threading.Event()

    def handler(job: Job[Any]) -> str:
        started.set()
        go.wait(20)
        ended.set()
        return "too late"

    job = await queue.add("work")
    worker = Worker("default", handler, url_or_app=app)
    await worker.start()
    await asyncio.to_thread(started.wait)
    await worker.close(force=True)
    assert worker.abandoned == 1
    assert await job.get_state() is JobState.WAITING
    go.set()
    await asyncio.to_thread(ended.wait)
    assert await job.get_state() is JobState.WAITING


async def test_a_worker_that_never_started_closes_quietly(app: Windlass) -> None:
    await Worker("default", _ok, url_or_app=app).close()


@pytest.mark.feature("J20", "R1", "R3")
async def test_live_workers_are_listed_and_leave_when_they_stop(app: Windlass, queue: Queue) -> None:
    import os

    async with working(app, ["default", "other"], _ok, concurrency=5, tag="blue") as worker:

        async def listed() -> bool:
            return bool(await queue.get_workers())

        await eventually(listed)
        (info,) = await queue.get_workers()
        assert (info.id, info.pid, info.tag, info.concurrency) == (worker.id, os.getpid(), "blue", 5)
        assert info.queues == ("default", "other")
        assert await app.queue("third").get_workers() == []
        assert [one.id for one in await app.workers()] == [worker.id]
    assert await app.workers() == []


async def test_a_worker_made_from_a_url_owns_its_connection(url: str) -> None:
    async with Queue("default", url) as queue:
        job = await queue.add("work")
        worker = Worker("default", _ok, url_or_app=url)
        await worker.drain()
        assert await job.result() == "ok"


@pytest.mark.feature("T1")
async def test_waiting_for_a_child_is_not_part_of_the_timeout(app: Windlass) -> None:
    """One child, four jobs: each has its whole timeout once it runs. Standing in line is not its fault."""
    from tests.unit.app.children import busy

    task = app.task(name="busy", isolation="process", timeout=1, max_attempts=1)(busy)
    jobs = [await task.enqueue() for _ in range(4)]
    await work_off(app, "default", concurrency=4, process_slots=1)
    states = [(await job.refresh()).state for job in jobs]
    assert states == [JobState.COMPLETED] * 4


async def test_an_ended_attempt_is_freed_without_the_collector(app: Windlass, queue: Queue) -> None:
    @app.task(name="work")
    async def work() -> None:
        seen.append(current_job().id)

    seen: list[str] = []
    jobs = [await work.enqueue() for _ in range(3)]
    gc.collect()
    gc.disable()
    try:
        await work_off(app, "default")
        assert seen == [job.id for job in jobs]
        mine = [thing for thing in gc.get_objects() if type(thing) is Attempt and thing.record.id in seen]
        assert not mine
    finally:
        gc.enable()


async def test_an_idle_worker_claims_once_for_each_job(app: Windlass, queue: Queue) -> None:
    async def handler(job: Job[Any]) -> None:
        return None

    async with Worker("default", handler, url_or_app=app):
        first = await queue.add("work")
        await first.wait_until_finished()
        backend = watched(app)
        for _ in range(10):
            await queue.add_and_wait("work")
        kinds = Counter(type(request) for request in backend.requests)
        assert kinds[rq.Settle] == 10
        assert kinds[rq.Claim] <= 11  # the hint of the first job may still have been on its way
