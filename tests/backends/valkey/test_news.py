"""Hints that bring along how jobs completed: whoever added them need not ask."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.backends.valkey.servers import DEPLOYMENTS, url_of
from tests.backends.valkey.support import add, claim, new, opened
from windlass import Windlass, Worker
from windlass.backend import requests as rq
from windlass.backends.valkey import ValkeyBackend, records
from windlass.core.ids import new_id
from windlass.core.job import Completed, JobRecord
from windlass.core.outcome import Outcome, Settlement
from windlass.errors import JobFailedError, UnrecoverableError

backend_name = "valkey"
pytestmark = pytest.mark.service("valkey")


@pytest.fixture(params=DEPLOYMENTS)
def url(request: pytest.FixtureRequest) -> str:
    return url_of(request.param)


def _end(job: JobRecord, result: bytes | None, outcome: Outcome = Outcome.COMPLETE) -> Settlement:
    return Settlement(queue=job.queue, id=job.id, token=job.token or "", outcome=outcome, result=result)


async def _told(store: ValkeyBackend, *ends: Settlement) -> list[Completed] | None:
    """What somebody who waits is told when attempts end; None: to look."""
    heard: asyncio.Queue[list[Completed]] = asyncio.Queue()
    listener = store.listen_completed("q", heard.put_nowait)
    try:
        await store.execute(rq.Settle(items=list(ends)))
        told, hint = asyncio.create_task(heard.get()), asyncio.create_task(listener.wait(20_000))
        await asyncio.wait([told, hint], return_when=asyncio.FIRST_COMPLETED)
        assert told.done() != hint.done()
        hint.cancel()
        return told.result() if told.done() else None
    finally:
        told.cancel()
        listener.close()


@pytest.mark.feature("E2")
async def test_a_hint_tells_how_a_few_plain_jobs_completed(url: str) -> None:
    async with opened(url, timeout=30) as store:
        await add(store, new(job_id="one"), new(job_id="two"))
        one, two = await claim(store)
        told = await _told(store, _end(one, b'"first"'), _end(two, None))
        assert told is not None
        assert [(job.id, job.result, job.worker) for job in told] == [
            ("one", b'"first"', "w"),
            ("two", None, "w"),
        ]
        stored = (await store.execute(rq.GetJobs(refs=[one.ref])))[0]
        assert stored is not None
        assert (told[0].started_ms, told[0].finished_ms) == (stored.started_ms, stored.finished_ms)


@pytest.mark.feature("E2")
@pytest.mark.parametrize("case", ["many", "large", "failed", "special"])
async def test_a_hint_that_cannot_tell_everything_says_to_look(url: str, case: str) -> None:
    async with opened(url, timeout=30) as store:
        await add(store, *(new(priority=int(case == "special")) for _ in range(9 if case == "many" else 1)))
        jobs = await claim(store)
        outcome = Outcome.FAIL if case == "failed" else Outcome.COMPLETE
        result = b"1" * (300 if case == "large" else 1)
        assert await _told(store, *(_end(job, result, outcome) for job in jobs)) is None


def test_bytes_that_are_no_news_tell_nothing() -> None:
    assert records.completed(b"\x02abc") == []
    assert records.completed(b"\x01\x00\x03job\x00\x00\x00\x05\x01") == []


@pytest.mark.feature("E1", "E2")
async def test_a_caller_gets_its_answer_without_reading_the_job(url: str) -> None:
    app = Windlass(f"{url}?namespace={new_id()}")

    async def handler(job: Any) -> Any:
        if job.data == "bad":
            raise UnrecoverableError("no")
        return job.data

    async with app, Worker("calls", handler, url_or_app=app):
        backend, reads = app.store.backend, 0
        inner = backend.execute

        async def execute(request: rq.Request[Any]) -> Any:
            nonlocal reads
            reads += isinstance(request, rq.GetJobs)
            return await inner(request)

        backend.execute = execute  # type: ignore[method-assign]
        queue = app.queue("calls")
        for data in (1, None, "text", {"a": [1]}):
            assert await queue.add_and_wait("echo", data) == data
        assert reads == 0
        assert await queue.add_and_wait("echo", "x" * 500) == "x" * 500  # too long for a hint
        with pytest.raises(JobFailedError):
            await queue.add_and_wait("echo", "bad")
        assert reads >= 2
