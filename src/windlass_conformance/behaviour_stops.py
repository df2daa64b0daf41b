"""Stops and waits of a worker end in time, whatever the store does.

Where a driven clock would change the path (threads, timers), these tests run on the system's clock.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from windlass import Job, JobState
from windlass.backend import requests as rq
from windlass_conformance.harness import Harness
from windlass_conformance.stage import Gate, LiveStage, eventually, in_time
from windlass_conformance.stop_support import BOUND, HASTY, gated, threads

#: A worker that would wait very long if it was not woken.
PATIENT: dict[str, Any] = {"grace": 600, "cancel_wait": 600}


# --- cancelling run() and drain() -----------------------------------------------------------------------


@pytest.mark.feature("V2")
@pytest.mark.parametrize("verb", ["run", "drain"])
async def test_cancelling_a_running_worker_is_a_graceful_close(harness: Harness, verb: str) -> None:
    async with LiveStage(harness) as stage:
        gate, ran, before = Gate(), list[str](), threads()
        worker = await stage.work(gated(gate, ran), **PATIENT)
        job = await stage.queue.add("n")
        await gate.reached.wait()
        running = asyncio.create_task(getattr(worker, verb)())
        await asyncio.sleep(0)  # its first step
        running.cancel()
        await eventually(lambda: not worker.is_running)
        assert not running.done()
        gate.open()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (await job.result(timeout=5), ran) == ("done", [job.id])
        await worker.close()
        await eventually(lambda: threads() <= before)
        assert worker.left_behind == []


@pytest.mark.feature("V2", "V3")
async def test_what_ended_before_a_cancel_is_settled(harness: Harness) -> None:
    async with LiveStage(harness) as stage:
        let_go, ran = asyncio.Event(), list[str]()
        stage.faults.delay(rq.Settle, let_go)
        worker = await stage.work(lambda job: ran.append(job.id), **PATIENT)
        job = await stage.queue.add("n")
        await eventually(lambda: stage.faults.sent["Settle"] == 1)
        running = asyncio.create_task(worker.run())
        await asyncio.sleep(0)  # its first step
        running.cancel()
        await eventually(lambda: not worker.is_running)
        let_go.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        await job.refresh()
        assert (job.state, ran) == (JobState.COMPLETED, [job.id])


@pytest.mark.feature("V2", "V5")
async def test_a_second_cancel_releases_at_once(harness: Harness) -> None:
    async with LiveStage(harness) as stage:
        gate = Gate()
        worker = await stage.work(gated(gate), **PATIENT)
        job = await stage.queue.add("n")
        await gate.reached.wait()
        running = asyncio.create_task(worker.run())
        await asyncio.sleep(0)  # its first step
        running.cancel()
        await eventually(lambda: not worker.is_running)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await job.refresh()
        assert (job.state, job.attempts) == (JobState.WAITING, 0)
        await worker.close()


@pytest.mark.feature("V2")
async def test_cancelling_a_close_hurries_it(harness: Harness) -> None:
    async with LiveStage(harness) as stage:
        gate = Gate()
        worker = await stage.work(gated(gate), **PATIENT)
        job = await stage.queue.add("n")
        await gate.reached.wait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(worker.close(), 0.05)
        assert await job.is_waiting()
        await worker.close()


# --- the bound ------------------------------------------------------------------------------------------


@pytest.mark.feature("V2", "V3")
@pytest.mark.parametrize("pending", ["Claim", "Settle", "Beat", "Elect", "Extend", "Request"])
async def test_a_stop_ends_in_time_when_the_store_does_not_answer(harness: Harness, pending: str) -> None:
    async with LiveStage(harness) as stage:
        gate = Gate()
        worker = await stage.work(gated(gate), lease=1, duties=True, **HASTY)
        await stage.queue.add("n")
        await gate.reached.wait()
        sent = stage.faults.sent.total()
        stage.faults.hang(getattr(rq, pending), times=1_000_000)
        if pending == "Claim":
            worker.resume()
        gate.open()
        assert await in_time(worker.close()) < BOUND + 0.5
        assert not worker.is_running
        if pending in ("Settle", "Request"):
            assert worker.left_behind
        assert stage.faults.sent.total() >= sent
        await worker.close()
        stage.faults.heal()


@pytest.mark.feature("V2", "V3")
@pytest.mark.parametrize("busy", [True, False])
async def test_a_forced_close_ends_though_the_store_refuses_every_call(harness: Harness, busy: bool) -> None:
    """The store refuses without a turn of the loop: a worker that tried again at once would hold the loop."""
    async with LiveStage(harness) as stage:
        gate = Gate()
        worker = await stage.work(gated(gate), lease=5, poll=0.05)
        if busy:
            await stage.queue.add("n")
            await gate.reached.wait()
        refused = asyncio.Event()
        worker.on("error", lambda exc: refused.set())
        stage.faults.refuse(rq.Request, times=1_000_000)
        worker.resume()
        async with asyncio.timeout(20):
            await refused.wait()
        assert await in_time(worker.close(force=True)) < 2.5
        stage.faults.heal()


@pytest.mark.feature("V2", "V3")
async def test_a_stop_does_not_wait_for_a_duty_that_has_much_to_do(harness: Harness) -> None:
    """After many jobs there is much to prune and to roll up: a stop comes between two steps of it."""
    async with LiveStage(harness) as stage:
        much, asked = stage.faults.execute, 0

        async def endless(request: rq.Request[Any]) -> Any:
            nonlocal asked
            answer = await much(request)
            if isinstance(request, rq.Prune):
                asked += 1
                answer.more = True
            return answer

        stage.faults.execute = endless  # type: ignore[method-assign]
        worker = await stage.work(lambda job: "ran", duties=True, prune_every=0.01, **PATIENT)
        assert await (await stage.queue.add("n")).result(timeout=10) == "ran"
        await eventually(lambda: asked > 3)
        assert await in_time(worker.close()) < 2
        assert worker.left_behind == []


@pytest.mark.feature("V2", "V3", "J7")
async def test_what_a_stop_abandons_runs_elsewhere_when_its_lease_is_over(harness: Harness) -> None:
    async with LiveStage(harness) as stage:
        gate, told = Gate(), list[str]()
        worker = await stage.work(gated(gate), lease=1, **HASTY)
        worker.on("completed", lambda job, result: told.append("completed"))
        worker.on("lease_lost", lambda job: told.append("lease_lost"))
        job = await stage.queue.add("n")
        await gate.reached.wait()
        stage.faults.hang(rq.Settle, times=1_000_000)
        gate.open()
        await worker.close()
        assert worker.left_behind == ["the answer to Settle"]
        assert (await job.get_state(), told) == (JobState.ACTIVE, ["lease_lost"])
        stage.faults.heal()
        await stage.work(gated(gate), duties=True, recover_every=0.1, poll=0.1)
        assert await job.result(timeout=20) == "done"
        assert job.stalled_count == 1


@pytest.mark.feature("V2", "V5")
async def test_a_thread_that_does_not_stop_is_left_behind_and_named(harness: Harness) -> None:
    async with LiveStage(harness) as stage:
        begun, go_on = threading.Event(), threading.Event()

        def stubborn(job: Job[Any]) -> None:
            begun.set()
            go_on.wait(30)

        worker = await stage.work(stubborn, **HASTY)
        job = await stage.queue.add("n")
        await eventually(begun.is_set)
        try:
            assert await in_time(worker.close()) < BOUND + 0.5
            assert worker.left_behind == [f"job {job.id} (n)"]
            assert await job.is_waiting()
        finally:  # else a failure here would also leave the thread and its attempt to the next tests
            go_on.set()
            await eventually(
                lambda: not [task for task in asyncio.all_tasks() if "Attempt.run" in repr(task)]
            )
