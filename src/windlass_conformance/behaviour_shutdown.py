"""Stopping: nothing lost, nothing doubled, no attempt spent."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

from windlass import Job, JobState, graceful_shutdown
from windlass.backend import requests as rq
from windlass_conformance.harness import Harness
from windlass_conformance.stage import Gate, Stage, eventually


def gated(gate: Gate) -> Any:
    async def handler(job: Job[Any]) -> str:
        await gate.pass_through()
        return "done"

    return handler


@pytest.mark.feature("V2", "V4")
async def test_closing_waits_for_running_jobs_and_claims_no_more(harness: Harness) -> None:
    async with Stage(harness) as stage:
        gate = Gate()
        worker = await stage.work(gated(gate), concurrency=1)
        running, waiting = await stage.queue.add("n"), await stage.queue.add("n")
        await gate.reached.wait()
        closing = asyncio.create_task(worker.close())
        await stage.settle()
        assert not closing.done()
        gate.open()
        await closing
        assert await running.result() == "done"
        assert await waiting.is_waiting()
        assert not worker.is_running


@pytest.mark.feature("V2", "V3", "V5", "J8")
async def test_a_job_that_outlasts_the_grace_is_cancelled_and_given_back(harness: Harness) -> None:
    async with Stage(harness) as stage:
        gate = Gate()
        worker = await stage.work(gated(gate), grace=20, cancel_wait=5)
        job = await stage.queue.add("n")
        await gate.reached.wait()
        closing = asyncio.create_task(worker.close())
        await stage.advance(19.9)
        assert await job.is_active()
        await stage.advance(0.2)
        await closing
        await job.refresh()
        assert (job.state, job.attempts, job.deliveries) == (JobState.WAITING, 0, 1)
        assert (job.stalled_count, job.errors) == (0, [])


@pytest.mark.feature("V5")
async def test_a_given_back_job_keeps_its_place_in_line(harness: Harness) -> None:
    async with Stage(harness) as stage:
        gate = Gate()
        worker = await stage.work(gated(gate), concurrency=1)
        for name in ("first", "second"):
            await stage.queue.add(name)
        await gate.reached.wait()
        await worker.close(force=True)
        ran: list[str] = []
        await (await stage.work(lambda job: ran.append(job.name), concurrency=1)).drain()
        assert ran == ["first", "second"]


@pytest.mark.feature("V2", "V3")
async def test_a_forced_close_waits_for_nothing(harness: Harness) -> None:
    async with Stage(harness) as stage:
        gate = Gate()
        worker = await stage.work(gated(gate))
        job = await stage.queue.add("n")
        await gate.reached.wait()
        before = stage.clock.now_ms()
        await worker.close(force=True)
        assert stage.clock.now_ms() == before
        assert await job.is_waiting()


@pytest.mark.feature("V2")
async def test_a_second_forced_close_hurries_the_first(harness: Harness) -> None:
    async with Stage(harness) as stage:
        gate = Gate()
        worker = await stage.work(gated(gate))
        job = await stage.queue.add("n")
        await gate.reached.wait()
        closing = asyncio.create_task(worker.close())
        await stage.settle()
        await worker.close(force=True)
        await closing
        assert await job.is_waiting()


@pytest.mark.feature("V2", "V5")
async def test_a_handler_that_cleans_up_when_cancelled_may_still_finish(harness: Harness) -> None:
    async with Stage(harness) as stage:
        gate = Gate()

        async def handler(job: Job[Any]) -> str:
            try:
                await gate.pass_through()
            except asyncio.CancelledError:
                return "finished in a hurry"
            return "not reached"

        worker = await stage.work(handler, grace=0)
        job = await stage.queue.add("n")
        await gate.reached.wait()
        await worker.close()
        assert await job.result() == "finished in a hurry"


@pytest.mark.feature("V2")
async def test_closing_is_legal_at_any_time_and_as_often_as_one_likes(harness: Harness) -> None:
    async with Stage(harness) as stage:
        worker = await stage.work(gated(Gate()))
        await worker.close()
        await worker.close()
        await worker.close(force=True)
        unused = await stage.work(gated(Gate()))
        await unused.close(force=True)


@pytest.mark.feature("V2", "K2")
async def test_a_worker_tells_that_it_closes(harness: Harness) -> None:
    async with Stage(harness) as stage:
        told: list[str] = []
        worker = await stage.work(gated(Gate()))
        worker.on("closing", lambda: told.append("closing"))
        worker.on("closed", lambda: told.append("closed"))
        await worker.close()
        assert told == ["closing", "closed"]


@pytest.mark.feature("R3", "V3")
async def test_a_closed_worker_is_no_longer_listed(harness: Harness) -> None:
    async with Stage(harness) as stage:
        worker = await stage.work(gated(Gate()))
        await stage.settle()
        assert len(await stage.app.workers()) == 1
        await worker.close()
        assert await stage.app.workers() == []


@pytest.mark.feature("V3")
async def test_jobs_that_are_claimed_while_a_worker_closes_go_back_at_once(harness: Harness) -> None:
    async with Stage(harness) as stage:
        job = await stage.queue.add("n")
        let_go, gate = asyncio.Event(), Gate()
        stage.faults.delay(rq.Claim, let_go)
        worker = await stage.work(gated(gate), concurrency=1)
        await eventually(lambda: stage.faults.sent["Claim"] == 1)
        closing = asyncio.create_task(worker.close())
        await stage.settle()
        let_go.set()
        await closing
        assert gate.count == 0
        await job.refresh()
        assert (job.state, job.attempts) == (JobState.WAITING, 0)


@pytest.mark.feature("V2")
async def test_a_claim_that_is_answered_after_the_end_began_gives_its_jobs_back(harness: Harness) -> None:
    async with Stage(harness) as stage:
        gate, answer = Gate(), asyncio.Event()
        job = await stage.queue.add("n")
        stage.faults.delay(rq.Claim, answer)
        worker = await stage.work(gated(gate), concurrency=1)
        await stage.settle()
        assert stage.faults.sent["Claim"] == 1
        closing = asyncio.create_task(worker.close(force=True))
        await stage.settle()
        answer.set()
        async with asyncio.timeout(20):
            await closing
        assert (await job.get_state(), gate.reached.is_set()) == (JobState.WAITING, False)


@pytest.mark.feature("V1")
async def test_a_signal_closes_everything_in_the_order_given(harness: Harness) -> None:
    closed: list[str] = []

    class Part:
        def __init__(self, name: str) -> None:
            self.name = name

        async def close(self) -> None:
            closed.append(self.name)

    async with Stage(harness) as stage:
        gate = Gate()
        worker = await stage.work(gated(gate))
        job = await stage.queue.add("n")
        await gate.reached.wait()
        waiting = asyncio.create_task(graceful_shutdown(worker, Part("queue"), Part("app")))
        await asyncio.sleep(0)  # its handlers are in place now
        os.kill(os.getpid(), signal.SIGTERM)
        await eventually(lambda: not worker.is_running)
        assert not closed  # the worker comes first, and waits for its job
        gate.open()
        await waiting
        assert closed == ["queue", "app"]
        assert await job.result() == "done"
