"""Cancelling jobs, wherever they are."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.app.support import WaitingHandler, event_names, history_of, work_off, working
from windlass import Depends, Job, JobCancelledError, JobState, Queue, Windlass
from windlass.jobs import CancelResult, abort
from windlass.jobs.abort import AbortSignal, StopReason


@pytest.mark.feature("F1", "F2", "F5")
async def test_waiting_and_scheduled_jobs_are_cancelled_at_once(app: Windlass, queue: Queue) -> None:
    jobs = [await queue.add("work"), await queue.add("work", delay=60)]
    for job in jobs:
        assert await job.cancel("not needed") is CancelResult.CANCELLED
        assert (await job.refresh()).state is JobState.CANCELLED
        assert job.reason == "not needed"
        assert (await event_names(queue, job.id))[-1] == "cancelled"
        with pytest.raises(JobCancelledError, match="not needed") as told:
            await job.result()
        assert told.value.job_id == job.id
    ran: list[str] = []
    await work_off(app, "default", lambda job: ran.append(job.id))
    assert ran == []
    assert [(row.outcome, row.attempt) for row in await history_of(queue)] == [("cancelled", 0)] * 2


@pytest.mark.feature("F1")
async def test_cancel_answers_for_finished_and_unknown_jobs(app: Windlass, queue: Queue) -> None:
    job = await queue.add("work")
    await work_off(app, "default", lambda job: 1)
    assert await queue.cancel(job.id) is CancelResult.FINISHED
    assert await queue.cancel("nope") is CancelResult.NOT_FOUND
    assert await job.get_state() is JobState.COMPLETED


@pytest.mark.feature("F1", "F2", "F3", "F5")
async def test_a_running_async_handler_is_stopped_from_another_client(url: str, app: Windlass) -> None:
    handler = WaitingHandler()
    job = await app.queue("default").add("work")
    async with working(app, "default", handler), Windlass(url) as elsewhere:
        await handler.started.wait()
        assert await elsewhere.queue("default").revoke(job.id, "changed my mind") is CancelResult.CANCELLING
        with pytest.raises(JobCancelledError, match="changed my mind"):
            await job.result()
    assert handler.reasons == ["cancel"]
    await job.refresh()
    assert (job.state, job.attempts) == (JobState.CANCELLED, 0)
    names = await event_names(app.queue("default"), job.id)
    assert names == ["enqueued", "started", "cancelling", "cancelled"]


@pytest.mark.feature("F2", "F3")
async def test_a_running_thread_sees_the_cancel_and_ends_as_cancelled(app: Windlass, queue: Queue) -> None:
    started = threading.Event()

    def handler(job: Job[Any]) -> None:
        started.set()
        assert job.abort_signal is not None
        if job.abort_signal.wait(20):
            raise InterruptedError("stopping as asked")

    job = await queue.add("work")
    async with working(app, "default", handler):
        await asyncio.to_thread(started.wait)
        assert await job.cancel() is CancelResult.CANCELLING
        assert await job.is_revoked()
        assert await job.wait_until_finished() is JobState.CANCELLED


@pytest.mark.feature("F1")
async def test_a_thread_that_finishes_its_work_before_it_looks_has_completed(
    app: Windlass, queue: Queue
) -> None:
    started, go = threading.Event(), threading.Event()

    def handler(job: Job[Any]) -> str:
        started.set()
        go.wait(20)
        return "done anyway"

    job = await queue.add("work")
    async with working(app, "default", handler):
        await asyncio.to_thread(started.wait)
        assert await job.cancel() is CancelResult.CANCELLING
        go.set()
        assert await job.result() == "done anyway"


@pytest.mark.feature("F2")
async def test_a_failure_after_a_cancel_is_not_retried(app: Windlass, queue: Queue) -> None:
    started, go = threading.Event(), threading.Event()

    def handler(job: Job[Any]) -> None:
        started.set()
        go.wait(20)
        raise ValueError

    job = await queue.add("work", max_attempts=5, backoff=0)
    async with working(app, "default", handler):
        await asyncio.to_thread(started.wait)
        await job.cancel("enough")
        go.set()
        assert await job.wait_until_finished() is JobState.CANCELLED
    assert job.reason == "enough"
    assert job.deliveries == 1


@pytest.mark.feature("F4")
async def test_a_worker_aborts_a_job_that_runs_here(app: Windlass, queue: Queue) -> None:
    handler = WaitingHandler()
    job = await queue.add("work")
    async with working(app, "default", handler) as worker:
        assert not worker.abort_job("nope")
        await handler.started.wait()
        assert worker.abort_job(job.id)
        assert await job.wait_until_finished() is JobState.CANCELLED


@pytest.mark.feature("F1")
async def test_cancelling_twice_keeps_the_first_reason(app: Windlass, queue: Queue) -> None:
    handler = WaitingHandler()
    job = await queue.add("work")
    async with working(app, "default", handler):
        await handler.started.wait()
        answers = {await job.cancel("first"), await job.cancel("second")}
        await job.wait_until_finished()
    assert answers <= {CancelResult.CANCELLING, CancelResult.FINISHED}
    assert job.reason == "first"


@pytest.mark.feature("A2")
async def test_a_cancelled_job_can_be_retried_by_hand(app: Windlass, queue: Queue) -> None:
    job = await queue.add("work")
    await job.cancel()
    await job.retry()
    await work_off(app, "default", lambda job: "ran after all")
    assert await job.result() == "ran after all"


@pytest.mark.feature("F2", "F3")
@pytest.mark.parametrize("batch", [None, 1], ids=["single", "batch"])
@pytest.mark.parametrize("where", ["dependency", "hook", "coroutine"])
async def test_what_a_plain_function_does_on_the_loop_is_cancelled(
    app: Windlass, queue: Queue, where: str, batch: int | None
) -> None:
    started = asyncio.Event()

    async def endless() -> None:
        started.set()
        await asyncio.Event().wait()

    async def connection() -> AsyncIterator[None]:
        if where == "dependency":
            await endless()
        yield None

    def handler(job: Job[Any], db: None = Depends(connection)) -> object:
        return endless() if where == "coroutine" else None

    @app.around_execute
    async def hook(job: Job[Any], proceed: Callable[[], Awaitable[Any]]) -> Any:
        if where == "hook":
            await endless()
        return await proceed()

    job = await queue.add("work")
    async with working(app, "default", handler, batch=batch):
        await started.wait()
        assert await job.cancel() is CancelResult.CANCELLING
        assert await job.wait_until_finished() is JobState.CANCELLED


@pytest.mark.feature("F2", "F3")
@pytest.mark.parametrize("batch", [None, 1], ids=["single", "batch"])
async def test_a_coroutine_of_a_plain_function_is_cancelled_after_a_cancel_during_its_thread(
    app: Windlass, queue: Queue, batch: int | None
) -> None:
    started, go = threading.Event(), threading.Event()

    async def endless() -> None:
        await asyncio.Event().wait()

    def handler(job: Job[Any]) -> object:
        started.set()
        go.wait(20)
        return endless()

    job = await queue.add("work")
    async with working(app, "default", handler, batch=batch) as worker:
        await asyncio.to_thread(started.wait)
        assert worker.abort_job(job.id)
        go.set()
        assert await job.wait_until_finished() is JobState.CANCELLED


def test_all_threads_of_a_handler_see_the_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    signal, new_event = AbortSignal(), threading.Event
    second_began, seen = threading.Event(), list[bool]()
    threads = [threading.Thread(target=lambda: seen.append(signal.wait(20)), daemon=True) for _ in range(2)]

    def slow_event() -> threading.Event:
        monkeypatch.setattr(abort, "threading", threading)
        threads[1].start()
        second_began.wait(0.1)  # the second thread waits for the signal, or for this thread
        return new_event()

    monkeypatch.setattr(abort, "threading", SimpleNamespace(Event=slow_event))
    threads[0].start()
    threads[0].join(0.3)
    signal.abort(StopReason.CANCEL)
    for thread in threads:
        thread.join(5)
    assert seen == [True, True]


async def test_a_handler_may_wait_for_the_signal_many_times() -> None:
    signal = AbortSignal()

    async def wait() -> StopReason:
        return await signal

    for _ in range(3):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(wait(), 0)
        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0)
        assert len(signal._waiters or ()) == 1
        waiting.cancel()
        await asyncio.wait([waiting])
        assert not signal._waiters
    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    signal.abort(StopReason.CANCEL)
    assert await waiting is StopReason.CANCEL
