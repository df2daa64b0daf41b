"""The live output of a running job."""

from __future__ import annotations

import asyncio

import pytest

from windlass.backend import requests as rq
from windlass.backend import stream_requests as sm
from windlass.core.job import JobRecord, JobRef
from windlass.core.outcome import Changed, Outcome
from windlass.core.states import JobState
from windlass.core.stream_rules import STREAM_BYTES, STREAM_CHUNKS
from windlass_conformance.harness import QUEUE, Harness

NEEDS = "streams"


async def append(harness: Harness, job: JobRecord, first: int, *chunks: bytes) -> Changed:
    request = sm.AppendStream(ref=job.ref, token=job.token or "", first=first, chunks=list(chunks))
    return (await harness.do(request)).status


async def read(harness: Harness, after: int = 0, limit: int = 1_000, job_id: str = "a") -> sm.StreamPage:
    return await harness.do(sm.ReadStream(ref=JobRef(QUEUE, job_id), after=after, limit=limit))


def data(page: sm.StreamPage) -> list[tuple[int, bytes]]:
    return [(chunk.index, chunk.data) for chunk in page.chunks]


@pytest.mark.feature("E10")
async def test_chunks_are_numbered_and_read_in_order(harness: Harness) -> None:
    job = await harness.start("a")
    assert await append(harness, job, 1, b"one", b"two") is Changed.OK
    assert await append(harness, job, 3, b"three") is Changed.OK
    page = await read(harness)
    assert data(page) == [(1, b"one"), (2, b"two"), (3, b"three")]
    assert (page.last, page.oldest, page.state, page.codec) == (3, 1, JobState.ACTIVE, "json")
    assert data(await read(harness, after=1, limit=1)) == [(2, b"two")]
    assert data(await read(harness, after=3)) == []


@pytest.mark.feature("E10", "Z14")
async def test_chunks_that_are_sent_again_are_kept_once(harness: Harness) -> None:
    job = await harness.start("a")
    for _ in range(2):
        await append(harness, job, 1, b"one", b"two")
    await append(harness, job, 2, b"two", b"three")
    assert data(await read(harness)) == [(1, b"one"), (2, b"two"), (3, b"three")]


@pytest.mark.feature("E10")
async def test_only_the_newest_lease_may_append(harness: Harness) -> None:
    old = await harness.start("a")
    await harness.settle(old, Outcome.RELEASE)
    assert await append(harness, old, 1, b"late") is Changed.LOST
    assert (await read(harness)).last == 0
    ghost = JobRecord(queue=QUEUE, id="ghost", task="t", payload=b"", token="x")
    assert await append(harness, ghost, 1, b"x") is Changed.NOT_FOUND


@pytest.mark.feature("E10")
async def test_the_next_attempt_goes_on_where_the_last_one_stopped(harness: Harness) -> None:
    job = await harness.start("a")
    await append(harness, job, 1, b"one", b"two")
    await harness.settle(job, Outcome.RETRY)
    again = await harness.take()
    for _ in range(2):
        await append(harness, again, 1, b"anew")
    page = await read(harness)
    assert [(chunk.index, chunk.delivery, chunk.data) for chunk in page.chunks] == [
        (1, 1, b"one"),
        (2, 1, b"two"),
        (3, 2, b"anew"),
    ]


@pytest.mark.feature("E10")
async def test_the_output_of_a_finished_job_can_be_read(harness: Harness) -> None:
    job = await harness.start("a")
    await append(harness, job, 1, b"one")
    await harness.settle(job, Outcome.COMPLETE)
    page = await read(harness)
    assert (data(page), page.state) == ([(1, b"one")], JobState.COMPLETED)


@pytest.mark.feature("E10", "A24")
async def test_the_output_goes_with_the_job(harness: Harness) -> None:
    job = await harness.start("a")
    await append(harness, job, 1, b"one")
    await harness.settle(job, Outcome.FAIL)
    await harness.do(rq.RemoveJobs(refs=[job.ref]))
    page = await read(harness)
    assert (page.chunks, page.last, page.state) == ([], 0, None)
    await harness.add("a")
    assert (await read(harness)).last == 0


@pytest.mark.feature("E10")
async def test_too_many_chunks_push_the_oldest_out(harness: Harness) -> None:
    job = await harness.start("a")
    for first in range(1, STREAM_CHUNKS + 501, 500):
        await append(harness, job, first, *(b"%d" % n for n in range(first, first + 500)))
    page = await read(harness, limit=2)
    assert (page.last, page.oldest) == (STREAM_CHUNKS + 500, 501)
    assert data(page) == [(501, b"501"), (502, b"502")]
    assert data(await read(harness, after=STREAM_CHUNKS + 499)) == [(10_500, b"10500")]


@pytest.mark.feature("E10")
async def test_too_many_bytes_push_the_oldest_out(harness: Harness) -> None:
    job = await harness.start("a")
    half = b"x" * (STREAM_BYTES // 2)
    for first in range(1, 4):
        await append(harness, job, first, half)
    page = await read(harness)
    assert (page.last, page.oldest, [chunk.index for chunk in page.chunks]) == (3, 2, [2, 3])


@pytest.mark.feature("E10")
async def test_output_wakes_its_readers(harness: Harness) -> None:
    job = await harness.start("a")
    listener = (await harness.clone()).listen([f"stream:{QUEUE}"])
    try:
        await append(harness, job, 1, b"one")
        async with asyncio.timeout(10):
            assert await listener.wait(9_000) == {f"stream:{QUEUE}"}
    finally:
        listener.close()


@pytest.mark.feature("E10")
async def test_output_and_log_lines_survive_reopening(harness: Harness) -> None:
    job = await harness.start("a")
    await append(harness, job, 1, b"one", b"two")
    await harness.do(rq.Report(ref=job.ref, logs=["first", "second"]))
    await harness.reopen()
    await append(harness, job, 3, b"three")
    await harness.do(rq.Report(ref=job.ref, logs=["third"]))
    assert data(await read(harness)) == [(1, b"one"), (2, b"two"), (3, b"three")]
    assert (await harness.do(rq.GetLogs(ref=job.ref))).lines == ["first", "second", "third"]
