"""Events: as they happen, by callback, replayed, and those of the worker itself."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest

from windlass import ConfigError, Event, Job, JobState, QueueEvents, Snooze, Worker
from windlass_conformance.harness import Harness
from windlass_conformance.stage import QUEUE, Stage, eventually


async def fail_once(job: Job[Any]) -> str:
    if job.attempt == 1:
        raise ValueError("first")
    return "second"


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
        assert events[-1].data == {"progress": '{"current":3,"total":9}'}
        assert (await job.refresh()).progress == {"current": 3, "total": 9}
        seen.set()
        await job.result()


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
