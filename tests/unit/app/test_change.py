"""Changing jobs and queues: priority, time, data, retry, clean, drain, obliterate, pause."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.unit.app.support import DrivenClock, event_names, reaches, states_of, work_off, working
from windlass import (
    ConfigError,
    FlowProducer,
    Job,
    JobNotFoundError,
    JobState,
    LeaseLostError,
    Queue,
    Windlass,
)
from windlass.api import bulk, search
from windlass.errors import IllegalTransitionError


async def _fail(job: Job[Any]) -> None:
    raise ValueError("no")


async def _ok(job: Job[Any]) -> str:
    return "ok"


# --- one job ---------------------------------------------------------------------------------------------


@pytest.mark.feature("A23", "G1")
async def test_a_changed_priority_decides_the_next_claim(app: Windlass, queue: Queue) -> None:
    order: list[str] = []

    async def handler(job: Job[Any]) -> None:
        order.append(job.data)

    await queue.add("work", "first")
    last = await queue.add("work", "last")
    await last.change_priority(10)
    assert last.priority == 10
    await work_off(app, "default", handler, concurrency=1)
    assert order == ["last", "first"]


@pytest.mark.feature("A23")
async def test_a_delay_can_be_changed_and_a_job_promoted(timed_app: Windlass, clock: DrivenClock) -> None:
    queue = timed_app.queue("default")
    job = await queue.add("work", delay=60)
    await job.change_delay(10)
    assert (await job.refresh()).run_at_ms == clock.now_ms() + 10_000
    await job.change_delay(0)
    assert await job.get_state() is JobState.WAITING
    await job.change_delay(30)
    assert await job.get_state() is JobState.SCHEDULED
    await job.promote()
    assert await job.get_state() is JobState.WAITING
    with pytest.raises(IllegalTransitionError, match="only scheduled or retrying"):
        await job.promote()


@pytest.mark.feature("A23")
async def test_active_and_finished_jobs_refuse_to_be_changed(app: Windlass, queue: Queue) -> None:
    started, go = asyncio.Event(), asyncio.Event()

    async def handler(job: Job[Any]) -> None:
        started.set()
        await go.wait()

    job = await queue.add("work", {"n": 1})

    async def refused() -> None:
        for change in (job.change_priority(1), job.change_delay(5), job.promote(), job.update_data({"n": 2})):
            with pytest.raises(IllegalTransitionError):
                await change

    async with working(app, "default", handler):
        await started.wait()
        await refused()
        go.set()
        await job.wait_until_finished()
    await refused()
    assert (await job.refresh()).data == {"n": 1}


async def test_a_priority_out_of_range_is_refused(queue: Queue) -> None:
    job = await queue.add("work")
    with pytest.raises(ConfigError, match="priority"):
        await job.change_priority(2**20)
    with pytest.raises(ConfigError, match="delay"):
        await job.change_delay(-1)
    assert (await job.refresh()).priority == 0


@pytest.mark.feature("A21")
async def test_a_waiting_jobs_data_can_be_replaced(app: Windlass, queue: Queue) -> None:
    seen: list[Any] = []

    async def handler(job: Job[Any]) -> None:
        seen.append(job.data)

    job = await queue.add("work", {"v": 1})
    await job.update_data(["now", "a", "list"])
    assert job.data == ["now", "a", "list"]
    await work_off(app, "default", handler)
    assert seen == [["now", "a", "list"]]


@pytest.mark.feature("A21")
async def test_a_running_jobs_handler_can_replace_its_data_for_the_next_attempt(
    app: Windlass, queue: Queue
) -> None:
    seen: list[Any] = []

    async def handler(job: Job[Any]) -> None:
        seen.append(job.data)
        await job.update_data({"step": len(seen)})
        assert job.data == {"step": len(seen)}
        if len(seen) < 3:
            raise ValueError("again")

    await queue.add("work", {"step": 0}, backoff=0)
    await work_off(app, "default", handler)
    assert seen == [{"step": 0}, {"step": 1}, {"step": 2}]


@pytest.mark.feature("A24")
async def test_removing_a_job_takes_its_record_and_logs(app: Windlass, queue: Queue) -> None:
    async def handler(job: Job[Any]) -> None:
        await job.log("line")

    job = await queue.add("work")
    await work_off(app, "default", handler)
    await job.remove()
    assert await queue.get_job(job.id) is None
    assert await queue.get_job_logs(job.id) == ([], 0)
    with pytest.raises(JobNotFoundError):
        await job.remove()
    assert (await event_names(queue, job.id))[-1] == "removed"


@pytest.mark.feature("A24", "J24")
async def test_an_active_job_is_removed_only_by_force_and_its_handler_loses_it(
    app: Windlass, queue: Queue
) -> None:
    started, go, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
    lost: list[str] = []

    async def handler(job: Job[Any]) -> None:
        started.set()
        await go.wait()
        try:
            await job.update_progress(1)
        except (LeaseLostError, JobNotFoundError) as exc:
            lost.append(type(exc).__name__)
            raise
        finally:
            ended.set()

    job = await queue.add("work")
    async with working(app, "default", handler):
        await started.wait()
        with pytest.raises(IllegalTransitionError, match="cancel it, or force"):
            await job.remove()
        await job.remove(force=True)
        go.set()
        await ended.wait()
    assert lost
    assert await queue.get_job(job.id) is None


@pytest.mark.feature("A25", "C14")
async def test_a_failed_job_is_retried_with_a_fresh_budget_and_its_old_errors(
    app: Windlass, queue: Queue
) -> None:
    job = await queue.add("work", max_attempts=2, backoff=0)
    await work_off(app, "default", _fail)
    assert (await job.refresh()).attempts == 2
    await job.retry()
    await job.refresh()
    assert (job.state, job.attempts, job.manual_retries) == (JobState.WAITING, 0, 1)
    assert len(job.errors) == 2
    assert (job.failed_reason, job.finished_ms) == ("no", None)
    await work_off(app, "default", _fail)
    await job.refresh()
    assert (job.state, job.attempts, len(job.errors)) == (JobState.FAILED, 2, 4)


async def test_a_completed_job_can_be_run_again_and_forgets_its_result(app: Windlass, queue: Queue) -> None:
    job = await queue.add("work")
    await work_off(app, "default", _ok)
    await job.retry()
    assert (await job.refresh()).return_value is None
    await work_off(app, "default", _ok)
    assert await job.result() == "ok"


@pytest.mark.feature("C11")
async def test_a_waiting_retry_can_be_hurried_or_killed(app: Windlass, queue: Queue) -> None:
    retried = asyncio.Event()

    async with working(app, "default", _fail) as worker:
        worker.on("retrying", lambda job, error: retried.set())
        job = await queue.add("work", backoff=3600, max_attempts=3)
        await retried.wait()
        await reaches(job, JobState.RETRYING)
        retried.clear()
        await job.retry()
        await retried.wait()
        await reaches(job, JobState.RETRYING)
        assert job.attempts == 2
        assert await job.cancel() == "cancelled"
    assert await job.get_state() is JobState.CANCELLED


async def test_a_waiting_job_cannot_be_retried(queue: Queue) -> None:
    job = await queue.add("work")
    with pytest.raises(IllegalTransitionError, match="only finished or retrying"):
        await job.retry()


# --- many jobs -------------------------------------------------------------------------------------------


@pytest.mark.feature("C10")
async def test_failed_jobs_are_retried_in_bulk_oldest_first_up_to_a_count(
    app: Windlass, queue: Queue
) -> None:
    jobs = await queue.add_bulk([{"name": "n", "max_attempts": 1} for _ in range(5)])
    await work_off(app, "default", _fail)
    assert await queue.retry_jobs(count=2) == 2
    assert [job.id for job in await queue.get_jobs("waiting", newest_first=False)] == [
        job.id for job in jobs[:2]
    ]
    assert await queue.retry_jobs() == 3
    assert await queue.retry_jobs() == 0
    assert await states_of(queue) == {JobState.WAITING: 5}


@pytest.mark.feature("C10", "I9")
async def test_a_parent_in_an_earlier_chunk_of_a_bulk_retry_waits_for_its_children(
    app: Windlass, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def count(job: Job[Any]) -> int:
        return len(await job.get_children_values())

    monkeypatch.setattr(search, "CHUNK", 2)
    monkeypatch.setattr(bulk, "_CHUNK", 2)
    child = {"name": "child", "options": {"max_attempts": 1}}
    middle = {"name": "middle", "children": [child, child]}
    top = (await FlowProducer(app).add({"name": "top", "queue": "default", "children": [middle, child]})).job
    await work_off(app, "default", _fail)
    assert await queue.retry_jobs() == 5
    assert await states_of(queue) == {JobState.WAITING: 3, JobState.BLOCKED: 2}
    await work_off(app, "default", count)
    assert await top.result() == 2


@pytest.mark.feature("C10")
async def test_bulk_retry_can_be_narrowed_by_name_and_state(app: Windlass, queue: Queue) -> None:
    await queue.add_bulk([{"name": "mail.a", "max_attempts": 1}, {"name": "other", "max_attempts": 1}])
    await work_off(app, "default", _fail)
    assert await queue.retry_jobs(name="mail.*") == 1
    cancelled = await queue.add("x")
    await cancelled.cancel()
    assert await queue.retry_jobs(state="cancelled") == 1
    assert await cancelled.get_state() is JobState.WAITING


@pytest.mark.feature("A31")
async def test_clean_removes_finished_jobs_that_are_older_than_the_grace(
    timed_app: Windlass, clock: DrivenClock
) -> None:
    queue = timed_app.queue("default")
    old = await queue.add("work")
    await clock.until(work_off(timed_app, "default", _ok))
    await clock.advance(100)
    young = await queue.add("work")
    await clock.until(work_off(timed_app, "default", _ok))
    waiting = await queue.add("work")
    cleaned = await queue.clean(grace=50)
    assert (cleaned.count, cleaned.ids) == (1, [old.id])
    assert await queue.get_job(young.id) is not None
    assert await queue.get_job(waiting.id) is not None
    assert (await queue.clean(grace=0)).ids == [young.id]


@pytest.mark.feature("A31")
async def test_clean_keeps_to_its_limit_oldest_first(app: Windlass, queue: Queue) -> None:
    jobs = await queue.add_bulk([{"name": "n"} for _ in range(5)])
    await work_off(app, "default", _ok, concurrency=1)
    cleaned = await queue.clean(limit=3)
    assert cleaned.ids == [job.id for job in jobs[:3]]
    assert await states_of(queue) == {JobState.COMPLETED: 2}


@pytest.mark.feature("A31")
async def test_clean_goes_beyond_one_step(app: Windlass, queue: Queue) -> None:
    await queue.add_bulk([{"name": "n"} for _ in range(1_200)])
    cleaned = await queue.clean(limit=1_100, state="waiting")
    assert cleaned.count == 1_100
    assert await queue.count() == 100


@pytest.mark.feature("A31")
@pytest.mark.parametrize("state", ["active", [], ["completed", "active"], "done"])
async def test_clean_refuses_active_jobs_and_unknown_states(queue: Queue, state: Any) -> None:
    with pytest.raises(ConfigError):
        await queue.clean(state=state)


@pytest.mark.feature("A32")
async def test_drain_removes_what_waits_and_on_request_what_is_due_later(queue: Queue) -> None:
    await queue.add_bulk([{"name": "n"} for _ in range(3)])
    await queue.add("later", delay=60)
    assert await queue.drain() == 3
    assert await states_of(queue) == {JobState.SCHEDULED: 1}
    assert await queue.drain(delayed=True) == 1
    assert await states_of(queue) == {}


@pytest.mark.feature("A32")
async def test_drain_leaves_finished_and_running_jobs_alone(app: Windlass, queue: Queue) -> None:
    started, go = asyncio.Event(), asyncio.Event()

    async def handler(job: Job[Any]) -> None:
        started.set()
        await go.wait()

    running = await queue.add("work")
    async with working(app, "default", handler, concurrency=1):
        await started.wait()
        await queue.add("work")
        assert await queue.drain(delayed=True) == 1
        assert await running.is_active()
        go.set()
        assert await running.wait_until_finished() is JobState.COMPLETED
    assert await queue.drain(delayed=True) == 0


@pytest.mark.feature("A32")
async def test_obliterate_removes_the_queue_and_everything_in_it(app: Windlass, queue: Queue) -> None:
    await queue.add("done")
    await work_off(app, "default", _ok)
    await queue.add_bulk([{"name": "n"}, {"name": "n", "delay": 60}])
    await queue.pause()
    assert await queue.obliterate() == 3
    assert await states_of(queue) == {}
    assert [info.name for info in await app.queues()] == []
    assert not await queue.is_paused()
    assert (await queue.add("again")).outcome == "queued"


@pytest.mark.feature("A32")
async def test_obliterate_is_refused_while_jobs_run_unless_forced(app: Windlass, queue: Queue) -> None:
    started, go = asyncio.Event(), asyncio.Event()

    async def handler(job: Job[Any]) -> None:
        started.set()
        await go.wait()

    async with working(app, "default", handler, concurrency=1):
        await queue.add("work")
        await started.wait()
        await queue.add("work")
        with pytest.raises(IllegalTransitionError, match="force=True"):
            await queue.obliterate()
        assert await queue.count() == 1, "nothing was removed"
        assert await queue.obliterate(force=True) == 2
        go.set()
    assert await states_of(queue) == {}


async def test_a_paused_queue_gives_out_no_jobs_and_keeps_their_states(app: Windlass, queue: Queue) -> None:
    ran = asyncio.Event()

    async def handler(job: Job[Any]) -> None:
        ran.set()

    await queue.pause()
    await queue.pause()
    assert await queue.is_paused()
    job = await queue.add("work")
    async with working(app, "default", handler):
        other = await app.queue("default").add("work")
        assert [await one.get_state() for one in (job, other)] == [JobState.WAITING, JobState.WAITING]
        assert not ran.is_set()
        await queue.resume()
        await ran.wait()
    assert not await queue.is_paused()
    assert "paused" in await event_names(queue)
    assert "resumed" in await event_names(queue)


@pytest.mark.feature("A13")
@pytest.mark.parametrize(
    ("keep", "left"),
    [(True, 3), (False, 0), (2, 2), ({"count": 1}, 1), ({"age": 30}, 0), ({"age": 3_600, "count": 2}, 2)],
    ids=repr,
)
async def test_finished_jobs_are_kept_as_long_as_their_rule_says(
    timed_app: Windlass, clock: DrivenClock, keep: Any, left: int
) -> None:
    from windlass.backend import requests as rq

    queue = timed_app.queue("default")
    await queue.add_bulk([{"name": "n", "keep_completed": keep} for _ in range(3)])
    await clock.until(work_off(timed_app, "default", _ok, duties=False))
    await timed_app.store.execute(rq.Prune())
    assert await states_of(queue) == {JobState.COMPLETED: 3}, "a minute of grace for whoever waits"
    await clock.advance(61)
    await timed_app.store.execute(rq.Prune())
    assert sum((await states_of(queue)).values()) == left


@pytest.mark.feature("A13", "C12")
async def test_failed_jobs_have_a_rule_of_their_own(timed_app: Windlass, clock: DrivenClock) -> None:
    from windlass.backend import requests as rq

    queue = timed_app.queue("default")
    gone = await queue.add("n", max_attempts=1, keep_failed={"age": 60})
    kept = await queue.add("n", max_attempts=1)
    await clock.until(work_off(timed_app, "default", _fail, duties=False))
    await clock.advance(179 * 86_400)
    await timed_app.store.execute(rq.Prune())
    assert await queue.get_job(gone.id) is None
    dead = await queue.get_job(kept.id)
    assert dead is not None
    assert dead.errors[0].message == "no"
    assert dead.stacktrace
    await clock.advance(2 * 86_400)
    await timed_app.store.execute(rq.Prune())
    assert await queue.get_job(kept.id) is None
