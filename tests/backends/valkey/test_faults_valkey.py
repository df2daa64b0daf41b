"""Servers that are not there or do not answer, and queues all over a cluster."""

from __future__ import annotations

import socket

import pytest

from tests.backends.valkey.servers import cluster_servers
from tests.backends.valkey.support import add, claim, complete, new, opened
from tools.services.valkey import free_port
from windlass.backend import open_backend
from windlass.backend import requests as rq
from windlass.core.outcome import Settled
from windlass.errors import StorageError

backend_name = "valkey"
pytestmark = [pytest.mark.service("valkey")]


@pytest.mark.feature("L7")
async def test_a_server_that_is_not_there_is_a_storage_error_in_time() -> None:
    store = open_backend(f"valkey://127.0.0.1:{free_port()}?timeout=0.4")
    with pytest.raises(StorageError, match="is the server running"):
        await store.execute(rq.CountJobs(queue="q"))
    await store.close()


@pytest.mark.feature("L7")
async def test_a_server_that_never_answers_is_a_storage_error_in_time() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        store = open_backend(f"valkey://127.0.0.1:{deaf.getsockname()[1]}?timeout=0.4")
        with pytest.raises(StorageError, match="did not answer in time"):
            await store.execute(rq.Add(jobs=[new()]))
        await store.close()


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
