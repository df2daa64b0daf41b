"""What a worker does while its store answers late, wrongly or not at all: leases, duties, reports."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from windlass import Job, JobState, Worker
from windlass.backend import requests as rq
from windlass.testing.faults import probing
from windlass_conformance.harness import Harness
from windlass_conformance.stage import Gate, LiveStage, Stage, eventually
from windlass_conformance.stop_support import gated

# --- leases -----------------------------------------------------------------------------------------------


@pytest.mark.feature("J24", "J3")
async def test_a_handler_is_stopped_before_its_lease_ends_while_a_renewal_is_pending(
    harness: Harness,
) -> None:
    async with Stage(harness) as stage:
        gate, stopped = Gate(), list[float]()

        async def handler(job: Job[Any]) -> None:
            try:
                await gate.pass_through()
            except asyncio.CancelledError:
                stopped.append(stage.clock.monotonic_ms())
                raise

        worker = await stage.work(handler, lease=30)
        lost: list[str] = []
        worker.on("lease_lost", lambda job: lost.append(job.id))
        stage.faults.hang(rq.Extend, times=1_000_000)
        job = await stage.queue.add("n")
        await gate.reached.wait()
        began = stage.clock.monotonic_ms()
        # The renewal stays pending; a driven clock would wait for it if it looked at calls under way.
        await stage.advance(26.9)
        assert not stopped
        await stage.advance(0.2)
        await eventually(lambda: (len(stopped), lost) == (1, [job.id]))
        assert stopped[0] - began <= 27_000


@pytest.mark.feature("J24", "J7")
@pytest.mark.parametrize("lease", [1, 2])
async def test_two_workers_never_run_one_job_at_once(harness: Harness, lease: int) -> None:
    async with LiveStage(harness) as stage, LiveStage(harness) as other:
        told: list[tuple[str, float]] = []
        gate, second = Gate(), asyncio.Event()

        async def first(job: Job[Any]) -> None:
            try:
                await gate.pass_through()
            finally:
                told.append(("stopped", time.monotonic()))

        async def heir(job: Job[Any]) -> None:
            told.append(("begun", time.monotonic()))
            second.set()

        worker = await stage.work(first, lease=lease)
        stage.faults.hang(rq.Extend, times=1_000_000)
        await stage.queue.add("n")
        await gate.reached.wait()
        worker.pause()
        await other.work(heir, duties=True, recover_every=0.05, poll=0.05)
        async with asyncio.timeout(20):
            await second.wait()
        assert [what for what, _ in told] == ["stopped", "begun"]


@pytest.mark.feature("J3")
async def test_renewing_goes_on_after_any_error(harness: Harness) -> None:
    async with LiveStage(harness) as stage:
        gate = Gate()
        stage.faults.crash(rq.Extend, times=2)
        with probing() as probe:
            worker = await stage.work(gated(gate), lease=6)
            lost: list[str] = []
            worker.on("lease_lost", lambda job: lost.append(job.id))
            job = await stage.queue.add("n")
            await gate.reached.wait()
            await eventually(lambda: probe.count("leases.renewing") >= 4, timeout=20)
        assert (lost, stage.faults.failed["Extend"]) == ([], 2)
        gate.open()
        assert await job.result(timeout=10) == "done"


# --- duties -----------------------------------------------------------------------------------------------


@pytest.mark.feature("J7", "Z14")
@pytest.mark.parametrize("how", ["hang", "refuse", "crash"])
async def test_recovery_does_not_wait_for_an_election_that_cannot_be_reached(
    harness: Harness, how: str
) -> None:
    async with Stage(harness) as stage:
        await harness.start("a", "mail", payload=b"{}")  # its worker never reports again
        ran: list[str] = []

        async def handler(job: Job[Any]) -> None:
            ran.append(job.id)

        stage.clock.set(harness.now_ms / 1000)
        getattr(stage.faults, how)(rq.Elect, times=1_000_000)
        worker = await stage.work(handler, duties=True, recover_every=5)
        await stage.advance(40)
        assert ran == ["a"]
        closing = asyncio.create_task(worker.close(force=True))
        await stage.advance(5)  # a stop does not wait for it either, but its time is the driven clock's
        await closing


@pytest.mark.feature("R3", "Z14")
async def test_a_heartbeat_recovers_its_pace_after_isolated_errors(harness: Harness) -> None:
    async with Stage(harness) as stage:
        await stage.work(gated(Gate()), heartbeat=10)
        await stage.settle()
        for _ in range(8):
            stage.faults.refuse(rq.Beat)
            before = stage.faults.sent["Beat"]
            await stage.advance(10.1)  # the beat that is refused ...
            await stage.advance(0.5)  # ... and the next one, soon after it
            assert stage.faults.sent["Beat"] == before + 2


# --- what users receive ----------------------------------------------------------------------------------


class Told:
    """Collects what a worker and its app report about the ends of attempts."""

    def __init__(self, stage: Stage) -> None:
        self.events: list[str] = []
        self.hooks: list[str] = []
        stage.app.use(self)

    def ended(self, job: Job[Any], end: Any) -> None:
        self.hooks.append(str(end.outcome))

    def listen(self, worker: Worker) -> None:
        for name in ("completed", "failed", "retrying", "cancelled", "released", "snoozed", "lease_lost"):
            worker.on(name, lambda *args, name=name: self.events.append(name))


@pytest.mark.feature("K2", "J14")
async def test_an_end_is_told_after_the_store_has_taken_it(harness: Harness) -> None:
    async with Stage(harness) as stage:
        told, let_go = Told(stage), asyncio.Event()
        worker = await stage.work(lambda job: "done")
        told.listen(worker)
        stage.faults.delay(rq.Settle, let_go)
        job = await stage.queue.add("n")
        await eventually(lambda: stage.faults.sent["Settle"] == 1)
        assert (told.events, told.hooks) == ([], [])
        let_go.set()
        assert await job.result() == "done"
        await eventually(lambda: bool(told.events))
        assert (told.events, told.hooks) == (["completed"], ["completed"])


@pytest.mark.feature("K2", "J14")
async def test_an_end_whose_reply_was_lost_is_told_once(harness: Harness) -> None:
    async with Stage(harness) as stage:
        told = Told(stage)
        worker = await stage.work(lambda job: "done")
        told.listen(worker)
        stage.faults.lose_reply(rq.Settle, times=2)
        job = await stage.queue.add("n")
        await eventually(lambda: stage.faults.failed["Settle"] == 1)
        await stage.advance(60)
        assert await job.is_completed()
        await eventually(lambda: bool(told.events))
        assert (told.events, told.hooks) == (["completed"], ["completed"])


@pytest.mark.feature("K2", "J24")
async def test_an_end_of_a_removed_job_is_told_as_a_lost_lease(harness: Harness) -> None:
    async with Stage(harness) as stage:
        told, gate = Told(stage), Gate()
        worker = await stage.work(gated(gate), lease=600)
        told.listen(worker)
        job = await stage.queue.add("n")
        await gate.reached.wait()
        await job.remove(force=True)
        gate.open()
        await eventually(lambda: bool(told.events))
        await stage.settle()
        assert (told.events, told.hooks) == (["lease_lost"], [])


@pytest.mark.feature("K2")
async def test_an_end_that_the_store_refused_is_told_as_the_failure_it_became(harness: Harness) -> None:
    async with Stage(harness) as stage:
        told, errors = Told(stage), list[BaseException]()
        worker = await stage.work(lambda job: "done")
        told.listen(worker)
        worker.on("failed", lambda job, error: errors.append(error))
        stage.faults.crash(rq.Settle, times=2)  # the batch, and the settlement alone
        job = await stage.queue.add("n")
        await eventually(lambda: bool(told.events))
        assert (told.events, told.hooks) == (["failed"], ["failed"])
        assert "the store refused" in str(errors[0])
        assert await job.get_state() is JobState.FAILED
