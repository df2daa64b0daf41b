"""Worker processes: what they tell of themselves, and how they are told something from afar."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from typing import Any

import pytest

import windlass
from windlass import ConfigError, Job, Worker
from windlass.backend import requests as rq
from windlass.testing.conformance.harness import Harness
from windlass.testing.conformance.needs import needs
from windlass.testing.conformance.stage import QUEUE, Gate, Stage, eventually


async def done(job: Job[Any]) -> None:
    """A handler."""


async def info_of(stage: Stage, worker: Worker) -> Any:
    (info,) = [info for info in await stage.app.workers() if info.id == worker.id]
    return info


@pytest.mark.feature("R1", "R3")
async def test_a_worker_tells_who_and_where_it_is_and_how_busy(harness: Harness) -> None:
    async with Stage(harness) as stage:
        gate = Gate()

        async def handler(job: Job[Any]) -> None:
            await gate.pass_through()

        worker = await stage.work(handler, [QUEUE, "other"], concurrency=7, tag="red", heartbeat=10)
        await stage.queue.add("n")
        await gate.reached.wait()
        await stage.advance(10)
        info = await info_of(stage, worker)
        assert (info.hostname, info.pid, info.tag) == (socket.gethostname(), os.getpid(), "red")
        assert (info.concurrency, info.busy, info.queues) == (7, 1, (QUEUE, "other"))
        assert info.version == windlass.__version__
        assert info.rss_kb > 1_000
        assert info.id.startswith(f"{socket.gethostname()[:80]}:{os.getpid()}:")
        assert info.beat_ms == stage.clock.now_ms()
        assert info.started_ms == stage.clock.now_ms() - 10_000
        gate.open()
        await worker.close()
        assert await stage.app.workers() == []


@pytest.mark.feature("R2")
async def test_live_workers_and_their_busy_slots_can_be_counted(harness: Harness) -> None:
    async with Stage(harness) as stage:
        gate = Gate()

        async def handler(job: Job[Any]) -> None:
            await gate.pass_through()

        await stage.work(handler, concurrency=2, heartbeat=10)
        await stage.work(handler, "other", concurrency=2, heartbeat=10)
        await stage.queue.add("n")
        await gate.reached.wait()
        await stage.advance(10)
        workers = await stage.app.workers()
        assert (len(workers), sum(worker.busy for worker in workers)) == (2, 1)
        assert len(await stage.queue.get_workers()) == 1
        stage.faults.refuse(rq.Beat, times=100)  # they are alive, but nobody hears of it
        await stage.advance(44)
        assert len(await stage.app.workers()) == 2
        await stage.advance(1)
        assert await stage.app.workers() == []
        gate.open()


@needs("commands")
@pytest.mark.feature("R5")
async def test_a_worker_goes_quiet_and_resumes_when_told_from_afar(harness: Harness) -> None:
    async with Stage(harness) as stage:
        worker = await stage.work(done)
        await stage.settle()
        assert await stage.app.command_worker(worker.id, "quiet") is True
        await eventually(lambda: worker.is_paused)
        job = await stage.queue.add("n")
        await stage.settle()
        assert await job.is_waiting()
        await stage.advance(600)
        assert (await info_of(stage, worker)).quiet is True
        await stage.app.command_worker(worker.id, "resume")
        await job.result(5)
        assert not worker.is_paused


@needs("commands")
@pytest.mark.feature("R5")
async def test_a_worker_stops_when_told_from_afar_and_finishes_what_runs(harness: Harness) -> None:
    async with Stage(harness) as stage:
        gate = Gate()

        async def handler(job: Job[Any]) -> str:
            await gate.pass_through()
            return "to its end"

        worker = Worker(QUEUE, handler, url_or_app=stage.app, poll=600, heartbeat=600, duties=False)
        stage.workers.append(worker)
        running = asyncio.create_task(worker.run())
        job = await stage.queue.add("n")
        await gate.reached.wait()
        await stage.app.command_worker(worker.id, "stop")
        await eventually(lambda: not worker.is_running)
        gate.open()
        await running
        assert await job.result(5) == "to its end"
        assert await stage.app.workers() == []


@needs("commands")
@pytest.mark.feature("R5")
async def test_a_worker_writes_its_stacks_to_the_log(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    async with Stage(harness) as stage:
        gate = Gate()

        async def a_handler_that_hangs(job: Job[Any]) -> None:
            await gate.pass_through()

        worker = await stage.work(a_handler_that_hangs)
        await stage.queue.add("n")
        await gate.reached.wait()
        with caplog.at_level(logging.WARNING, "windlass.worker"):
            await stage.app.command_worker(worker.id, "dump")
            await eventually(lambda: "a_handler_that_hangs" in caplog.text)
        gate.open()


@needs("commands")
@pytest.mark.feature("R5")
async def test_unknown_workers_and_commands_are_told_so(harness: Harness) -> None:
    async with Stage(harness) as stage:
        assert await stage.app.command_worker("nobody", "stop") is False
        with pytest.raises(ConfigError):
            await stage.app.command_worker("nobody", "explode")  # type: ignore[arg-type]


@pytest.mark.feature("R5")
async def test_one_worker_is_shown_as_the_leader(harness: Harness) -> None:
    async with Stage(harness) as stage:
        for _ in range(3):
            await stage.work(done, duties=True, heartbeat=10)
        await stage.advance(11)
        assert sorted(worker.leader for worker in await stage.app.workers()) == [False, False, True]
