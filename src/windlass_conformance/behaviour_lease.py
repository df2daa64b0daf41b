"""Leases of a worker: renewed while it runs, recovered when it stops reporting, fenced when it returns."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from windlass import Job, JobState, LeaseLostError
from windlass.backend import requests as rq
from windlass_conformance.harness import Harness
from windlass_conformance.stage import Gate, Stage, eventually


def gated(gate: Gate) -> Any:
    async def handler(job: Job[Any]) -> str:
        await gate.pass_through()
        return "done"

    return handler


@pytest.mark.feature("J3")
async def test_a_long_job_keeps_its_lease_and_runs_once(harness: Harness) -> None:
    async with Stage(harness) as stage:
        gate = Gate()
        await stage.work(gated(gate), lease=30, duties=True, recover_every=15)
        job = await stage.queue.add("n")
        await gate.reached.wait()
        await stage.advance(600)
        assert (gate.count, await job.get_state()) == (1, JobState.ACTIVE)
        gate.open()
        assert await job.result() == "done"
        assert (job.deliveries, job.stalled_count) == (1, 0)


@pytest.mark.feature("J3", "J7", "C18")
async def test_the_job_of_a_silent_worker_runs_elsewhere(harness: Harness) -> None:
    async with Stage(harness) as stage:
        lost = await harness.start("a", "mail", payload=b"{}")  # a worker that never reports again
        ran: list[tuple[str, int]] = []

        async def handler(job: Job[Any]) -> None:
            ran.append((job.id, job.deliveries))

        stage.clock.set(harness.now_ms / 1000)
        await stage.work(handler, duties=True, recover_every=15)
        await stage.advance(29)
        assert ran == []
        await stage.advance(31)
        assert ran == [("a", 2)]
        job = await stage.queue.get_job("a")
        assert job is not None and (job.state, job.stalled_count) == (JobState.COMPLETED, 1)
        assert lost.deliveries == 1


@pytest.mark.feature("C18", "J3")
async def test_a_job_with_a_stall_delay_runs_again_after_its_rest(harness: Harness) -> None:
    async with Stage(harness) as stage:
        stage.clock.set(harness.now_ms / 1000)
        job = await stage.queue.add("n", job_id="a", stall_delay=300)
        await harness.take("mail")  # a worker that never reports again
        ran: list[int] = []

        async def handler(job: Job[Any]) -> None:
            ran.append(job.deliveries)

        await stage.work(handler, duties=True, recover_every=15)
        await stage.advance(60)
        assert (ran, await job.get_state()) == ([], JobState.RETRYING)
        await stage.advance(300)
        assert (ran, await job.get_state()) == ([2], JobState.COMPLETED)


@pytest.mark.feature("C18", "J3")
async def test_a_job_whose_workers_all_went_silent_fails_as_stalled(harness: Harness) -> None:
    async with Stage(harness) as stage:
        stage.clock.set(harness.now_ms / 1000)
        await stage.queue.add("n", job_id="a", max_stalls=1)
        told: list[str] = []
        worker = await stage.work(lambda job: None, "other", duties=True, recover_every=15)
        worker.on("stalled", told.append)
        for _ in range(2):
            harness.now_ms = stage.clock.now_ms()
            await harness.take("mail")
            await stage.advance(60)
        job = await stage.queue.get_job("a")
        assert job is not None and (job.state, job.reason) == (JobState.FAILED, "stalled")
        assert told == ["a", "a"]


@pytest.mark.feature("J24", "J3")
async def test_a_worker_that_could_not_renew_stops_its_handler_by_its_own_clock(harness: Harness) -> None:
    async with Stage(harness) as stage:
        gate, stopped = Gate(), list[str]()

        async def handler(job: Job[Any]) -> None:
            try:
                await gate.pass_through()
            except asyncio.CancelledError:
                stopped.append(str(job.abort_signal.reason if job.abort_signal else ""))
                raise

        worker = await stage.work(handler, lease=30)
        lost: list[str] = []
        worker.on("lease_lost", lambda job: lost.append(job.id))
        job = await stage.queue.add("n")
        await gate.reached.wait()
        stage.faults.refuse(rq.Extend, times=10_000)
        await stage.advance(35)
        await eventually(lambda: bool(lost))
        assert (stopped, lost) == (["lost"], [job.id])
        assert await job.is_active()


@pytest.mark.feature("J24")
async def test_a_late_worker_changes_nothing(harness: Harness) -> None:
    async with Stage(harness) as stage:
        gate, errors = Gate(), list[BaseException]()

        async def handler(job: Job[Any]) -> str:
            await gate.pass_through()
            try:
                await job.update_progress(100)
            except LeaseLostError as exc:
                errors.append(exc)
            return "late"

        worker = await stage.work(handler, lease=30)
        job = await stage.queue.add("n")
        await gate.reached.wait()
        worker.pause()
        # Another worker takes the job away behind the worker's back.
        harness.now_ms = stage.clock.now_ms() + 30_000
        await harness.do(rq.Recover())
        async with asyncio.timeout(10):
            while not (found := await harness.claim(1, "mail", worker="other")):  # noqa: ASYNC110
                await asyncio.sleep(0.01)  # where the worker's own connection drops it first
        other = found[0]
        gate.open()
        await eventually(lambda: len(errors) == 1)
        await stage.settle()
        record = await harness.get(job.id, "mail")
        assert (record.state, record.token, record.result) == (JobState.ACTIVE, other.token, None)


@pytest.mark.feature("J3")
async def test_a_removed_job_stops_its_handler(harness: Harness) -> None:
    async with Stage(harness) as stage:
        gate, stopped = Gate(), list[bool]()

        async def handler(job: Job[Any]) -> None:
            try:
                await gate.pass_through()
            except asyncio.CancelledError:
                stopped.append(True)
                raise

        await stage.work(handler, lease=30)
        job = await stage.queue.add("n")
        await gate.reached.wait()
        await job.remove(force=True)
        await stage.advance(11)
        assert stopped == [True]
        assert await stage.queue.get_job(job.id) is None


@pytest.mark.feature("J3", "B12")
async def test_old_records_are_pruned_by_whoever_leads(harness: Harness) -> None:
    async with Stage(harness) as stage:
        await stage.work(lambda job: None, duties=True, recover_every=600, prune_every=600)
        job = await stage.queue.add("n", keep_completed=False, result_ttl=0)
        await job.wait_until_finished()
        await stage.advance(1_300)
        assert await stage.queue.get_job(job.id) is None
