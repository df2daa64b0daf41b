"""The function library: loaded where it is missing, never replaced, and checked as text."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.backends.valkey.servers import cluster_servers, redis_server, valkey_server
from tests.backends.valkey.support import add, claim, complete, new, opened
from tools.services.valkey import Server
from windlass.backend import requests as rq
from windlass.backend.urls import parse_url
from windlass.backends.valkey import check, loader
from windlass.backends.valkey.client import Client
from windlass.backends.valkey.functions import Functions
from windlass.backends.valkey.keys import Keys
from windlass.backends.valkey.records import new_job, tail
from windlass.backends.valkey.settings import parse
from windlass.core.ids import new_id
from windlass.core.states import JobState

backend_name = "valkey"
pytestmark = pytest.mark.service("valkey")


@pytest.mark.feature("M2", "M4", "M5")
def test_every_function_has_a_header_and_a_stub_that_fit_its_body() -> None:
    assert check.problems() == []


@pytest.mark.feature("M2", "M3", "M7")
@pytest.mark.parametrize("server", [valkey_server, redis_server])
async def test_a_flushed_library_is_loaded_again_by_the_next_request(
    server: Callable[[], Server],
) -> None:
    started = server()
    async with opened(started.url) as store:
        await add(store, new())
        with started.client() as admin:
            admin.function_flush("SYNC")
        assert len(await claim(store)) == 1


@pytest.mark.feature("M3")
async def test_b_000_17_the_library_is_on_the_primaries_and_reaches_the_replicas() -> None:
    servers = cluster_servers()
    async with opened(servers.url) as store:
        for number in range(40):  # enough queues to touch every slot range
            await add(store, new(f"q{number}"))
    for server in servers.servers:
        with server.client() as admin:
            names = [row[1].decode() for row in admin.execute_command("FUNCTION", "LIST")]
            assert names == [loader.library_name()]


@pytest.mark.feature("M3")
async def test_b_000_16_two_versions_of_the_library_work_side_by_side() -> None:
    server, namespace = valkey_server(), new_id()
    settings = parse(parse_url(f"{server.url}?namespace={namespace}"))
    newer_client = Client(settings, version=loader.VERSION + 1)
    newer, keys = Functions(newer_client), Keys(namespace)
    try:
        async with opened(server.url, namespace) as older:
            assert await newer.version(keys.root) == loader.VERSION + 1
            job = new()
            await newer.add([keys.queue("q")], "", [new_job(1, job)], [tail(job)])
            await add(older, new())
            claimed = await claim(older)
            assert len(claimed) == 2
            assert len(await complete(older, *claimed)) == 2
            assert await newer.version(keys.root) == loader.VERSION + 1
            counts = await older.execute(rq.CountJobs(queue="q"))
            assert counts[JobState.COMPLETED] == 2
        with server.client() as admin:
            names = {row[1].decode() for row in admin.execute_command("FUNCTION", "LIST")}
            admin.function_delete(loader.library_name(loader.VERSION + 1))
        assert names >= {loader.library_name(), loader.library_name(loader.VERSION + 1)}
    finally:
        await newer_client.close()
