"""The live output of a running job, as users see it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from windlass import Job, JobNotFoundError, JobState, Retry
from windlass.backend import stream_requests as sm
from windlass.errors import HistoryTrimmedError
from windlass.jobs import StreamChunk
from windlass.testing.kit import drain
from windlass_conformance.harness import Harness
from windlass_conformance.stage import Stage

NEEDS = "streams"


async def read_all(stage: Stage, job_id: str, after: int = 0) -> list[StreamChunk]:
    return [chunk async for chunk in stage.queue.read_stream(job_id, after)]


@pytest.mark.feature("E10")
async def test_a_reader_sees_every_chunk_in_order_while_the_job_runs(harness: Harness) -> None:
    async with Stage(harness) as stage:
        gate = asyncio.Event()
        seen: list[Any] = []

        async def talk(job: Job[Any]) -> str:
            for n in range(10):
                await job.stream({"n": n})
            await gate.wait()
            await job.stream("a", "b")
            return "done"

        job = await stage.queue.add("n")
        await stage.work(talk)
        async for chunk in stage.queue.read_stream(job.id):
            seen.append(chunk.value)
            if len(seen) == 10:
                assert await job.get_state() is JobState.ACTIVE
                gate.set()
        assert seen == [*({"n": n} for n in range(10)), "a", "b"]
        assert await job.result() == "done"


@pytest.mark.feature("E10", "Z14")
async def test_a_reader_goes_on_after_it_was_cut_off(harness: Harness) -> None:
    async with Stage(harness) as stage:
        job = await stage.queue.add("n")
        gate = asyncio.Event()

        async def talk(job: Job[Any]) -> None:
            await job.stream(*range(1_200))
            await gate.wait()
            await job.stream(*range(1_200, 2_000))

        await stage.work(talk)
        first: list[StreamChunk] = []
        async for chunk in stage.queue.read_stream(job.id):
            first.append(chunk)
            if len(first) == 700:
                break
        await stage.faults.close()
        await stage.faults.open()
        gate.set()
        rest = await read_all(stage, job.id, after=first[-1].index)
        assert [chunk.value for chunk in first + rest] == list(range(2_000))
        assert [chunk.index for chunk in first + rest] == list(range(1, 2_001))


@pytest.mark.feature("E10", "Z14")
async def test_lost_replies_double_and_drop_no_chunk(harness: Harness) -> None:
    async with Stage(harness) as stage:

        async def talk(job: Job[Any]) -> None:
            for n in range(20):
                await job.stream(n)

        job = await stage.queue.add("n")
        stage.faults.lose_reply(sm.AppendStream, times=2)
        stage.faults.refuse(sm.AppendStream, times=1, skip=5)
        stage.faults.refuse(sm.ReadStream, times=1)
        await stage.work(talk)
        reading = asyncio.create_task(read_all(stage, job.id))
        await stage.until_state(job, JobState.COMPLETED)
        await stage.advance(5)
        assert [chunk.value for chunk in await reading] == list(range(20))


@pytest.mark.feature("E10")
async def test_a_second_run_goes_on_behind_the_first(harness: Harness) -> None:
    async with Stage(harness) as stage:

        async def talk(job: Job[Any]) -> None:
            await job.stream(f"run {job.attempt}")
            if job.attempt == 1:
                raise Retry

        job = await stage.queue.add("n")
        await drain(await stage.work(talk))
        found = [(chunk.index, chunk.delivery, chunk.value) for chunk in await read_all(stage, job.id)]
        assert found == [(1, 1, "run 1"), (2, 2, "run 2")]


@pytest.mark.feature("E10")
async def test_chunks_sent_side_by_side_are_all_there(harness: Harness) -> None:
    async with Stage(harness) as stage:

        async def talk(job: Job[Any]) -> None:
            await asyncio.gather(*(job.stream(n) for n in range(50)))

        job = await stage.queue.add("n")
        await drain(await stage.work(talk))
        assert [chunk.value for chunk in await read_all(stage, job.id)] == list(range(50))


@pytest.mark.feature("E10")
async def test_a_plain_function_streams_too(harness: Harness) -> None:
    async with Stage(harness) as stage:

        def talk(job: Job[Any]) -> None:
            job.sync.stream("one")
            job.sync.stream("two")

        job = await stage.queue.add("n")
        await drain(await stage.work(talk))
        assert [chunk.value for chunk in await read_all(stage, job.id)] == ["one", "two"]


@pytest.mark.feature("E10")
async def test_a_reader_is_told_of_what_is_not_kept(harness: Harness) -> None:
    async with Stage(harness) as stage:

        async def talk(job: Job[Any]) -> None:
            await job.stream(*range(10_010))

        job = await stage.queue.add("n")
        await drain(await stage.work(talk))
        with pytest.raises(HistoryTrimmedError) as caught:
            await read_all(stage, job.id)
        assert caught.value.oldest == 11
        found = [chunk.value async for chunk in stage.queue.read_stream(job.id, skip_gap=True)]
        assert found == list(range(10, 10_010))


@pytest.mark.feature("E10")
async def test_the_output_of_nobody(harness: Harness) -> None:
    async with Stage(harness) as stage:
        with pytest.raises(JobNotFoundError):
            await read_all(stage, "ghost")
        job = await stage.queue.add("n")
        await job.cancel()
        assert await read_all(stage, job.id) == []
