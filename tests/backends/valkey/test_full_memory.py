"""A server at its ``maxmemory``: it takes nothing new, and can free itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.backends.valkey.servers import own_server
from tests.backends.valkey.support import add, claim, complete, new
from tools.services.valkey import Server
from windlass import JobState, Windlass, Worker
from windlass.backend import requests as rq
from windlass.backends.valkey import ValkeyBackend
from windlass.core.job import JobRef, WorkerInfo
from windlass.core.outcome import CancelResult, Extended, Settled
from windlass.errors import StoreFullError

backend_name = "valkey"
pytestmark = pytest.mark.service("valkey")

#: More than a server keeps besides for its clients.
PAYLOAD = b'"' + bytes(100_000).replace(b"\0", b"x") + b'"'
LATER_MS = 4_000_000_000_000


@pytest.fixture(params=["valkey", "redis"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """A server of the test's own: its memory is to be full."""
    with own_server(request.param, tmp_path, "--maxmemory-policy", "noeviction") as started:
        yield started


@pytest.fixture
async def app(server: Server) -> AsyncIterator[Windlass]:
    async with Windlass(server.url) as made:
        yield made


def fill(server: Server) -> None:
    """From now on the server has no memory left."""
    with server.client() as admin:
        admin.config_set("maxmemory", admin.info("memory")["used_memory"] - 2_500_000)


def has_room(server: Server) -> bool:
    with server.client() as admin:
        return bool(admin.info("memory")["used_memory"] < int(admin.config_get("maxmemory")["maxmemory"]))


def backend_of(app: Windlass) -> ValkeyBackend:
    backend = app.store.backend
    assert isinstance(backend, ValkeyBackend)
    return backend


async def test_a_full_server_refuses_adds_and_lets_everything_end_renew_and_go(
    app: Windlass, server: Server
) -> None:
    store = backend_of(app)
    await add(store, *[new(job_id=f"j{n}", payload=PAYLOAD) for n in range(40)])
    held = await claim(store, limit=20, lease_ms=30_000)
    fill(server)
    for refused in (new(), new(payload=PAYLOAD), new("other", delay_ms=1_000)):
        with pytest.raises(StoreFullError, match=r"takes no new jobs.*windlass clean.*raise maxmemory"):
            await add(store, refused)
    leases = [rq.LeaseRef(job.queue, job.id, job.token or "", 60_000) for job in held]
    assert await store.execute(rq.Extend(leases=leases)) == [Extended.OK] * 20
    await store.execute(rq.Beat(worker=WorkerInfo(id="w")))
    assert await store.execute(rq.Elect(role="duties", holder="w", ttl_ms=1_000))
    assert await complete(store, *held[:10]) == [Settled.OK] * 10
    assert len(await claim(store, limit=5)) == 5
    assert await store.execute(rq.CancelJobs(refs=[JobRef("q", "j30")])) == [CancelResult.CANCELLED]
    gone = [JobRef("q", job.id) for job in held[:5]]
    assert [one.status for one in await store.execute(rq.RemoveJobs(refs=gone))] == ["ok"] * 5
    recovered = await store.execute(rq.Recover(now_ms=LATER_MS))
    assert len(recovered.recovered) == 15
    with pytest.raises(StoreFullError):
        await add(store, new())
    assert (await store.execute(rq.Prune(limit=1_000, now_ms=LATER_MS))).jobs > 0
    await app.queue("q").drain()
    assert has_room(server)
    await add(store, new(payload=PAYLOAD))


@pytest.mark.parametrize("way", ["drain", "clean", "obliterate", "work"])
async def test_a_full_server_frees_itself(app: Windlass, server: Server, way: str) -> None:
    queue = app.queue("q")
    worker = Worker("q", lambda job: None, url_or_app=app)
    data = PAYLOAD.decode()
    jobs = await queue.add_bulk([{"name": "n", "data": data, "keep_completed": 2} for _ in range(40)])
    if way == "clean":
        await worker.drain()
    fill(server)
    with pytest.raises(StoreFullError):
        await queue.add("n", data)
    if way == "drain":
        await queue.drain()
    elif way == "clean":
        await queue.clean(0, 1_000, "completed")
    elif way == "obliterate":
        await queue.obliterate(force=True)
    else:
        await worker.drain()
        assert [await job.get_state() for job in jobs] == [JobState.COMPLETED] * 40
        await app.store.execute(rq.Prune(limit=1_000, now_ms=LATER_MS))
    assert has_room(server)
    assert await (await queue.add("n", data)).get_state() is JobState.WAITING
