"""A process that forks behaves the same on every store.

An app that was opened before the fork raises a typed error in the child and keeps working in the parent. An
app that was not used before the fork works in the child.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from windlass import Windlass, Worker
from windlass.backend.store import Store
from windlass.core.clock import SYSTEM_CLOCK
from windlass.errors import ForkedError
from windlass_conformance.harness import Harness
from windlass_conformance.stage import QUEUE


def _app(harness: Harness) -> Windlass:
    app = Windlass("memory://")
    app.store = Store(harness.connect(harness.namespace), SYSTEM_CLOCK)
    return app


async def _in_a_child(work: Callable[[], Awaitable[str]]) -> str:
    """Fork, run ``work`` in the child, and return what it reports."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _work_and_exit(work, writing)
    os.close(writing)
    try:
        async with asyncio.timeout(30):
            await asyncio.to_thread(os.waitpid, child, 0)
    finally:
        with os.fdopen(reading) as answer:
            said = await asyncio.to_thread(answer.read)
    return said


def _work_and_exit(work: Callable[[], Awaitable[str]], writing: int) -> None:
    async def answer() -> str:
        async with asyncio.timeout(20):
            return await work()

    try:
        said = asyncio.run(answer())
    except BaseException as exc:  # the child must not continue as a copy of the test
        said = repr(exc)
    os.write(writing, said.encode())
    os._exit(0)


async def _refusals(calls: list[Callable[[], Awaitable[Any]]]) -> str:
    said = []
    for call in calls:
        try:
            await call()
            said.append("no error")
        except ForkedError as exc:
            said.append("forked" if "after the fork" in str(exc) else str(exc))
    return " ".join(said)


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
async def test_an_app_that_was_used_before_a_fork_is_refused_in_the_child(harness: Harness) -> None:
    app = _app(harness)
    queue = app.queue(QUEUE)
    job = await queue.add("n")

    async def work() -> str:
        worker = Worker(QUEUE, lambda job: None, url_or_app=app)
        calls: list[Callable[[], Awaitable[Any]]] = [
            lambda: queue.add("n"),
            lambda: queue.get_job(job.id),
            lambda: app.store.listen([f"ready:{QUEUE}"]),
            lambda: worker.start(),
        ]
        said = await _refusals(calls)
        await app.close()  # must not close what the parent uses
        return said

    assert await _in_a_child(work) == "forked forked forked forked"
    await queue.add("n")
    assert await queue.count() == 2
    await app.close()


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
async def test_an_app_that_was_never_used_before_a_fork_works_in_the_child(harness: Harness) -> None:
    used, unused = _app(harness), _app(harness)
    await used.queue(QUEUE).add("n")

    async def work() -> str:
        job = await unused.queue(QUEUE).add("child")
        state = await job.get_state()
        await unused.close()
        return str(state)

    assert await _in_a_child(work) == "waiting"
    expected = 2 if harness.backend.capabilities.shared else 1
    assert await used.queue(QUEUE).count() == expected
    await used.close()
    await unused.close()


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
async def test_an_app_that_was_closed_before_a_fork_opens_again_in_the_child(harness: Harness) -> None:
    app = _app(harness)
    await app.queue(QUEUE).add("n")
    await app.close()

    async def work() -> str:
        said = await _refusals([app.open])
        if said == "no error":
            job = await app.queue(QUEUE).add("child")
            said = str(await job.get_state())
            await app.close()
        return said

    shared = harness.backend.capabilities.shared  # a copy of jobs in memory would run a second time
    assert await _in_a_child(work) == ("waiting" if shared else "forked")
    await app.open()
    expected = 2 if shared else 1
    assert await app.queue(QUEUE).count() == expected
    await app.close()
