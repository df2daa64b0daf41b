"""How a worker closes, and what it leaves behind."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.unit.app.support import (
    DrivenClock,
    WaitingHandler,
    eventually,
    run_ends,
    turns,
    watched,
    work_off,
    working,
)
from windlass import ClosedError, ConfigError, Job, JobState, Queue, Windlass, Worker, current_job
from windlass.backend import requests as rq
from windlass.core.clock import SYSTEM_CLOCK
from windlass.errors import WrongLoopError
from windlass.worker.attempt import Attempt
from windlass.worker.lifecycle import Parts, Stop


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
    started, go = threading.Event(), threading.Event()

    def handler(job: Job[Any]) -> str:
        started.set()
        go.wait(20)
        return "too late"

    job = await queue.add("work")
    worker = Worker("default", handler, url_or_app=app)
    await worker.start()
    await asyncio.to_thread(started.wait)
    await worker.close(force=True)
    assert worker.abandoned == 1
    assert await job.get_state() is JobState.WAITING
    go.set()
    await run_ends(job)
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


@pytest.mark.feature("V2")
async def test_a_handler_that_awaited_its_signal_on_a_loop_of_its_own_does_not_disturb_the_close(
    app: Windlass, queue: Queue
) -> None:
    loop, started, go = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def handler(job: Job[Any]) -> None:
        async def inner() -> None:
            assert job.abort_signal is not None
            signal = asyncio.ensure_future(job.abort_signal)
            await turns(2)
            signal.cancel()

        asyncio.run(inner())
        loop.call_soon_threadsafe(started.set)
        go.wait(20)

    job = await queue.add("work")
    worker = Worker("default", handler, url_or_app=app, grace=0, cancel_wait=0)
    await worker.start()
    await started.wait()
    try:
        await worker.close()
    finally:
        go.set()
    await run_ends(job)
    assert await job.get_state() is JobState.WAITING


@pytest.mark.feature("V2")
async def test_signals_have_their_usual_effect_again_after_a_run_that_handled_them(app: Windlass) -> None:
    await Worker("default", _ok, url_or_app=app, burst=True).run(handle_signals=True)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


async def test_signals_are_refused_outside_of_the_main_thread_before_anything_starts(url: str) -> None:
    async def run() -> str:
        worker = Worker("default", _ok, url_or_app=url)
        with pytest.raises(ConfigError, match="leave handle_signals out here, and call close"):
            await worker.run(handle_signals=True)
        return repr(worker)

    assert (await asyncio.to_thread(asyncio.run, run())).endswith(": new>")


@pytest.mark.feature("V2")
async def test_a_start_that_ignores_the_close_does_not_start_jobs_later(
    timed_app: Windlass, clock: DrivenClock
) -> None:
    entered, go, left = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @timed_app.lifespan
    async def stubborn(app: Windlass) -> AsyncIterator[None]:
        entered.set()
        while not go.is_set():
            with suppress(asyncio.CancelledError):
                await go.wait()
        yield
        left.set()

    worker = Worker("default", _ok, url_or_app=timed_app)
    starting = asyncio.create_task(worker.start())
    await entered.wait()
    await clock.until(worker.close())
    assert worker.left_behind == ["the start of the worker"]
    go.set()
    with pytest.raises(ClosedError):
        await starting
    assert left.is_set()
    assert not worker.is_running


@pytest.mark.feature("V2")
async def test_a_caller_that_gives_up_on_the_start_does_not_cancel_it_for_the_others(
    app: Windlass, queue: Queue
) -> None:
    entered, go = asyncio.Event(), asyncio.Event()

    @app.lifespan
    async def slow(app: Windlass) -> AsyncIterator[None]:
        entered.set()
        await go.wait()
        yield

    job = await queue.add("work")
    worker = Worker("default", _ok, url_or_app=app)
    running = asyncio.create_task(worker.run())
    await entered.wait()
    impatient = asyncio.create_task(worker.wait_until_ready())
    await turns()
    impatient.cancel()
    with pytest.raises(asyncio.CancelledError):
        await impatient
    go.set()
    assert await job.result() == "ok"
    await worker.close()
    await running


@pytest.mark.feature("V2")
@pytest.mark.parametrize("event", ["drained", "closed"])
async def test_a_callback_that_closes_the_worker_does_not_keep_it_open(
    timed_app: Windlass, clock: DrivenClock, event: str
) -> None:
    ended = asyncio.Event()
    worker = Worker("default", _ok, url_or_app=timed_app)

    async def stop() -> None:
        await asyncio.create_task(worker.close())
        ended.set()

    worker.on(event, stop)
    await timed_app.queue("default").add("work")
    await worker.start()
    await clock.settle()
    since_ms = clock.monotonic_ms()
    await worker.close()
    await ended.wait()
    assert clock.monotonic_ms() == since_ms


@pytest.mark.feature("V2")
async def test_a_worker_that_closes_runs_its_open_batches_at_once(
    timed_app: Windlass, clock: DrivenClock
) -> None:
    calls: list[list[int]] = []

    @timed_app.task(batch={"size": 10, "timeout": 60})
    async def collect(items: list[int]) -> None:
        calls.append(items)

    jobs = [await collect.enqueue(number) for number in range(3)]
    worker = Worker("default", url_or_app=timed_app)
    await worker.start()
    await clock.settle()
    assert calls == []
    since_ms = clock.monotonic_ms()
    await clock.until(worker.close())
    assert calls == [[0, 1, 2]]
    assert [await job.get_state() for job in jobs] == [JobState.COMPLETED] * 3
    assert clock.monotonic_ms() == since_ms


async def test_a_part_is_closed_though_other_code_cancels_the_task_that_closes_it() -> None:
    """A handler that does not end may cancel every task of its loop while its worker closes."""
    stop, closed = Stop(SYSTEM_CLOCK, grace_ms=0, cancel_wait_ms=0), list[str]()
    stop.begin()
    parts = Parts()
    parts.opened("a part", lambda: closed.append("a part"))
    before = asyncio.all_tasks()
    closing = asyncio.ensure_future(parts.close(stop))

    def cancel_the_others() -> None:
        for task in asyncio.all_tasks() - before - {closing}:
            task.cancel()

    asyncio.get_running_loop().call_soon(cancel_the_others)  # after the first step of ``closing``
    assert await closing == []
    assert closed == ["a part"]


# --- from another event loop -----------------------------------------------------------------------------


@contextmanager
def another_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop that runs in another thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _on(loop: asyncio.AbstractEventLoop, made: Coroutine[Any, Any, Any]) -> Any:
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(made, loop))


@pytest.mark.feature("V2")
async def test_a_worker_that_is_closed_from_another_loop_closes_on_its_own(
    app: Windlass, queue: Queue
) -> None:
    started, go, loops = threading.Event(), threading.Event(), list[asyncio.AbstractEventLoop]()

    async def handler(job: Job[Any]) -> str:
        started.set()
        await asyncio.to_thread(go.wait)
        return "finished in time"

    worker = Worker("default", handler, url_or_app=app)
    worker.on("closing", lambda: go.set())
    worker.on("closed", lambda: loops.append(asyncio.get_running_loop()))
    with another_loop() as own:
        await _on(own, worker.start())
        job = await queue.add("work")
        await asyncio.to_thread(started.wait)
        await worker.close()
        assert loops == [own]
    assert (worker.left_behind, await job.result()) == ([], "finished in time")
    await worker.close()  # idempotent, also once its loop is closed


@pytest.mark.feature("V2", "V5")
async def test_cancelling_a_close_from_another_loop_forces_it(app: Windlass, queue: Queue) -> None:
    started, closing, closed = threading.Event(), threading.Event(), threading.Event()

    async def handler(job: Job[Any]) -> None:
        started.set()
        await asyncio.Event().wait()

    worker = Worker("default", handler, url_or_app=app, grace=600)
    worker.on("closing", lambda: closing.set())
    worker.on("closed", lambda: closed.set())
    with another_loop() as own:
        await _on(own, worker.start())
        job = await queue.add("work")
        await asyncio.to_thread(started.wait)
        call = asyncio.create_task(worker.close())
        await asyncio.to_thread(closing.wait)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await asyncio.to_thread(closed.wait, 60)
        await worker.close()
    assert await job.get_state() is JobState.WAITING


@pytest.mark.feature("V2")
async def test_a_close_from_another_loop_waits_for_callbacks_about_the_end(app: Windlass) -> None:
    """The worker counts as closed by then, but its close has not ended."""
    closed, go, order = threading.Event(), threading.Event(), list[str]()

    def callback() -> None:
        closed.set()
        go.wait(20)
        order.append("callback")

    worker = Worker("default", _ok, url_or_app=app)
    worker.on("closed", callback)
    with another_loop() as own:
        await _on(own, worker.start())
        first = asyncio.run_coroutine_threadsafe(worker.close(), own)
        await asyncio.to_thread(closed.wait)
        second = asyncio.create_task(worker.close())
        await turns()
        order.append("second call")
        go.set()
        async with asyncio.timeout(20):  # nothing else wakes this loop
            await second
    assert order == ["second call", "callback"]
    first.result(0)


@pytest.mark.feature("V2")
def test_a_worker_whose_loop_is_gone_says_so(tmp_path: Path) -> None:
    worker = Worker("default", _ok, url_or_app=f"sqlite:///{tmp_path / 'jobs.db'}")
    loop = asyncio.new_event_loop()
    loop.run_until_complete(worker.start())
    with pytest.raises(WrongLoopError, match=r"does not run now; close it there: loop\.run_until_complete"):
        asyncio.run(worker.close())
    loop.run_until_complete(worker.close())
    loop.close()
    assert worker.left_behind == []

    another = Worker("default", _ok, url_or_app=f"sqlite:///{tmp_path / 'jobs.db'}")
    asyncio.run(another.start())
    with pytest.raises(WrongLoopError, match=r"the worker is closed; .* before its loop ends"):
        asyncio.run(another.close())
    asyncio.run(another.close())  # it is closed now: its own client of the store, too
    with pytest.raises(ClosedError):
        asyncio.run(another.start())


@pytest.mark.feature("V2")
async def test_a_close_from_another_loop_does_not_wait_for_ever_for_a_blocked_loop(app: Windlass) -> None:
    go = threading.Event()
    worker = Worker("default", _ok, url_or_app=app, grace=0, cancel_wait=0)
    with another_loop() as own:
        await _on(own, worker.start())
        own.call_soon_threadsafe(go.wait, 60)
        with pytest.raises(WrongLoopError, match="did not close it within 3 s"):
            await worker.close()
        go.set()
        await worker.close()
    assert worker.left_behind == []
