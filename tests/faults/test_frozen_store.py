"""A store that stops answering: a frozen server, or a lock that another process holds. Stops end in time."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.faults.frozen import frozen_later
from tests.faults.kit import staged, until
from windlass import Job, Windlass, Worker
from windlass_conformance.stage import in_time

if TYPE_CHECKING:
    from pathlib import Path

STORES = [
    "sqlite",
    "file",
    pytest.param("valkey", marks=pytest.mark.service("valkey")),
    pytest.param("amqp", marks=pytest.mark.service("rabbitmq")),
]
#: What a stop may take with a grace of 0.3 s and a cancel wait of 0.2 s, on a busy machine.
BOUND = 0.3 + 0.2 + 2 + 0.5


@pytest.mark.feature("V2", "V3")
@pytest.mark.parametrize("name", STORES)
async def test_a_worker_closes_in_time_while_its_store_is_frozen(tmp_path: Path, name: str) -> None:
    async with frozen_later(name, tmp_path) as store:
        app, begun = Windlass(store.url), asyncio.Event()

        async def handler(job: Job[Any]) -> None:
            begun.set()
            await asyncio.Event().wait()

        async with app:
            worker = Worker("q", handler, url_or_app=app, grace=0.3, cancel_wait=0.2, heartbeat=0.1, lease=2)
            await worker.start()
            job = await app.queue("q").add("n")
            async with asyncio.timeout(20):
                await begun.wait()
            store.freeze()
            took = await in_time(worker.close())
            store.thaw()
            assert took < BOUND
            assert worker.left_behind
            assert not worker.is_running
            async with Worker("q", lambda job: "ran", url_or_app=app, recover_every=0.2, poll=0.2):
                assert await job.result(timeout=30) == "ran"


@pytest.mark.feature("V1", "V2")
@pytest.mark.parametrize("name", STORES)
async def test_the_command_ends_in_time_with_an_error_while_its_store_is_frozen(
    tmp_path: Path, name: str
) -> None:
    async with frozen_later(name, tmp_path) as store, staged(tmp_path, store.url) as stage:
        await stage.app.queue("q").add("linger")
        worker = stage.command("--queues", "q", "--grace", "200ms", "--cancel-wait", "200ms")
        await until(lambda: stage.lines("lingering"), "the job is running")
        store.freeze()
        worker.signal(signal.SIGTERM)
        ended = asyncio.ensure_future(worker.ended())
        took = await in_time(ended)
        store.thaw()
        assert ended.result() == 1, worker.output
        assert took < 0.2 + 0.2 + 2 + 4  # the process has to end, too
        assert "stopped without waiting for" in worker.output


@pytest.mark.feature("J24", "J3")
@pytest.mark.parametrize("name", STORES)
async def test_a_handler_stops_before_its_lease_ends_while_its_store_is_frozen(
    tmp_path: Path, name: str
) -> None:
    async with frozen_later(name, tmp_path) as store:
        app, begun, stopped = Windlass(store.url), asyncio.Event(), asyncio.Event()

        async def handler(job: Job[Any]) -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()

        async with app:
            worker = Worker("q", handler, url_or_app=app, grace=0, cancel_wait=0, lease=3)
            await worker.start()
            await app.queue("q").add("n")
            async with asyncio.timeout(20):
                await begun.wait()
            store.freeze()
            took = await in_time(stopped.wait())
            store.thaw()
            assert took < 3
            await worker.close(force=True)
