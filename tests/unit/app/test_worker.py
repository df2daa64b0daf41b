"""Workers as users run them: pool, routing, pause, drain."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import Any

import pytest

from tests.unit.app.support import (
    DrivenClock,
    Tally,
    eventually,
    history_of,
    states_of,
    turns,
    watched,
    work_off,
    working,
)
from windlass import Job, JobState, Queue, QueueSpec, Windlass, Worker
from windlass.backend import requests as rq
from windlass.handlers.registry import from_callback


async def _ok(job: Job[Any]) -> str:
    return "ok"


@pytest.mark.feature("J1", "J11")
async def test_a_worker_runs_a_handler_over_a_queue_and_says_when_it_is_ready(
    app: Windlass, queue: Queue
) -> None:
    worker = Worker("default", _ok, url_or_app=app)
    before = worker.is_running
    await worker.wait_until_ready()
    await worker.start()
    assert (before, worker.is_running, worker.is_ready) == (False, True, True)
    job = await queue.add("work")
    assert await job.result() == "ok"
    await worker.close()
    await worker.close()
    assert (worker.is_running, worker.is_ready) == (False, False)
    other = Worker("default", _ok, url_or_app=app)
    assert worker.id != other.id
    await other.close()


@pytest.mark.feature("H1")
@pytest.mark.parametrize("concurrency", [1, 3])
async def test_no_more_jobs_run_at_once_than_there_are_slots(
    app: Windlass, queue: Queue, concurrency: int
) -> None:
    tally = Tally()

    async def handler(job: Job[Any]) -> None:
        with tally:
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    await queue.add_bulk([{"name": "n"} for _ in range(30)])
    await work_off(app, "default", handler, concurrency=concurrency)
    assert tally.most == concurrency
    assert await states_of(queue) == {JobState.COMPLETED: 30}


@pytest.mark.feature("J2")
async def test_a_worker_claims_only_what_it_can_start(app: Windlass, queue: Queue) -> None:
    started, go = asyncio.Event(), asyncio.Event()

    async def handler(job: Job[Any]) -> None:
        started.set()
        await go.wait()

    await queue.add_bulk([{"name": "n"} for _ in range(10)])
    async with working(app, "default", handler, concurrency=2):
        await started.wait()
        assert await states_of(queue) == {JobState.ACTIVE: 2, JobState.WAITING: 8}
        go.set()


@pytest.mark.feature("J4")
async def test_finishing_and_claiming_the_next_is_one_request(app: Windlass, queue: Queue) -> None:
    backend = watched(app)
    await queue.add_bulk([{"name": "n"} for _ in range(20)])
    await work_off(app, "default", _ok, concurrency=1)
    kinds = Counter(type(request).__name__ for request in backend.requests)
    assert kinds["Settle"] <= 21
    assert kinds["Claim"] <= 3
    settles = [request for request in backend.requests if isinstance(request, rq.Settle)]
    assert all(request.claim is not None for request in settles[:-1])


@pytest.mark.feature("J12", "J16")
async def test_one_pool_serves_all_its_queues(app: Windlass) -> None:
    ran: list[str] = []

    async def handler(job: Job[Any]) -> None:
        ran.append(job.queue_name)

    names = [f"q{number}" for number in range(50)]
    for name in names:
        await app.queue(name).add("work")
    worker = await work_off(app, names, handler, concurrency=4)
    assert sorted(ran) == sorted(names)
    assert worker.info().queues == tuple(names)


@pytest.mark.feature("G4", "J12")
async def test_weights_are_met_between_queues_under_load(app: Windlass) -> None:
    order: list[str] = []

    async def handler(job: Job[Any]) -> None:
        order.append(job.queue_name)

    for name in ("high", "mid", "low"):
        await app.queue(name).add_bulk([{"name": "n"} for _ in range(300)])
    await work_off(app, {"high": 6, "mid": 3, "low": 1}, handler, concurrency=10)
    first = Counter(order[:400])
    assert abs(first["high"] - 240) <= 12
    assert abs(first["mid"] - 120) <= 12
    assert abs(first["low"] - 40) <= 12


@pytest.mark.feature("G4")
async def test_strict_order_empties_earlier_queues_first(app: Windlass) -> None:
    order: list[str] = []

    async def handler(job: Job[Any]) -> None:
        order.append(job.queue_name)

    for name in ("second", "first"):
        await app.queue(name).add_bulk([{"name": "n"} for _ in range(20)])
    await work_off(app, ["first", "second"], handler, concurrency=1, order="strict")
    assert order == ["first"] * 20 + ["second"] * 20


async def test_a_cap_is_never_exceeded_and_reserved_slots_stay_free(app: Windlass) -> None:
    tallies = {"slow": Tally(), "urgent": Tally()}
    go, full = asyncio.Event(), asyncio.Event()

    async def handler(job: Job[Any]) -> None:
        with tallies[job.queue_name]:
            if job.queue_name == "slow":
                if tallies["slow"].now == 3:
                    full.set()
                await go.wait()

    queues = {"slow": QueueSpec(weight=100, cap=3), "urgent": QueueSpec(reserve=1)}
    await app.queue("slow").add_bulk([{"name": "n"} for _ in range(10)])
    async with working(app, queues, handler, concurrency=5):
        await full.wait()
        urgent = await app.queue("urgent").add("n")
        assert await urgent.wait_until_finished(timeout=10) is JobState.COMPLETED
        go.set()

        async def slow_is_done() -> bool:
            return not await app.queue("slow").count()

        await eventually(slow_is_done)
    assert tallies["slow"].most == 3


async def test_a_slow_queue_leaves_reserved_slots_to_others(app: Windlass) -> None:
    go = asyncio.Event()

    async def handler(job: Job[Any]) -> None:
        if job.queue_name == "slow":
            await go.wait()

    await app.queue("slow").add_bulk([{"name": "n"} for _ in range(10)])
    async with working(app, {"slow": 1, "quick": QueueSpec(reserve=1)}, handler, concurrency=3):
        for _ in range(3):
            job = await app.queue("quick").add("n")
            assert await job.wait_until_finished(timeout=10) is JobState.COMPLETED
        assert (await app.queue("slow").get_job_counts())[JobState.ACTIVE] == 2
        go.set()


@pytest.mark.feature("J14")
async def test_a_queue_can_be_added_to_a_running_worker(app: Windlass) -> None:
    async with working(app, "default", _ok) as worker:
        job = await app.queue("late").add("work")
        worker.add_queue("late", QueueSpec(2, cap=1))
        assert await job.result(timeout=10) == "ok"
        assert await (await app.queue("late").add("work")).result(timeout=10) == "ok"
        assert "late" in worker.info().queues


# --- routing ---------------------------------------------------------------------------------------------


@pytest.mark.feature("J13")
async def test_a_queue_can_have_a_handler_of_its_own_for_a_task(app: Windlass) -> None:
    app.register("send", lambda job: "everywhere")
    app.register("send", lambda job: "mail only", queue="mail")
    jobs = [await app.queue(name).add("send") for name in ("mail", "other")]
    await work_off(app, ["mail", "other"])
    assert [await job.result() for job in jobs] == ["mail only", "everywhere"]


@pytest.mark.feature("J13", "C17")
async def test_an_unknown_task_is_given_back_four_times_and_fails_with_its_reason(
    timed_app: Windlass, clock: DrivenClock
) -> None:
    queue = timed_app.queue("default")
    job = await queue.add("nobody.knows")
    async with working(timed_app):
        await clock.settle()
        await job.refresh()
        assert (job.state, job.attempts, job.deliveries) == (JobState.SCHEDULED, 0, 1)
        assert job.run_at_ms == clock.now_ms() + 5_000
        await clock.advance(5 + 30 + 120 + 1)
        assert (await job.refresh()).state is JobState.SCHEDULED
        await clock.advance(600)
        await job.refresh()
    assert (job.state, job.reason) == (JobState.FAILED, "unknown_task")
    assert (job.attempts, job.deliveries) == (0, 5)
    assert job.errors[-1].error_class == "UnknownTask"
    assert [row.outcome for row in await history_of(queue)] == ["released"] * 4 + ["failed"]


@pytest.mark.feature("J14", "J13")
async def test_a_task_registered_late_is_seen_by_a_running_worker(
    timed_app: Windlass, clock: DrivenClock
) -> None:
    job = await timed_app.queue("default").add("late")
    async with working(timed_app) as worker:
        await clock.settle()
        assert (await job.refresh()).state is JobState.SCHEDULED
        worker.register("late", lambda job: "at last")
        await clock.advance(6)
        while await job.get_state() is JobState.ACTIVE:  # a plain function: it runs in a thread
            await clock.settle()
        await clock.settle()
        assert await job.result() == "at last"
    assert job.attempts == 0


@pytest.mark.feature("J10")
async def test_callback_style_handlers(app: Windlass, queue: Queue) -> None:
    def work(job: Job[Any], done: Any) -> None:
        if job.name == "bad":
            threading.Thread(target=done, args=(ValueError("told later"),)).start()
        else:
            done(None, job.data)
            done(None, "only the first call counts")

    good = await queue.add("good", 5)
    bad = await queue.add("bad", max_attempts=1)
    await work_off(app, "default", from_callback(work))
    assert await good.result() == 5
    assert (await bad.refresh()).errors[0].message == "told later"


async def test_a_plain_function_may_return_a_coroutine(app: Windlass, queue: Queue) -> None:
    async def inner() -> str:
        return "awaited"

    job = await queue.add("work")
    await work_off(app, "default", lambda job: inner())
    assert await job.result() == "awaited"


# --- pause, limit, drain -----------------------------------------------------------------------------------


async def test_a_paused_worker_claims_nothing_until_it_resumes(app: Windlass, queue: Queue) -> None:
    told: list[str] = []
    async with working(app, "default", _ok) as worker:
        worker.on("paused", lambda: told.append("paused"))
        worker.on("resumed", lambda: told.append("resumed"))
        worker.pause()
        worker.pause()
        assert worker.is_paused
        assert worker.info().quiet
        job = await queue.add("work")
        await turns(50)
        assert await job.get_state() is JobState.WAITING
        worker.resume()
        assert await job.result(timeout=10) == "ok"
    assert told == ["paused", "resumed"]


@pytest.mark.feature("C9")
async def test_a_worker_that_is_rate_limited_claims_nothing_for_a_while(
    timed_app: Windlass, clock: DrivenClock
) -> None:
    queue = timed_app.queue("default")
    async with working(timed_app, "default", _ok) as worker:
        await clock.settle()
        worker.rate_limit(10)
        job = await queue.add("work")
        await clock.advance(9.9)
        assert await job.get_state() is JobState.WAITING
        await clock.advance(0.2)
        assert await job.get_state() is JobState.COMPLETED


@pytest.mark.feature("J19")
async def test_drain_works_until_empty_then_stops(app: Windlass, queue: Queue) -> None:
    await queue.add_bulk([{"name": "n"} for _ in range(100)])
    later = await queue.add("n", delay=3_600)
    worker = await work_off(app, "default", _ok)
    assert not worker.is_running
    assert await states_of(queue) == {JobState.COMPLETED: 100, JobState.SCHEDULED: 1}
    assert await later.get_state() is JobState.SCHEDULED


@pytest.mark.feature("J19")
async def test_burst_waits_for_retries(timed_app: Windlass, clock: DrivenClock) -> None:
    queue = timed_app.queue("default")

    async def handler(job: Job[Any]) -> None:
        if job.attempt == 1:
            raise ValueError

    job = await queue.add("work", backoff=30)
    await clock.until(Worker("default", handler, url_or_app=timed_app, burst=True).run())
    assert await job.get_state() is JobState.COMPLETED


async def test_a_job_whose_task_is_cancelled_before_it_begins_is_returned(
    app: Windlass, queue: Queue
) -> None:
    before, calls = asyncio.all_tasks(), list[str]()

    async def handler(job: Job[Any]) -> None:
        calls.append(job.id)
        if len(calls) == 1:
            for task in asyncio.all_tasks() - before:
                task.cancel()
            await asyncio.sleep(0)

    first, second = await queue.add_bulk([{"name": "n", "max_attempts": 1}] * 2)
    async with asyncio.timeout(20):
        await Worker("default", handler, url_or_app=app).drain()
    assert calls == [first.id, second.id]
    assert [await job.get_state() for job in (first, second)] == [JobState.FAILED, JobState.COMPLETED]
    assert ((await second.refresh()).attempts, second.deliveries) == (0, 2)
