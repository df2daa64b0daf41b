"""Closing: pending waits end, later calls are refused, and a closed app can be opened again."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from windlass import ClosedError, ConfigError, Job, Queue, QueueEvents, Worker, as_completed, gather
from windlass.jobs.sync import PORTAL
from windlass_conformance.stage import QUEUE, Gate, eventually, live

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from windlass import Windlass
    from windlass_conformance.harness import Harness

#: Longer than a wait takes that gets a hint, shorter than the interval of polling without hints.
SOON = 10


async def _read(source: AsyncIterator[Any]) -> None:
    async for _ in source:
        pass


async def _waits(queue: Queue, job: Job[Any]) -> list[asyncio.Future[Any]]:
    """All calls that wait without a timeout for ``job``, which never ends, or for events of its queue."""
    ways: list[Awaitable[Any]] = [
        job.result(None),
        job.wait_until_finished(None),
        queue.add_and_wait("n", timeout=None),
        gather([job], timeout=None),
        anext(as_completed([job], timeout=None)),
        _read(queue.events()),
    ]
    if queue.app.store.capabilities.streams:
        ways.append(_read(queue.read_stream(job.id)))
    before = len(asyncio.all_tasks())
    waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(way) for way in ways]
    await eventually(lambda: len(asyncio.all_tasks()) > before + len(waits))  # the watch of the waiters runs
    for _ in range(20):  # and every reader has looked once
        await queue.count()
    assert not any(wait.done() for wait in waits)
    return waits


async def _all_closed(waits: list[asyncio.Future[Any]]) -> None:
    async with asyncio.timeout(SOON):
        ends = await asyncio.gather(*waits, return_exceptions=True)
    assert [type(end) for end in ends] == [ClosedError] * len(waits), ends


async def test_every_wait_without_a_timeout_ends_when_the_app_is_closed(harness: Harness) -> None:
    async with live(harness) as app:
        queue = app.queue(QUEUE)
        waits = await _waits(queue, await queue.add("n"))
        await app.close()
        await _all_closed(waits)


async def test_every_wait_without_a_timeout_ends_when_its_queue_is_closed_and_the_app_goes_on(
    harness: Harness,
) -> None:
    async with live(harness) as app:
        queue = app.queue(QUEUE)
        waits = await _waits(queue, await queue.add("n", job_id="own"))
        await queue.close()
        await _all_closed(waits)
        again = app.queue(QUEUE)
        assert again is not queue
        assert await again.get_job("own") is not None
        assert (await app.queue("other").add("n")).outcome == "queued"


async def test_a_reader_of_events_ends_when_it_is_closed(harness: Harness) -> None:
    async with live(harness) as app:
        events = QueueEvents(QUEUE, app)
        await events.wait_until_ready()
        reading = asyncio.ensure_future(anext(aiter(events)))
        await app.queue(QUEUE).count()
        await events.close()
        await _all_closed([reading])
        with pytest.raises(ClosedError, match="make another QueueEvents"):
            await events.wait_until_ready()


async def test_calls_after_the_end_are_refused_and_say_what_to_do(harness: Harness) -> None:
    async with live(harness) as app:
        queue = app.queue(QUEUE)
        job = await queue.add("n")
        calls: list[Callable[[], Awaitable[Any]]] = [
            lambda: queue.add("n"),
            lambda: queue.add_bulk([{"name": "n"}] * 20),
            lambda: queue.add_and_wait("n"),
            lambda: queue.get_job(job.id),
            lambda: queue.get_job_counts(),
            lambda: queue.cancel(job.id),
            lambda: anext(queue.events()),
            lambda: job.result(None),
            lambda: job.get_state(),
            lambda: job.remove(),
        ]
        await queue.close()
        for call in calls:
            with pytest.raises(ClosedError, match=r"take another: app\.queue"):
                await call()
        queue = app.queue(QUEUE)
        job = await queue.add("n")
        await app.close()
        calls += [app.queues, app.workers, Worker(QUEUE, print, url_or_app=app).start]
        for call in calls:
            with pytest.raises(ClosedError, match="open it again"):
                await call()


async def test_a_closed_app_that_is_entered_again_works_with_the_queues_it_had(harness: Harness) -> None:
    async with live(harness) as app:
        queue = app.queue(QUEUE)
        async with app:
            await queue.add("n", job_id="first")
            with pytest.raises(ConfigError, match="this app is already open"):
                async with app:
                    pass
        with pytest.raises(ClosedError):
            await queue.count()
        async with app:
            assert app.queue(QUEUE) is queue
            assert await queue.get_job("first") is not None
            async with Worker(QUEUE, lambda job: 7, url_or_app=app):
                assert await queue.add_and_wait("n") == 7


async def test_handlers_keep_their_job_when_the_queue_of_the_app_is_closed(harness: Harness) -> None:
    async with live(harness) as app:
        gate = Gate()

        async def handler(job: Job[Any]) -> str:
            await gate.pass_through()
            await job.update_progress(50)
            return "done"

        async with Worker(QUEUE, handler, url_or_app=app):
            queue = app.queue(QUEUE)
            job = await queue.add("n")
            await gate.reached.wait()
            await queue.close()
            gate.open()
            found = await app.queue(QUEUE).get_job(job.id)
            assert found is not None
            assert await found.result() == "done"


async def test_plain_callers_are_told_as_well_when_the_app_is_closed(harness: Harness) -> None:
    async with live(harness) as app:
        with ThreadPoolExecutor(2) as threads:
            run = partial(asyncio.get_running_loop().run_in_executor, threads)
            try:
                await _plain_caller_is_told(app, app.close, run)
                await run(app.sync.open)
                await _plain_caller_is_told(app, partial(run, app.sync.close), run)
            finally:
                PORTAL.stop()


async def _plain_caller_is_told(
    app: Windlass, close: Callable[[], Awaitable[None]], run: Callable[..., asyncio.Future[Any]]
) -> None:
    queue = app.sync.queue(QUEUE)
    job = await run(queue.add, "n")
    waiting = run(job.result, None)
    await run(queue.count)
    await close()
    await _all_closed([waiting])
    with pytest.raises(ClosedError):
        await run(queue.add, "n")
