"""Cancelling pending and running jobs, on event loops and in threads."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from windlass import ConfigError, Job, JobCancelledError, JobState
from windlass.jobs import CancelResult
from windlass.jobs.abort import AbortSignal
from windlass_conformance.harness import Harness
from windlass_conformance.stage import Gate, Stage


async def forever(job: Job[Any]) -> None:
    await asyncio.Event().wait()


@pytest.mark.feature("F1", "F2", "F5")
async def test_a_pending_job_is_cancelled_and_whoever_waits_is_told(harness: Harness) -> None:
    async with Stage(harness) as stage:
        job = await stage.queue.add("n", delay=60)
        waiting = asyncio.create_task(job.result())
        await stage.settle()
        assert await job.cancel("no need") is CancelResult.CANCELLED
        with pytest.raises(JobCancelledError) as caught:
            await waiting
        assert caught.value.reason == "no need"


@pytest.mark.feature("F2", "F3", "F5")
async def test_a_running_job_is_stopped_by_a_cancel_from_elsewhere(harness: Harness) -> None:
    async with Stage(harness) as stage:
        gate = Gate()
        seen: list[Any] = []

        async def handler(job: Job[Any]) -> None:
            try:
                await gate.pass_through()
            except asyncio.CancelledError:
                seen.append(job.abort_signal.reason if job.abort_signal else None)
                raise

        await stage.work(handler)
        job = await stage.queue.add("n")
        await gate.reached.wait()
        assert await stage.queue.cancel(job.id, "stop it") is CancelResult.CANCELLING
        assert await job.wait_until_finished() is JobState.CANCELLED
        assert (job.reason, seen, job.attempts) == ("stop it", ["cancel"], 0)


@pytest.mark.feature("F2")
async def test_a_cancel_reaches_the_worker_without_time_passing(harness: Harness) -> None:
    async with Stage(harness) as stage:
        await stage.work(forever)
        job = await stage.queue.add("n")
        await stage.until_state(job, JobState.ACTIVE)
        before = stage.clock.now_ms()
        await job.cancel()
        await job.wait_until_finished()
        assert stage.clock.now_ms() == before


@pytest.mark.feature("F2", "F3")
async def test_a_plain_function_sees_the_signal_and_may_stop(harness: Harness) -> None:
    async with Stage(harness) as stage:
        started = threading.Event()

        def handler(job: Job[Any]) -> str:
            started.set()
            assert job.abort_signal is not None
            return "stopped" if job.abort_signal.wait(10) else "never asked"

        await stage.work(handler)
        job = await stage.queue.add("n")
        await asyncio.to_thread(started.wait, 10)
        await job.cancel()
        await job.wait_until_finished()
        assert job.state in (JobState.CANCELLED, JobState.COMPLETED)
        assert job.return_value != "never asked"


@pytest.mark.feature("F2")
async def test_a_job_that_swallows_the_cancel_and_completes_has_completed(harness: Harness) -> None:
    async with Stage(harness) as stage:
        gate = Gate()

        async def handler(job: Job[Any]) -> str:
            try:
                await gate.pass_through()
            except asyncio.CancelledError:
                return "finished anyway"
            return "not reached"

        await stage.work(handler)
        job = await stage.queue.add("n")
        await gate.reached.wait()
        await job.cancel()
        assert await job.result() == "finished anyway"


@pytest.mark.feature("F4")
async def test_a_worker_aborts_a_job_that_runs_there(harness: Harness) -> None:
    async with Stage(harness) as stage:
        gate = Gate()

        async def handler(job: Job[Any]) -> None:
            await gate.pass_through()

        worker = await stage.work(handler)
        job = await stage.queue.add("n")
        await gate.reached.wait()
        assert worker.abort_job("no-such-job") is False
        assert worker.abort_job(job.id) is True
        assert await job.wait_until_finished() is JobState.CANCELLED


@pytest.mark.feature("F2")
async def test_a_cancelled_slot_is_free_for_the_next_job(harness: Harness) -> None:
    async with Stage(harness) as stage:

        async def handler(job: Job[Any]) -> str:
            if job.data == "long":
                await forever(job)
            return "ran"

        await stage.work(handler, concurrency=1)
        long = await stage.queue.add("n", "long")
        short = await stage.queue.add("n", "short")
        await stage.until_state(long, JobState.ACTIVE)
        await long.cancel()
        assert await short.result() == "ran"


@pytest.mark.feature("F2", "A27")
async def test_a_job_tells_that_it_was_revoked(harness: Harness) -> None:
    async with Stage(harness) as stage:
        gate, told = Gate(), asyncio.Event()

        async def handler(job: Job[Any]) -> None:
            try:
                await gate.pass_through()
            except asyncio.CancelledError:
                told.set()
                await gate.opened.wait()
                raise

        await stage.work(handler)
        job = await stage.queue.add("n")
        await gate.reached.wait()
        assert not await job.is_revoked()
        await stage.queue.revoke(job.id)
        assert await job.is_revoked()
        await told.wait()
        gate.open()
        assert await job.wait_until_finished() is JobState.CANCELLED


@pytest.mark.feature("F3", "F4")
async def test_a_job_aborted_by_its_worker_keeps_the_reason(harness: Harness) -> None:
    async with Stage(harness) as stage:
        gate, seen = Gate(), list[tuple[str, str]]()

        async def watch(signal: AbortSignal) -> None:
            seen.append((await signal, signal.detail))

        async def handler(job: Job[Any]) -> None:
            assert job.abort_signal is not None
            job.context.append(asyncio.create_task(watch(job.abort_signal)))
            await gate.pass_through()

        watchers: list[asyncio.Task[None]] = []
        worker = await stage.work(handler, context=watchers)
        job = await stage.queue.add("n")
        await gate.reached.wait()
        assert worker.abort_job(job.id, "no longer wanted")
        assert await job.wait_until_finished() is JobState.CANCELLED
        assert (job.reason, job.attempts) == ("no longer wanted", 0)
        await asyncio.gather(*watchers)
        assert seen == [("cancel", "no longer wanted")]
        with pytest.raises(ConfigError, match="a text"):
            worker.abort_job(job.id, 7)  # type: ignore[arg-type]
