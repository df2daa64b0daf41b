"""Traps of the unified-pool design (b-003-*): each test is named after the trap that it keeps shut."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from tests.unit.app.support import DrivenClock, Tally, event_names, reaches, watched, work_off, working
from windlass import ConfigError, Job, JobState, Queue, QueueSpec, StorageError, Windlass, Worker
from windlass.backend import requests as rq


async def _ok(job: Job[Any]) -> str:
    return "ok"


@pytest.mark.feature("J12", "J14")
async def test_the_pool_polls_the_queues_it_was_given_and_those_added_later(app: Windlass) -> None:
    async with working(app, ["one", "two"], _ok) as worker:
        jobs = [await app.queue(name).add("work") for name in ("one", "two")]
        assert [await job.result() for job in jobs] == ["ok", "ok"]
        worker.add_queue("three")
        assert await (await app.queue("three").add("work")).result() == "ok"
        assert worker.info().queues == ("one", "two", "three")


@pytest.mark.feature("G4", "J16")
async def test_later_queues_do_not_starve_behind_the_first(app: Windlass) -> None:
    order: list[str] = []

    async def handler(job: Job[Any]) -> None:
        order.append(job.queue_name)

    names = ["a", "b", "c", "d"]
    for name in names:
        await app.queue(name).add_bulk([{"name": "n"} for _ in range(50)])
    await work_off(app, names, handler, concurrency=2)
    assert Counter(order[:100]) == dict.fromkeys(names, 25)


@pytest.mark.feature("J16")
async def test_one_wait_covers_all_queues_and_no_time_passes_before_the_start(
    timed_app: Windlass, clock: DrivenClock
) -> None:
    names = [f"q{number:02}" for number in range(50)]
    async with working(timed_app, names, _ok, duties=False):
        await clock.settle()
        before = clock.now_ms()
        for name in (names[-1], names[0], names[25]):
            job = await timed_app.queue(name).add("work")
            await reaches(job, JobState.COMPLETED)
            assert (job.started_ms, job.finished_ms) == (before, before)
    assert clock.now_ms() == before


@pytest.mark.feature("J16")
async def test_a_claim_over_many_queues_is_one_request(app: Windlass) -> None:
    """On Valkey Cluster this becomes one request per slot touched; that remains for that backend."""
    names = [f"q{number}" for number in range(10)]
    for name in names:
        await app.queue(name).add("work")
    backend = watched(app)
    await work_off(app, names, _ok, concurrency=10, duties=False)
    first = next(request for request in backend.requests if isinstance(request, rq.Claim))
    assert [item.name for item in first.queues] == names
    claims = [request for request in backend.requests if isinstance(request, rq.Claim)]
    settles = [request for request in backend.requests if isinstance(request, rq.Settle)]
    assert len(claims) + len(settles) <= 14


@pytest.mark.feature("A4", "J9", "A40")
async def test_add_is_awaited_and_works_without_registration(url: str) -> None:
    async with Windlass(url) as producer:
        job = await producer.queue("nobody-registered-this").add("some.task", {"a": 1})
        assert await job.get_state() is JobState.WAITING
        backend = watched(producer)

        def refuse(request: rq.Request[Any]) -> None:
            raise StorageError("away")

        backend.before = refuse
        with pytest.raises(StorageError):
            await producer.queue("nobody-registered-this").add("some.task")
        with pytest.raises(ConfigError):
            await producer.queue("nobody-registered-this").add("")


@pytest.mark.feature("C1", "J3")
async def test_an_error_in_a_handler_ends_the_attempt_and_the_job_goes_on(
    app: Windlass, queue: Queue
) -> None:
    async def handler(job: Job[Any]) -> str:
        if job.name == "flaky" and job.attempt < 3:
            raise ValueError(f"attempt {job.attempt}")
        if job.name == "hopeless":
            raise ValueError("never")
        return "ok"

    flaky = await queue.add("flaky", backoff=0)
    hopeless = await queue.add("hopeless", backoff=0, max_attempts=2)
    await work_off(app, "default", handler)
    assert await flaky.result() == "ok"
    assert (await hopeless.refresh()).state is JobState.FAILED
    assert (await queue.get_job_counts())[JobState.ACTIVE] == 0


@pytest.mark.feature("Z14")
async def test_a_crash_inside_the_pump_does_not_cost_the_pool_a_slot(app: Windlass, queue: Queue) -> None:
    backend = watched(app)
    crashes: list[str] = []

    def crash(request: rq.Request[Any]) -> None:
        if isinstance(request, (rq.Claim, rq.Settle)) and len(crashes) < 2:
            crashes.append(type(request).__name__)
            raise RuntimeError("a bug, not a lost connection")

    errors: list[BaseException] = []
    async with working(app, "default", _ok) as worker:
        worker.on("error", errors.append)
        backend.before = crash
        job = await queue.add("work")
        assert await job.result(timeout=20) == "ok"
        assert worker.is_running
    assert [str(error) for error in errors] == ["a bug, not a lost connection"] * 2


@pytest.mark.feature("V2", "V4")
async def test_shutdown_lets_jobs_in_flight_finish(app: Windlass, queue: Queue) -> None:
    started, go = asyncio.Event(), asyncio.Event()

    async def handler(job: Job[Any]) -> str:
        started.set()
        await go.wait()
        return "whole"

    job = await queue.add("work")
    worker = Worker("default", handler, url_or_app=app)
    await worker.start()
    await started.wait()
    closing = asyncio.create_task(worker.close())
    await asyncio.sleep(0)
    assert not closing.done()
    go.set()
    await closing
    assert await job.result() == "whole"


@pytest.mark.feature("J14")
async def test_a_handler_registered_after_the_start_is_used(app: Windlass) -> None:
    async with working(app) as worker:
        app.register("late.one", lambda job: 1)
        worker.register("late.two", lambda job: 2)

        @app.task(name="late.three")
        async def three() -> int:
            return 3

        queue = app.queue("default")
        jobs = [await queue.add(f"late.{name}") for name in ("one", "two", "three")]
        assert [await job.result() for job in jobs] == [1, 2, 3]


@pytest.mark.feature("J12")
async def test_a_slow_queue_cannot_take_every_slot(app: Windlass) -> None:
    go, slow = asyncio.Event(), Tally()

    async def handler(job: Job[Any]) -> None:
        if job.queue_name == "slow":
            with slow:
                await go.wait()

    await app.queue("slow").add_bulk([{"name": "n"} for _ in range(20)])
    queues = {"slow": QueueSpec(cap=2), "kept": QueueSpec(reserve=1), "plain": 1}
    async with working(app, queues, handler, concurrency=4):
        for name in ("kept", "plain", "kept", "plain"):
            job = await app.queue(name).add("n")
            assert await job.wait_until_finished(timeout=20) is JobState.COMPLETED
        go.set()
    assert slow.most == 2


@pytest.mark.feature("J13")
async def test_names_with_colons_never_collide(app: Windlass) -> None:
    app.register("b:c", lambda job: "queue a, task b:c", queue="a")
    app.register("c", lambda job: "queue a.b, task c", queue="a.b")
    one, two = await app.queue("a").add("b:c"), await app.queue("a.b").add("c")
    await work_off(app, ["a", "a.b"])
    assert await one.result() == "queue a, task b:c"
    assert await two.result() == "queue a.b, task c"
    with pytest.raises(ConfigError, match="queue must be"):
        app.queue("a:b")
    assert (await event_names(app.queue("a"), one.id))[-1] == "completed"
