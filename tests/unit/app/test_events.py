"""What a queue and a worker tell: the event log, its readers, local callbacks."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from tests.unit.app.support import DrivenClock, event_names, events_of, work_off, working
from windlass import ConfigError, Event, Job, JobState, Queue, QueueEvents, Snooze, StorageError, Windlass
from windlass.api.event_feed import ALIASES
from windlass.jobs import EventType
from windlass.worker.emitter import WORKER_EVENTS


async def _ok(job: Job[Any]) -> str:
    return "ok"


# --- the queue's log -------------------------------------------------------------------------------------


@pytest.mark.feature("K3")
async def test_every_change_of_state_has_one_event_in_order(app: Windlass, queue: Queue) -> None:
    async def handler(job: Job[Any]) -> None:
        if job.deliveries == 1:
            raise Snooze
        if job.attempt == 1:
            raise ValueError("once")
        await job.update_progress(50)

    job = await queue.add("work", backoff=0, delay=60)
    await job.promote()
    await work_off(app, "default", handler)
    await job.retry()
    await job.cancel()
    await job.remove()
    assert await event_names(queue, job.id) == [
        "scheduled", "promoted", "started", "released", "started", "retrying", "started", "progress",
        "completed", "enqueued", "cancelled", "removed",
    ]  # fmt: skip
    events = await events_of(queue)
    assert [event.id for event in events] == list(range(1, len(events) + 1))
    assert all(event.at_ms > 0 for event in events)


@pytest.mark.feature("K1", "K4", "K5")
async def test_callbacks_follow_a_queue_from_any_client(url: str, app: Windlass) -> None:
    seen: list[tuple[str, str]] = []
    done = asyncio.Event()

    def note(event: Event) -> None:
        seen.append((event.type.value, event.job_id))
        if event.type is EventType.FAILED:
            done.set()

    async with QueueEvents("default", url, after=0) as events:
        for name in ("added", "active", "completed", "failed"):
            events.on(name, note)
        queue = app.queue("default")

        async def handler(job: Job[Any]) -> None:
            if job.name == "bad":
                raise ValueError("broken")

        good, bad = await queue.add("good"), await queue.add("bad", max_attempts=1)
        await work_off(app, "default", handler, concurrency=1)
        async with asyncio.timeout(10):
            await done.wait()
    assert seen == [
        ("enqueued", good.id),
        ("enqueued", bad.id),
        ("started", good.id),
        ("completed", good.id),
        ("started", bad.id),
        ("failed", bad.id),
    ] or sorted(seen) == sorted(
        [(kind, job.id) for job in (good, bad) for kind in ("enqueued", "started")]
        + [("completed", good.id), ("failed", bad.id)]
    )


@pytest.mark.feature("K4")
async def test_a_failure_event_says_why(app: Windlass, queue: Queue) -> None:
    async def handler(job: Job[Any]) -> None:
        raise ValueError("broken")

    await queue.add("bad", max_attempts=1)
    await work_off(app, "default", handler)
    failed = [event for event in await events_of(queue) if event.type is EventType.FAILED]
    assert [event.data for event in failed] == [
        {"reason": "attempts", "error_class": "ValueError", "message": "broken"}
    ]
    assert failed[0].task == "bad"


@pytest.mark.feature("K6")
async def test_a_star_follows_everything_and_coroutines_are_awaited_in_order(
    app: Windlass, queue: Queue
) -> None:
    seen: list[int] = []
    done = asyncio.Event()

    async def slow(event: Event) -> None:
        await asyncio.sleep(0)
        seen.append(event.id)
        if event.type is EventType.COMPLETED:
            done.set()

    events = QueueEvents("default", app, after=0)
    events.on("*", slow)
    await queue.add("work")
    await work_off(app, "default", _ok)
    async with asyncio.timeout(10):
        await done.wait()
    assert seen == sorted(seen)
    assert events.last_id == seen[-1]
    await events.close()
    await events.close()


@pytest.mark.feature("K7")
async def test_a_reader_goes_on_from_the_last_event_it_saw(app: Windlass, queue: Queue) -> None:
    await queue.add("one")
    await queue.add("two")
    first: list[str] = []
    async for event in queue.events(after=0):
        first.append(event.task)
        if len(first) == 2:
            last = event.id
            break
    await queue.add("three")
    async for event in queue.events(after=last):
        assert event.task == "three"
        break
    assert first == ["one", "two"]


@pytest.mark.feature("K1")
async def test_without_a_position_only_what_is_new_is_told(app: Windlass, queue: Queue) -> None:
    seen: list[str] = []
    told = asyncio.Event()

    def note(event: Event) -> None:
        seen.append(event.task)
        told.set()

    await queue.add("old")
    async with QueueEvents("default", app) as events:
        events.on("*", note)
        await events.wait_until_ready()
        await queue.add("new")
        async with asyncio.timeout(10):
            await told.wait()
    assert seen == ["new"]


@pytest.mark.feature("K5")
async def test_queue_on_is_a_short_way_to_listen(app: Windlass, queue: Queue) -> None:
    told: asyncio.Future[Event] = asyncio.get_running_loop().create_future()

    def tell(event: Event) -> None:
        if not told.done():
            told.set_result(event)

    queue.on("waiting", tell)
    async with asyncio.timeout(10):
        while not told.done():  # it listens from "now" on, whenever that comes
            await queue.add("work")
            await asyncio.sleep(0)
    assert told.result().type is EventType.ENQUEUED
    await queue.close()


@pytest.mark.feature("K5")
async def test_the_job_of_an_added_event_still_has_the_attributes_of_the_event(
    timed_app: Windlass, clock: DrivenClock
) -> None:
    added: list[Any] = []
    queue = timed_app.queue("default")
    queue.on("added", added.append)
    await clock.settle()
    job = await queue.add("work")
    await clock.advance(1)
    (found,) = added
    with pytest.deprecated_call(match=r"passes the job, not the event"):
        assert found.type is EventType.ENQUEUED
    with pytest.deprecated_call(match=r"use job\.id"):
        assert found.job_id == job.id
    assert (found.id, found.name) == (job.id, "work")
    with pytest.raises(AttributeError, match="a job has no 'nothing'"):
        _ = found.nothing
    await queue.close()


@pytest.mark.feature("K5", "Z14")
async def test_a_job_that_cannot_be_read_at_first_is_handed_once_it_can(
    timed_app: Windlass, clock: DrivenClock
) -> None:
    from windlass import StorageError

    added: list[str] = []
    queue, get, failures = timed_app.queue("default"), timed_app.store.get, 2

    async def away(ref: Any) -> Any:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise StorageError("away")
        return await get(ref)

    queue.on("added", lambda job: added.append(job.id))
    await clock.settle()
    timed_app.store.get = away  # type: ignore[method-assign]
    jobs = [await queue.add("work"), await queue.add("work")]
    await clock.advance(5)
    assert added == [job.id for job in jobs]
    await queue.close()


async def test_a_job_that_cannot_be_made_for_a_callback_does_not_end_the_others(
    timed_app: Windlass, clock: DrivenClock, caplog: pytest.LogCaptureFixture
) -> None:
    queue, get, added = timed_app.queue("default"), timed_app.store.get, []

    async def damaged(ref: Any) -> Any:
        if ref.id == first.id:
            raise ValueError("damaged")
        return await get(ref)

    queue.on("added", lambda job: added.append(job.id))
    await clock.settle()
    timed_app.store.get = damaged  # type: ignore[method-assign]
    first = await queue.add("work")
    await clock.advance(5)
    second = await queue.add("work")
    await clock.advance(5)
    assert added == [second.id]
    assert caplog.text.count("unexpected error while reading the events of queue default") == 1
    await queue.close()


@pytest.mark.feature("K7", "Z14")
@pytest.mark.parametrize("error", [StorageError("away"), ValueError("a defect of a store")], ids=repr)
async def test_a_reader_outlives_a_store_that_fails_and_misses_nothing(
    timed_app: Windlass, clock: DrivenClock, error: Exception
) -> None:
    seen: list[str] = []
    queue = timed_app.queue("default")
    backend = timed_app.store.backend

    def away(request: Any) -> None:
        if type(request).__name__ == "ReadEvents":
            raise error

    async with QueueEvents("default", timed_app, after=0) as events:
        events.on("*", lambda event: seen.append(event.task))
        await queue.add("one")
        await clock.settle()
        backend.before = away  # type: ignore[attr-defined]
        await queue.add("two")
        await clock.advance(5)
        backend.before = None  # type: ignore[attr-defined]
        await clock.advance(2)
    assert seen == ["one", "two"]


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError])
async def test_a_callback_that_fails_is_logged_and_harms_nobody(
    app: Windlass, queue: Queue, caplog: pytest.LogCaptureFixture, error: type[BaseException]
) -> None:
    done = asyncio.Event()

    def broken(event: Event) -> None:
        raise error("my fault")

    async with QueueEvents("default", app, after=0) as events:
        events.on("enqueued", broken)
        events.on("enqueued", lambda event: done.set())
        await queue.add("work")
        async with asyncio.timeout(10):
            await done.wait()
    assert "an event callback failed" in caplog.text


@pytest.mark.parametrize("alias", sorted(ALIASES))
async def test_names_of_other_systems_are_understood(app: Windlass, alias: str) -> None:
    events = QueueEvents("default", app)
    events.on(alias, lambda event: None)
    assert {match.type for match in ALIASES[alias]} <= set(EventType)
    await events.close()


async def test_an_unknown_event_is_refused_with_the_nearest_name(app: Windlass) -> None:
    events = QueueEvents("default", app)
    with pytest.raises(ConfigError, match="did you mean 'completed'"):
        events.on("complete", lambda event: None)
    await events.close()


async def test_callbacks_go_on_though_other_code_cancels_the_task_that_reads_events(
    app: Windlass, queue: Queue
) -> None:
    seen: asyncio.Queue[str] = asyncio.Queue()
    queue.on("added", lambda job: seen.put_nowait(job.id))
    assert queue._feed is not None
    await queue._feed.wait_until_ready()
    for _ in range(2):
        (task,) = [task for task in asyncio.all_tasks() if task.get_name() == "windlass-events-default"]
        task.cancel()
        job = await queue.add("n")
        async with asyncio.timeout(20):
            assert await seen.get() == job.id


async def test_a_reader_of_events_becomes_ready_though_other_code_cancels_its_tasks(app: Windlass) -> None:
    async with QueueEvents("default", app) as events:
        before = asyncio.all_tasks()
        ready = asyncio.ensure_future(events.wait_until_ready())
        await asyncio.sleep(0)
        tasks = asyncio.all_tasks() - before - {ready}
        assert tasks
        for task in tasks:
            task.cancel()
        async with asyncio.timeout(20):
            await ready


def test_listening_can_be_arranged_before_there_is_a_loop() -> None:
    events = QueueEvents("default", "memory://loopless")
    events.on("completed", lambda event: None)
    with pytest.raises(RuntimeError):
        events.start()


@pytest.mark.feature("K6")
async def test_one_jobs_events_are_told_by_its_id(app: Windlass, queue: Queue) -> None:
    job, other = await queue.add("work"), await queue.add("work")
    await work_off(app, "default", _ok)
    assert await event_names(queue, job.id) == ["enqueued", "started", "completed"]
    assert await event_names(queue, other.id) == ["enqueued", "started", "completed"]


# --- the worker's callbacks ------------------------------------------------------------------------------


@pytest.mark.feature("K2", "K4", "K5")
async def test_a_worker_tells_what_happens_in_it(app: Windlass, queue: Queue) -> None:
    from windlass import Worker

    seen: list[tuple[str, tuple[Any, ...]]] = []

    async def handler(job: Job[Any]) -> str:
        await job.update_progress(10)
        if job.name == "bad":
            raise ValueError("broken")
        return "fine"

    worker = Worker("default", handler, url_or_app=app, concurrency=1)
    for name in WORKER_EVENTS:
        worker.on(name, lambda *args, name=name: seen.append((name, args)))
    good = await queue.add("good")
    bad = await queue.add("bad", max_attempts=2, backoff=0)
    await worker.drain()

    names = [name for name, _ in seen if not name.startswith("leadership")]
    assert names[0] == "ready"
    assert names[-2:] == ["closing", "closed"]
    assert names.count("active") == 3
    assert names.count("progress") == 3
    assert "drained" in names
    by_name = dict(seen)
    assert (by_name["completed"][0].id, by_name["completed"][1]) == (good.id, "fine")
    assert (by_name["failed"][0].id, str(by_name["failed"][1].__cause__)) == (bad.id, "broken")
    assert by_name["retrying"][0].id == bad.id
    assert by_name["progress"][1] == 10


@pytest.mark.feature("K2")
async def test_coroutine_callbacks_run_beside_the_worker_and_are_finished_at_close(
    app: Windlass, queue: Queue
) -> None:
    from windlass import Worker

    told: list[str] = []

    async def on_completed(job: Job[Any], result: Any) -> None:
        await asyncio.sleep(0)
        told.append(result)

    async def on_broken(job: Job[Any], result: Any) -> None:
        raise ValueError

    worker = Worker("default", _ok, url_or_app=app)
    worker.on("completed", on_broken)
    worker.on("completed", on_completed)
    await queue.add("work")
    await worker.drain()
    assert told == ["ok"]


@pytest.mark.feature("K2", "Z14")
async def test_the_error_event_tells_of_a_store_that_is_away(timed_app: Windlass, clock: DrivenClock) -> None:
    from windlass import StorageError

    errors: list[BaseException] = []
    queue = timed_app.queue("default")
    async with working(timed_app, "default", _ok, duties=False, heartbeat=10_000) as worker:
        worker.on("error", errors.append)
        await clock.settle()
        backend = timed_app.store.backend

        def away(request: Any) -> None:
            raise StorageError("away")

        backend.before = away  # type: ignore[attr-defined]
        await clock.advance(10)
        assert errors
        backend.before = None  # type: ignore[attr-defined]
        job = await queue.add("work")
        await clock.advance(10)
        assert await job.get_state() is JobState.COMPLETED


async def test_an_unknown_worker_event_is_refused(app: Windlass) -> None:
    from windlass import Worker

    worker = Worker("default", _ok, url_or_app=app)
    with pytest.raises(ConfigError, match="worker event"):
        worker.on("finished", lambda: None)


async def test_a_broken_worker_callback_is_logged(
    app: Windlass, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    from windlass import Worker

    worker = Worker("default", _ok, url_or_app=app)
    worker.on("completed", lambda job, result: 1 / 0)
    job = await queue.add("work")
    with caplog.at_level(logging.ERROR):
        await worker.drain()
    assert "a callback of worker event 'completed' failed" in caplog.text
    assert await job.get_state() is JobState.COMPLETED
