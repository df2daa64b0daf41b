"""Events: as they happen, by callback, replayed, and those of the worker itself."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest

from windlass import ConfigError, Event, Job, JobState, QueueEvents, Snooze, Worker
from windlass.errors import PayloadTooLargeError
from windlass_conformance.harness import Harness
from windlass_conformance.needs import needs
from windlass_conformance.stage import QUEUE, Stage, eventually


async def fail_once(job: Job[Any]) -> str:
    if job.attempt == 1:
        raise ValueError("first")
    return "second"


async def number_of_the_run(job: Job[Any]) -> int:
    """The number of the run."""
    return job.manual_retries + 1


async def _completions(stage: Stage, count: int) -> AsyncIterator[Event]:
    """The first ``count`` events of type ``completed``."""
    stream = stage.queue.events(0)
    async for event in stream:
        if event.type == "completed":
            yield event
            count -= 1
        if not count:
            break
    await stream.aclose()


async def _first(stream: AsyncGenerator[Event, None], count: int) -> AsyncIterator[Event]:
    async for event in stream:
        yield event
        count -= 1
        if not count:
            break
    await stream.aclose()


def _hear(heard: list[tuple[str, str]], name: str, event: Event) -> None:
    heard.append((name, event.task))


async def collect(stage: Stage, after: int | None, until: str) -> list[Event]:
    """Events until one of type ``until``."""
    found: list[Event] = []
    stream = stage.queue.events(after)
    async for event in stream:
        found.append(event)
        if event.type == until:
            break
    await stream.aclose()
    return found


@pytest.mark.feature("K1", "K3", "K7")
async def test_the_life_of_a_job_can_be_replayed_from_its_events(harness: Harness) -> None:
    async with Stage(harness) as stage:
        await stage.work(fail_once)
        job = await stage.queue.add("n", backoff={"type": "fixed", "delay": 5, "jitter": 0})
        await stage.until_state(job, JobState.RETRYING)
        await stage.advance(6)
        await job.result()
        events = await collect(stage, 0, "completed")
        assert [event.type for event in events if event.type != "drained"] == [
            "enqueued",
            "started",
            "retrying",
            "promoted",
            "started",
            "completed",
        ]
        assert {event.job_id for event in events if event.job_id} == {job.id}


@pytest.mark.feature("K7")
async def test_a_reader_that_remembers_its_place_misses_and_repeats_nothing(harness: Harness) -> None:
    async with Stage(harness) as stage:
        await stage.queue.add_bulk([{"name": "n"} for _ in range(10)])
        first = await collect(stage, 0, "enqueued")
        await stage.queue.pause()
        rest = await collect(stage, first[-1].id, "paused")
        assert [event.id for event in first + rest] == list(range(1, 12))


@pytest.mark.feature("K1")
async def test_a_reader_without_a_place_sees_only_what_comes(harness: Harness) -> None:
    async with Stage(harness) as stage:
        await stage.queue.add("old")
        reading = asyncio.create_task(collect(stage, None, "paused"))
        await stage.settle()
        await stage.queue.pause()
        assert [event.type for event in await reading] == ["paused"]


@pytest.mark.feature("K1", "K4", "K5")
async def test_callbacks_are_called_by_our_names_and_by_the_seeds_names(harness: Harness) -> None:
    async with Stage(harness) as stage:
        heard: list[tuple[str, str]] = []
        done = asyncio.Event()
        events = QueueEvents(QUEUE, stage.app, after=0)
        events.on("added", lambda event: heard.append(("added", event.job_id)))
        events.on("active", lambda event: heard.append(("active", event.job_id)))
        events.on("completed", lambda event: done.set())
        await stage.work(lambda job: None)
        job = await stage.queue.add("n")
        await done.wait()
        await events.close()
        assert heard == [("added", job.id), ("active", job.id)]


@pytest.mark.feature("K1")
async def test_an_event_that_does_not_exist_is_refused(harness: Harness) -> None:
    async with Stage(harness) as stage:
        events = QueueEvents(QUEUE, stage.app)
        with pytest.raises(ConfigError):
            events.on("compleeted", print)
        worker = await stage.work(lambda job: None)
        with pytest.raises(ConfigError):
            worker.on("compleeted", print)
        await events.close()


@pytest.mark.feature("K1")
async def test_a_callback_that_fails_harms_nobody(harness: Harness) -> None:
    async with Stage(harness) as stage:

        def bad(*args: Any) -> None:
            raise RuntimeError("bad callback")

        heard, done = list[str](), asyncio.Event()
        events = QueueEvents(QUEUE, stage.app, after=0)
        events.on("enqueued", bad)
        events.on("enqueued", lambda event: heard.append(event.job_id))
        events.on("completed", lambda event: done.set())
        worker = await stage.work(lambda job: None)
        worker.on("completed", bad)
        job = await stage.queue.add("n")
        await done.wait()
        await events.close()
        assert heard == [job.id]


@pytest.mark.feature("K2", "K5")
async def test_a_worker_tells_what_happens_in_it(harness: Harness) -> None:
    async with Stage(harness) as stage:
        told: list[tuple[Any, ...]] = []
        worker = await stage.work(fail_once)
        worker.on("active", lambda job: told.append(("active", job.id)))
        worker.on("retrying", lambda job, error: told.append(("retrying", str(error))))
        worker.on("completed", lambda job, result: told.append(("completed", result)))
        job = await stage.queue.add("n", backoff=0)
        await job.result()
        await eventually(lambda: len(told) == 4)
        assert told == [
            ("active", job.id),
            ("retrying", "first"),
            ("active", job.id),
            ("completed", "second"),
        ]


@pytest.mark.feature("A22", "K1")
async def test_progress_is_seen_from_outside_while_the_job_runs(harness: Harness) -> None:
    async with Stage(harness) as stage:
        seen = asyncio.Event()

        async def handler(job: Job[Any]) -> None:
            await job.update_progress({"current": 3, "total": 9})
            await seen.wait()

        await stage.work(handler)
        job = await stage.queue.add("n")
        events = await collect(stage, 0, "progress")
        assert events[-1].data == {"progress": {"current": 3, "total": 9}}
        assert (await job.refresh()).progress == {"current": 3, "total": 9}
        seen.set()
        await job.result()


@pytest.mark.feature("A22", "K1")
@pytest.mark.parametrize("progress", ["5 bytes", 0, None, ["x" * 2_000], b"raw"])
async def test_progress_arrives_as_the_data_that_was_reported(harness: Harness, progress: Any) -> None:
    async with Stage(harness, codec="msgpack" if isinstance(progress, bytes) else "json") as stage:

        async def handler(job: Job[Any]) -> None:
            await job.update_progress(progress)

        await stage.work(handler)
        await (await stage.queue.add("n")).result()
        events = await collect(stage, 0, "progress")
        assert events[-1].data["progress"] == progress


@pytest.mark.feature("K1", "K3")
@pytest.mark.parametrize("options", [{}, {"result_ttl": 0, "keep_completed": False}])
async def test_the_event_of_a_completed_job_has_what_it_returned(
    harness: Harness, options: dict[str, Any]
) -> None:
    async with Stage(harness) as stage:
        heard: list[Event] = []
        events = QueueEvents(QUEUE, stage.app, after=0)
        events.on("completed", heard.append)

        async def handler(job: Job[Any]) -> Any:
            return job.data

        await stage.work(handler)
        values = [None, 7, {"rows": [1, 2]}, "text"]
        jobs = [await stage.queue.add("n", {"value": value}, **options) for value in values]
        await eventually(lambda: len(heard) == len(values))
        await events.close()
        by_id = {event.job_id: event.data["return_value"] for event in heard}
        assert [by_id[job.id] for job in jobs] == [{"value": value} for value in values]


@pytest.mark.feature("K1")
async def test_a_completed_event_has_no_value_that_is_not_its_own(harness: Harness) -> None:
    async with Stage(harness) as stage:
        await stage.work(number_of_the_run)
        job = await stage.queue.add("n", job_id="one")
        assert await job.result() == 1
        await stage.advance(1)
        await job.retry()
        await stage.until_state(job, JobState.COMPLETED)
        assert await job.result() == 2
        found = [event async for event in _completions(stage, 2)]
        assert [event.data.get("return_value") for event in found] == [None, 2]
        assert "return_value" not in found[0].data
        bare = stage.queue.events(0, values=False)
        assert [event async for event in _first(bare, 5) if "return_value" in event.data] == []


@pytest.mark.feature("K10")
async def test_an_event_of_ones_own_stands_among_those_of_the_queue(harness: Harness) -> None:
    async with Stage(harness) as stage:
        heard: list[tuple[str, Any, str]] = []
        events = QueueEvents(QUEUE, stage.app, after=0)
        events.on("custom:shipped", lambda event: heard.append(("shipped", event.data["data"], event.job_id)))
        events.on("custom", lambda event: heard.append(("any", event.data["name"], event.job_id)))
        await events.wait_until_ready()
        await stage.queue.publish_event("opened")
        job = await stage.queue.add("n", delay=60)
        await stage.queue.publish_event("shipped", {"parcels": [1, 2]}, job_id=job.id)
        await job.cancel()
        await eventually(lambda: len(heard) == 3)
        await events.close()
        assert heard == [
            ("any", "opened", ""),
            ("shipped", {"parcels": [1, 2]}, job.id),
            ("any", "shipped", job.id),
        ]
        found = await collect(stage, 0, "cancelled")
        assert [(event.id, event.type) for event in found] == [
            (1, "custom"),
            (2, "scheduled"),
            (3, "custom"),
            (4, "cancelled"),
        ]
        assert (await stage.queue.get_job_counts())[JobState.CANCELLED] == 1


@pytest.mark.feature("K10")
async def test_an_event_of_ones_own_is_small_and_has_a_name(harness: Harness) -> None:
    async with Stage(harness) as stage:
        queue = stage.app.queue("new")
        with pytest.raises(PayloadTooLargeError):
            await queue.publish_event("big", "x" * 10_001)
        with pytest.raises(ConfigError):
            await queue.publish_event("odd", object())
        with pytest.raises(ConfigError):
            await queue.publish_event("")
        assert [info.name for info in await stage.app.queues()] == []
        await queue.publish_event("first", job_id="a-job-that-is-gone")
        assert [info.name for info in await stage.app.queues()] == ["new"]


@pytest.mark.feature("K10")
async def test_a_reader_that_is_behind_gets_a_gap_when_events_are_trimmed(harness: Harness) -> None:
    async with Stage(harness) as stage:
        for name in ("one", "two", "three"):
            await stage.queue.publish_event(name)
        assert await stage.queue.trim_events(keep=1) == 2
        found = [event async for event in _first(stage.queue.events(1), 2)]
        assert [(event.type, event.data.get("name")) for event in found] == [
            ("gap", None),
            ("custom", "three"),
        ]
        assert found[0].data == {"oldest": 3, "reason": "trimmed"}
        for bad in (-1, 10_001, True, "2"):
            with pytest.raises(ConfigError):
                await stage.queue.trim_events(keep=bad)  # type: ignore[arg-type]


@pytest.mark.feature("K1", "K5")
@needs("priority")
async def test_what_was_added_is_handed_as_a_job(harness: Harness) -> None:
    async with Stage(harness) as stage:
        added: list[Job[Any]] = []
        stage.queue.on("added", added.append)
        await stage.settle()
        job = await stage.queue.add("n", {"to": "ada"}, priority=3)
        await eventually(lambda: bool(added))
        assert [(one.id, one.name, one.data, one.priority) for one in added] == [
            (job.id, "n", {"to": "ada"}, 3)
        ]
        await added[0].remove()
        assert await stage.queue.get_job(job.id) is None


@pytest.mark.feature("K1", "K3", "K4", "K8")
async def test_the_names_of_other_systems_mean_what_they_mean_there(harness: Harness) -> None:
    async with Stage(harness) as stage:

        async def handler(job: Job[Any]) -> None:
            if job.name == "snoozes" and job.deliveries == 1:
                raise Snooze(5)
            if job.name == "fails":
                raise ValueError("broken")

        heard: list[tuple[str, str]] = []
        done = asyncio.Event()
        events = QueueEvents(QUEUE, stage.app, after=0)
        names = {"added", "waiting", "delayed", "active", "failing", "retries-exhausted", "snoozed"}
        for name in sorted(names | {"queue_paused", "queue_resumed", "revoked", "cleaned"}):
            events.on(name, functools.partial(_hear, heard, name))
        events.on("cleaned", lambda event: done.set())
        await stage.queue.pause()
        await stage.queue.resume()
        await stage.work(handler)
        snoozing = await stage.queue.add("snoozes")
        await stage.until_state(snoozing, JobState.SCHEDULED)
        await stage.advance(6)
        await stage.until_state(snoozing, JobState.COMPLETED)
        failing = await stage.queue.add("fails", max_attempts=2, backoff=0)
        await stage.until_state(failing, JobState.FAILED)
        later = await stage.queue.add("later", delay=60)
        await later.cancel()
        await later.remove()
        await done.wait()
        await events.close()
        assert heard == [
            ("queue_paused", ""),
            ("queue_resumed", ""),
            ("added", "snoozes"),
            ("waiting", "snoozes"),
            ("active", "snoozes"),
            ("delayed", "snoozes"),
            ("snoozed", "snoozes"),
            ("waiting", "snoozes"),
            ("active", "snoozes"),
            ("added", "fails"),
            ("waiting", "fails"),
            ("active", "fails"),
            ("delayed", "fails"),
            ("failing", "fails"),
            ("active", "fails"),
            ("retries-exhausted", "fails"),
            ("added", "later"),
            ("delayed", "later"),
            ("revoked", "later"),
            ("cleaned", "later"),
        ]


@pytest.mark.feature("K6")
async def test_one_job_can_be_followed_and_a_callback_taken_away(harness: Harness) -> None:
    async with Stage(harness) as stage:
        heard: list[str] = []
        every: list[str] = []
        first = await stage.queue.add("n")
        second = await stage.queue.add("n")

        def follow(event: Event) -> None:
            heard.append(f"{event.type.value} {event.job_id}")

        def all_of_them(event: Event) -> None:
            every.append(event.job_id)

        events = QueueEvents(QUEUE, stage.app, after=0)
        events.on("*", follow, job_id=second.id)
        events.on("enqueued", all_of_them)
        await stage.work(lambda job: None, concurrency=1)
        for job in (first, second):
            await job.result()
        await eventually(lambda: f"completed {second.id}" in heard)
        events.off(all_of_them)
        third = await stage.queue.add("n")
        await third.result()
        await events.close()
        assert heard == [f"{kind} {second.id}" for kind in ("enqueued", "started", "completed")]
        assert every == [first.id, second.id]


@pytest.mark.feature("K2", "K8")
async def test_a_worker_tells_of_its_own_life_and_of_leadership(harness: Harness) -> None:
    async with Stage(harness) as stage:
        told: list[str] = []

        async def handler(job: Job[Any]) -> None:
            if job.deliveries == 1:
                raise Snooze

        worker = Worker(QUEUE, handler, url_or_app=stage.app, poll=600, heartbeat=600)
        stage.workers.append(worker)
        for name in ("started", "snoozed", "leadershipAcquired", "leadership_lost", "closing", "stopped"):
            worker.on(name, lambda *args, name=name: told.append(name))
        await worker.start()
        await eventually(lambda: "leadershipAcquired" in told)
        job = await stage.queue.add("n")
        await job.result()
        await worker.close()
        assert told == ["started", "leadershipAcquired", "snoozed", "closing", "leadership_lost", "stopped"]
