"""Workers as users run them: pool, routing, time, shutdown."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections import Counter
from typing import Any

import pytest

from tests.unit.app.support import (
    DrivenClock,
    Tally,
    event_names,
    eventually,
    history_of,
    states_of,
    turns,
    watched,
    work_off,
    working,
)
from windlass import Job, JobState, Queue, QueueSpec, StorageError, Windlass, Worker, current_job
from windlass.backend import requests as rq
from windlass.handlers.registry import from_callback
from windlass.worker.attempt import Attempt


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


# --- leases ------------------------------------------------------------------------------------------------


@pytest.mark.feature("J3", "J18")
async def test_a_long_job_keeps_its_lease(timed_app: Windlass, clock: DrivenClock) -> None:
    queue = timed_app.queue("default")

    async def handler(job: Job[Any]) -> str:
        await clock.wait(asyncio.Event(), 300_000)
        return "after five minutes"

    job = await queue.add("work")
    async with working(timed_app, "default", handler, lease=30, recover_every=5):
        await clock.advance(301)
        assert await job.get_state() is JobState.COMPLETED
    assert (job.deliveries, job.stalled_count) == (1, 0)


@pytest.mark.feature("J3", "J7", "J8", "J24", "K4")
async def test_a_silent_workers_job_is_taken_back_and_its_late_answer_refused(
    timed_app: Windlass, clock: DrivenClock
) -> None:
    queue = timed_app.queue("default")
    heard: list[str] = []
    job = await queue.add("work")
    claim = rq.Claim(
        worker="silent", queues=[rq.ClaimQueue("default", 1, 1)], limit=1, claim_id="c1", lease_ms=30_000
    )
    (record,) = (await timed_app.store.execute(claim)).jobs
    async with working(timed_app, "default", _ok, recover_every=5) as worker:
        worker.on("stalled", heard.append)
        await clock.advance(29)
        assert (await job.refresh()).worker_id == "silent"
        await clock.advance(10)
        await job.refresh()
    assert (job.state, job.deliveries, job.stalled_count) == (JobState.COMPLETED, 2, 1)
    assert heard == [job.id]
    from windlass.core.outcome import Outcome, Settlement

    late = Settlement(
        queue="default", id=job.id, token=record.token or "", outcome=Outcome.COMPLETE, result=b'"late"'
    )
    assert (await timed_app.store.execute(rq.Settle(items=[late]))).items == ["lost"]
    assert await job.result() == "ok"
    assert "stalled" in await event_names(queue, job.id)


@pytest.mark.feature("C18", "J3")
async def test_too_many_stalls_fail_the_job_apart_from_its_attempts(
    timed_app: Windlass, clock: DrivenClock
) -> None:
    queue = timed_app.queue("default")
    job = await queue.add("work", max_stalls=1, max_attempts=10)
    for number in range(2):
        claim = rq.Claim(
            worker="w",
            queues=[rq.ClaimQueue("default", 1, 1)],
            limit=1,
            claim_id=f"c{number}",
            lease_ms=1_000,
        )
        await timed_app.store.execute(claim)
        await clock.advance(1.1)
        await timed_app.store.execute(rq.Recover())
    await job.refresh()
    assert (job.state, job.reason, job.attempts) == (JobState.FAILED, "stalled", 0)
    assert job.errors[-1].error_class == "JobStalled"


async def test_a_handler_whose_lease_is_lost_is_stopped_and_changes_nothing(
    timed_app: Windlass, clock: DrivenClock
) -> None:
    queue = timed_app.queue("default")
    stopped: list[Any] = []
    lost: list[str] = []

    async def handler(job: Job[Any]) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(job.abort_signal.reason if job.abort_signal else None)

    job = await queue.add("work")
    async with working(timed_app, "default", handler, lease=30, duties=False) as worker:
        worker.on("lease_lost", lambda job: lost.append(job.id))
        await clock.settle()
        backend = timed_app.store.backend

        def away(request: Any) -> None:
            raise StorageError("away")

        backend.before = away  # type: ignore[attr-defined]
        await clock.advance(60)
        assert stopped == ["lost"], "by its own clock, without asking the store"
        assert lost == [job.id]
        backend.before = None  # type: ignore[attr-defined]
        await clock.settle()
        assert await job.get_state() in (JobState.ACTIVE, JobState.WAITING)


async def test_an_attempt_that_ends_while_others_are_settled_is_settled_once(
    app: Windlass, queue: Queue
) -> None:
    """The list of ended attempts that is on its way to the store must not change under way."""
    backend = watched(app)
    second = asyncio.Event()
    inner = backend.execute
    held: list[int] = []

    async def execute(request: Any) -> Any:
        if isinstance(request, rq.Settle) and not held:
            held.append(len(request.items))
            answer = inner(request)
            second.set()
            await eventually(other_ended)
            return await answer
        return await inner(request)

    async def other_ended() -> bool:
        """The other attempt ends while this settle is under way."""
        return not worker.busy

    backend.execute = execute  # type: ignore[method-assign]
    runs: Counter[str] = Counter()

    async def handler(job: Job[Any]) -> None:
        runs[job.name] += 1
        if job.name == "second":
            await second.wait()

    await queue.add_bulk([{"name": "first"}, {"name": "second"}])
    worker = Worker("default", handler, url_or_app=app)
    await worker.drain()
    assert runs == {"first": 1, "second": 1}
    assert [row.outcome for row in await history_of(queue)] == ["completed", "completed"]


@pytest.mark.feature("Z14")
@pytest.mark.parametrize("kind", ["Claim", "Settle"])
async def test_a_lost_reply_neither_loses_doubles_nor_stalls_a_job(
    app: Windlass, queue: Queue, kind: str
) -> None:
    backend = watched(app)
    lost: list[str] = []

    def lose(request: rq.Request[Any]) -> None:
        if type(request).__name__ == kind and not lost:
            lost.append(kind)
            raise StorageError("the reply was lost")

    backend.after = lose
    runs: list[str] = []

    async def handler(job: Job[Any]) -> None:
        runs.append(job.id)

    jobs = await queue.add_bulk([{"name": "n"} for _ in range(5)])
    await work_off(app, "default", handler, concurrency=2)
    assert lost == [kind]
    assert sorted(runs) == sorted(job.id for job in jobs)
    assert await states_of(queue) == {JobState.COMPLETED: 5}
    for job in jobs:
        await job.refresh()
        assert (job.stalled_count, job.attempts) == (0, 0)


# --- shutdown ---------------------------------------------------------------------------------------


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
    reasons: list[Any] = []

    async def handler(job: Job[Any]) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            reasons.append(job.abort_signal.reason if job.abort_signal else None)

    job = await queue.add("work", max_attempts=1)
    behind = await queue.add("behind")
    worker = Worker("default", handler, url_or_app=timed_app, concurrency=1)
    await worker.start()
    await clock.settle()
    closing = asyncio.create_task(worker.close())
    await clock.advance(19)
    assert reasons == []
    await clock.advance(2)
    await clock.settle()
    assert closing.done()
    assert reasons == ["shutdown"]
    await job.refresh()
    assert (job.state, job.attempts, job.deliveries) == (JobState.WAITING, 0, 1)
    claim = rq.Claim(worker="w", queues=[rq.ClaimQueue("default", 2, 2)], limit=2, claim_id="next")
    assert [record.id for record in (await timed_app.store.execute(claim)).jobs] == [job.id, behind.id]
    assert await queue.get_workers() == []


@pytest.mark.feature("V2", "V5")
async def test_a_forced_close_gives_running_jobs_back_at_once(app: Windlass, queue: Queue) -> None:
    started = asyncio.Event()

    async def handler(job: Job[Any]) -> None:
        started.set()
        await asyncio.Event().wait()

    job = await queue.add("work")
    async with working(app, "default", handler):
        await started.wait()
    await job.refresh()
    assert (job.state, job.attempts, job.stalled_count) == (JobState.WAITING, 0, 0)


@pytest.mark.feature("V2")
async def test_closing_again_with_force_hurries_a_close(app: Windlass, queue: Queue) -> None:
    started = asyncio.Event()

    async def handler(job: Job[Any]) -> None:
        started.set()
        await asyncio.Event().wait()

    job = await queue.add("work")
    worker = Worker("default", handler, url_or_app=app)
    await worker.start()
    await started.wait()
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
