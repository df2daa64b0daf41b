"""Worker processes: their heartbeats, and commands to them."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from typing import Any

import pytest

import windlass
from windlass import ConfigError, Job, Windlass, Worker
from windlass.backend import requests as rq
from windlass.backend.store import Store
from windlass.core.clock import SYSTEM_CLOCK
from windlass.testing.faults import probing
from windlass.worker.health_server import HealthServer
from windlass_conformance.harness import Harness
from windlass_conformance.needs import needs
from windlass_conformance.stage import QUEUE, Gate, Stage, eventually, live


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


@pytest.mark.feature("J11")
async def test_an_identity_is_the_workers_own_unless_one_is_chosen(harness: Harness) -> None:
    async with Stage(harness) as stage:
        first = await stage.work(done, "one")
        second = await stage.work(done, "two")
        chosen = await stage.work(done, id="pod-7", tag="blue")
        assert len({first.id, second.id, "pod-7"}) == 3
        job = await stage.queue.add("n")
        await job.result()
        assert (await job.refresh()).worker_id == chosen.id == "pod-7"
        assert {info.id for info in await stage.app.workers()} == {first.id, second.id, "pod-7"}


@pytest.mark.feature("J18", "J3")
async def test_heartbeats_and_renewals_go_on_while_every_handler_thread_is_busy(harness: Harness) -> None:
    """Uses the machine's clock, because only then a thread renews leases."""
    app = Windlass("memory://")
    app.store = Store(harness.connect(harness.namespace), SYSTEM_CLOCK)
    release, threads = threading.Event(), list[str]()

    def handler(job: Job[Any]) -> str:
        release.wait(30)
        return "kept"

    with probing() as probe:
        probe.arm("leases.renewing", lambda *_: threads.append(threading.current_thread().name))
        worker = Worker(QUEUE, handler, url_or_app=app, concurrency=1, lease=1, heartbeat=0.02, duties=False)
        async with app, worker:
            job = await app.queue(QUEUE).add("n")
            await eventually(lambda: bool(threads))
            (before,) = await app.workers()
            while (await app.workers())[0].beat_ms == before.beat_ms:  # noqa: ASYNC110 - as the store says
                await asyncio.sleep(0.005)
            release.set()
            assert await job.result(10) == "kept"
            assert (job.deliveries, job.stalled_count) == (1, 0)
    assert threads == ["windlass-leases"]


@pytest.mark.feature("J21", "E2")
async def test_a_worker_with_nothing_to_do_runs_jobs_as_they_are_added(harness: Harness) -> None:
    """Uses the machine's clock: a store may then offer a job to an idle worker before it claims."""

    async def handler(job: Job[Any]) -> Any:
        return job.data

    async with live(harness) as app:
        worker = Worker(QUEUE, handler, url_or_app=app, concurrency=2, poll=600, duties=False)
        async with worker:
            for number in range(20):
                job = await app.queue(QUEUE).add("n", number)
                assert await job.result(20) == number
                await job.refresh()
                assert (job.attempts, job.deliveries, job.worker_id) == (0, 1, worker.id)


@pytest.mark.feature("R6")
async def test_probes_say_whether_a_worker_lives_and_is_ready(harness: Harness) -> None:
    async with Stage(harness) as stage:
        worker = await stage.work(done, concurrency=3)
        server = HealthServer(worker, 0)
        await server.start()

        async def ask(path: str) -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"GET %s HTTP/1.1\r\n\r\n" % path.encode())
            answer = await reader.read()
            writer.close()
            return answer.split(b" ")[1]

        try:
            assert (await ask("/live"), await ask("/ready")) == (b"200", b"200")
            await worker.close()
            assert (await ask("/live"), await ask("/ready")) == (b"200", b"503")
        finally:
            await server.stop()


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
        stage.faults.refuse(rq.Beat, times=100)  # they are alive, but no report arrives
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
async def test_heartbeats_carry_the_stacks_for_a_minute_after_they_were_asked_for(harness: Harness) -> None:
    async with Stage(harness) as stage:
        gate = Gate()

        async def a_handler_that_hangs(job: Job[Any]) -> None:
            await gate.pass_through()

        worker = await stage.work(a_handler_that_hangs, heartbeat=10)
        await stage.queue.add("n")
        await gate.reached.wait()
        await stage.settle()  # its first heartbeat is stored
        assert (await info_of(stage, worker)).stacks == ""
        await stage.app.command_worker(worker.id, "dump")
        await stage.advance(10)
        stacks = (await info_of(stage, worker)).stacks
        assert "a_handler_that_hangs" in stacks
        assert "\n" in stacks
        await stage.advance(70)
        assert (await info_of(stage, worker)).stacks == ""
        gate.open()


@needs("commands")
@pytest.mark.feature("R5")
async def test_unknown_workers_and_commands_are_told_so(harness: Harness) -> None:
    async with Stage(harness) as stage:
        assert await stage.app.command_worker("no-such-worker", "stop") is False
        with pytest.raises(ConfigError):
            await stage.app.command_worker("no-such-worker", "explode")  # type: ignore[arg-type]


@pytest.mark.feature("R5")
async def test_one_worker_is_shown_as_the_leader(harness: Harness) -> None:
    async with Stage(harness) as stage:
        for _ in range(3):
            await stage.work(done, duties=True, heartbeat=10)
        await stage.advance(11)
        assert sorted(worker.leader for worker in await stage.app.workers()) == [False, False, True]
