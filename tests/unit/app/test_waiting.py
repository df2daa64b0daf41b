"""Waiting for jobs: request and response, joins, timeouts."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from tests.faults.kit import until
from tests.unit.app.support import DrivenClock, eventually, watched, work_off, working
from windlass import (
    ConfigError,
    Job,
    JobFailedError,
    JobNotFoundError,
    JobState,
    Queue,
    StorageError,
    WaitTimeoutError,
    Windlass,
)
from windlass.backend import requests as rq
from windlass.core.job import JobRecord
from windlass.jobs.results import FIRST_RECHECK_MS


async def _double(job: Job[Any]) -> int:
    return int(job.data) * 2


@pytest.mark.feature("E1", "E2", "E3")
async def test_add_and_wait_is_request_and_response(app: Windlass, queue: Queue) -> None:
    async with working(app, "default", _double):
        assert await queue.add_and_wait("double", 21) == 42
        assert [await queue.add_and_wait("double", n) for n in range(20)] == [2 * n for n in range(20)]


@pytest.mark.feature("E1")
async def test_many_callers_wait_at_the_cost_of_one_listener(app: Windlass, queue: Queue) -> None:
    backend = watched(app)
    listened: list[list[str]] = []
    inner = backend.listen

    def listen(topics: Any) -> Any:
        listened.append(list(topics))
        return inner(listened[-1])

    backend.listen = listen  # type: ignore[method-assign]
    async with working(app, "default", _double):
        answers = await asyncio.gather(*(queue.add_and_wait("double", n) for n in range(100)))
        assert await queue.add_and_wait("double", 100) == 200
    assert answers == [2 * n for n in range(100)]
    assert listened.count(["done:default"]) == 1


async def test_nobody_watches_for_long_when_nobody_waits(timed_app: Windlass, clock: DrivenClock) -> None:
    queue = timed_app.queue("default")
    with pytest.raises(JobNotFoundError):
        await Job(queue, JobRecord(queue="default", id="x", task="t", payload=b"")).result()
    (waiters,) = queue._waiters.values()
    watch = waiters._watch
    assert watch is not None
    await clock.advance(FIRST_RECHECK_MS / 1000)
    await asyncio.wait([watch.over], timeout=5)
    assert watch.over.done()


@pytest.mark.feature("E2")
async def test_the_waiter_listens_before_it_adds(app: Windlass, queue: Queue) -> None:
    backend = watched(app)
    listened: list[bool] = []
    inner = backend.listen

    def listen(topics: Any) -> Any:
        listened.append(not any(isinstance(request, rq.Add) for request in backend.requests))
        return inner(topics)

    backend.listen = listen  # type: ignore[method-assign]
    with pytest.raises(WaitTimeoutError):
        await queue.add_and_wait("double", 1, timeout=0.01)
    assert listened == [True]


@pytest.mark.feature("E2")
async def test_a_read_from_before_the_add_does_not_say_that_the_job_is_missing(
    app: Windlass, queue: Queue
) -> None:
    backend = watched(app)
    inner, read, told = backend.execute, asyncio.Event(), asyncio.Event()

    async def execute(request: rq.Request[Any]) -> Any:
        answer = await inner(request)
        if isinstance(request, rq.GetJobs):
            read.set()
            await told.wait()
        return answer

    waiters = queue._waiters_here()
    future = await waiters.subscribe("late")
    backend.execute = execute  # type: ignore[method-assign]
    check = asyncio.create_task(waiters._check(["late"]))
    await read.wait()
    job = await queue.add("double", 4, job_id="late")
    outcome = asyncio.create_task(waiters.outcome(job.ref, future, 5_000, added=job.record))
    await asyncio.sleep(0)
    told.set()
    await check
    assert not future.done()
    await work_off(app, "default", _double)
    assert (await outcome).state is JobState.COMPLETED
    waiters.unsubscribe("late", future)


@pytest.mark.feature("E4")
async def test_a_completed_job_under_the_same_id_answers_from_its_result(app: Windlass, queue: Queue) -> None:
    runs: list[int] = []

    async def handler(job: Job[Any]) -> int:
        runs.append(1)
        return len(runs)

    async with working(app, "default", handler):
        first = await queue.add_and_wait("work", job_id="sum")
        second = await queue.add_and_wait("work", job_id="sum")
    assert (first, second, len(runs)) == (1, 1, 1)


@pytest.mark.feature("E4")
async def test_a_repeated_add_that_finds_its_job_done_reads_the_result(app: Windlass, queue: Queue) -> None:
    """The reply to the add was lost, the job ran meanwhile: the caller still gets what it returned."""
    backend = watched(app)
    lost: list[int] = []

    def lose(request: rq.Request[Any]) -> None:
        if isinstance(request, rq.Add) and not lost:
            lost.append(1)
            raise StorageError("cut")

    backend.after = lose
    inner, adds = backend.execute, 0

    async def execute(request: rq.Request[Any]) -> Any:
        nonlocal adds
        if isinstance(request, rq.Add):
            adds += 1
            if adds == 2:
                await work_off(app, "default", _double)
        return await inner(request)

    backend.execute = execute  # type: ignore[method-assign]
    assert await queue.add_and_wait("double", 5, timeout=5) == 10
    assert lost == [1]


@pytest.mark.feature("E4")
async def test_a_kept_id_without_a_record_is_not_found_instead_of_none(queue: Queue) -> None:
    job = await queue.add("work", job_id="once", keep_id=3_600)
    await job.remove()
    with pytest.raises(JobNotFoundError):
        await queue.add_and_wait("work", job_id="once", timeout=5)


@pytest.mark.feature("E4")
async def test_callers_of_the_same_id_join_the_running_job(app: Windlass, queue: Queue) -> None:
    started, go = asyncio.Event(), asyncio.Event()
    runs: list[int] = []

    async def handler(job: Job[Any]) -> str:
        runs.append(1)
        started.set()
        await go.wait()
        return "shared"

    async with working(app, "default", handler):
        callers = [asyncio.create_task(queue.add_and_wait("work", job_id="x")) for _ in range(5)]
        await started.wait()
        go.set()
        assert await asyncio.gather(*callers) == ["shared"] * 5
    assert runs == [1]


@pytest.mark.feature("E4")
async def test_a_failure_raises_at_the_caller(app: Windlass, queue: Queue) -> None:
    async def handler(job: Job[Any]) -> None:
        raise ValueError("bad input")

    async with working(app, "default", handler):
        with pytest.raises(JobFailedError, match="bad input"):
            await queue.add_and_wait("work", max_attempts=1)


@pytest.mark.feature("E4", "E1")
async def test_a_timeout_ends_the_waiting_and_not_the_job(app: Windlass, queue: Queue) -> None:
    with pytest.raises(WaitTimeoutError, match=r"within 0\.05 s") as late:
        await queue.add_and_wait("work", job_id="slow", timeout=0.05)
    assert isinstance(late.value, TimeoutError)
    job = await queue.get_job("slow")
    assert job is not None
    assert job.state is JobState.WAITING
    await work_off(app, "default", lambda job: "later")
    assert await job.result() == "later"


@pytest.mark.feature("E6")
async def test_wait_until_finished_tells_the_state_and_refreshes_the_job(app: Windlass, queue: Queue) -> None:
    job = await queue.add("work", 4)
    async with working(app, "default", _double):
        assert await job.wait_until_finished() is JobState.COMPLETED
    assert job.return_value == 8
    assert await job.wait_until_finished(timeout=0) is JobState.COMPLETED


@pytest.mark.feature("E6")
async def test_waiting_for_a_job_that_is_gone_says_so(queue: Queue) -> None:
    job = await queue.add("work")
    await job.remove()
    with pytest.raises(JobNotFoundError):
        await job.result(timeout=5)


@pytest.mark.feature("E6")
async def test_a_job_that_is_removed_while_somebody_waits_is_noticed(
    timed_app: Windlass, clock: DrivenClock
) -> None:
    queue = timed_app.queue("default")
    job = await queue.add("work")
    waiter = asyncio.create_task(job.result(timeout=60))
    await clock.settle()
    await queue.remove(job.id)
    await clock.advance(6)
    with pytest.raises(JobNotFoundError):
        await waiter


@pytest.mark.feature("E6")
async def test_a_lost_hint_is_made_up_for_by_a_slow_look(timed_app: Windlass, clock: DrivenClock) -> None:
    """Nothing rests on a notice: the waiter looks again after a second, then more rarely."""
    queue = timed_app.queue("default")
    backend = timed_app.store.backend
    job = await queue.add("work", 3)
    deaf = backend.listen(["done:nothing"])
    backend.listen = lambda topics: deaf  # type: ignore[method-assign]
    waiter = asyncio.create_task(job.result(timeout=60))
    await clock.settle()
    del backend.listen
    await clock.until(work_off(timed_app, "default", _double))
    await clock.advance(5)
    assert await waiter == 6


@pytest.mark.feature("Z14")
async def test_a_waiter_outlives_a_store_that_is_away_for_a_while(
    timed_app: Windlass, clock: DrivenClock
) -> None:
    queue = timed_app.queue("default")
    job = await queue.add("work", 3)
    waiter = asyncio.create_task(job.result(timeout=600))
    await clock.settle()
    backend = timed_app.store.backend

    def away(request: rq.Request[Any]) -> None:
        raise StorageError("away")

    backend.before = away  # type: ignore[attr-defined]
    await clock.advance(20)
    backend.before = None  # type: ignore[attr-defined]
    await clock.until(work_off(timed_app, "default", _double))
    await clock.advance(6)
    assert await waiter == 6


async def test_a_handler_may_not_wait_for_itself(app: Windlass, queue: Queue) -> None:
    async def handler(job: Job[Any]) -> None:
        await job.result()

    job = await queue.add("work", max_attempts=1)
    await work_off(app, "default", handler)
    await job.refresh()
    assert job.errors[0].error_class == ConfigError.__name__


async def test_a_cancelled_waiter_leaves_nothing_behind(queue: Queue) -> None:
    job = await queue.add("work")
    waiter = asyncio.create_task(job.result())

    async def waiting() -> bool:
        return any(waiters._waiting for waiters in queue._waiters.values())

    await eventually(waiting)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    (waiters,) = queue._waiters.values()
    assert waiters._waiting == {}


@pytest.mark.feature("E1")
async def test_call_within_sets_its_own_limit(app: Windlass) -> None:
    @app.task
    async def work(timeout: int = 1) -> int:
        return timeout

    with pytest.raises(WaitTimeoutError):
        await work.options(priority=1).call_within(0.01)
    with pytest.raises(WaitTimeoutError):
        await work.call_within(timedelta(milliseconds=10), timeout=5)
    async with working(app):
        assert await work.options().call_within(None) == 1
        assert await work.call_within(None, timeout=5) == 5


@pytest.mark.feature("E1", "E8")
async def test_a_result_is_kept_as_long_as_its_caller_waits(app: Windlass) -> None:
    @app.task(name="work")
    async def work() -> None: ...

    async with working(app):
        for timeout in (5, 600, 5, None):
            await work.call_within(timeout)
        await app.queue("default").add_and_wait("work", timeout=600)
    jobs = await app.queue("default").get_jobs("completed", limit=10)
    kept = [job.record.options.result_ttl_ms for job in sorted(jobs, key=lambda job: job.record.seq)]
    assert kept == [None, 600_000, None, None, 600_000]


@pytest.mark.parametrize("timeout", [-1, "5", True])
async def test_a_bad_timeout_is_refused_before_anything_is_added(queue: Queue, timeout: Any) -> None:
    with pytest.raises(ConfigError, match="timeout"):
        await queue.add_and_wait("work", timeout=timeout)
    assert await queue.count() == 0


async def test_a_caller_gets_its_result_though_other_code_cancels_the_task_that_watches_for_it(
    app: Windlass, queue: Queue
) -> None:
    """A handler may cancel every task of its loop. Without a time limit the caller would wait for ever."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def handler(job: Job[Any]) -> str:
        begun.set()
        await go_on.wait()
        return "done"

    async with working(app, "default", handler):
        job = await queue.add("n")
        waiting = asyncio.ensure_future(job.result(None))
        await begun.wait()
        await until(
            lambda: any(job.id in one._waiting for one in queue._waiters.values()), "the caller to wait"
        )
        (watch,) = [task for task in asyncio.all_tasks() if task.get_name() == "windlass-wait-default"]
        watch.cancel()
        await asyncio.sleep(0)
        go_on.set()
        async with asyncio.timeout(20):
            assert await waiting == "done"
