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


def calls() -> list[int]:
    """How often each node of the cluster was asked to run a function."""
    found = []
    for server in cluster_servers().servers:
        with server.client() as client:
            found.append(int(client.info("commandstats").get("cmdstat_fcall", {}).get("calls", 0)))
    return found


@pytest.mark.feature("M6")
async def test_one_request_is_split_over_the_nodes_with_one_call_for_each_slot() -> None:
    names = [f"q{number}" for number in range(12)]
    async with opened(cluster_servers().url) as store:
        await add(store, *(new(name) for name in names))  # queues are known from here on
        before = calls()
        await add(store, *(new(name) for name in names for _ in range(50)))
        asked = [now - then for now, then in zip(calls(), before, strict=True)]
        assert sum(bool(count) for count in asked) == 3, "every primary has its share"
        assert sum(asked) <= len(names), "the 50 jobs of a queue are one call"
        before = calls()
        jobs = await claim(store, *names, limit=612)
        asked = [now - then for now, then in zip(calls(), before, strict=True)]
        assert (len(jobs), sum(bool(count) for count in asked)) == (612, 3)
        assert sum(asked) <= 2 * len(names)
        assert await complete(store, *jobs) == [Settled.OK] * 612


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
