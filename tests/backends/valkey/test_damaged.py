"""A record that nobody can read is set aside with its bytes; everybody else's work goes on."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.backends.valkey.servers import redis_server, valkey_server
from tests.backends.valkey.support import add, claim, complete, new, opened
from tools.services.valkey import Server
from windlass import Job, Windlass, Worker
from windlass.backend import requests as rq
from windlass.backends.valkey.keys import DAMAGED, Keys
from windlass.backends.valkey.layouts import Head
from windlass.core.ids import new_id
from windlass.core.job import JobRef
from windlass.core.outcome import Settled
from windlass.core.queue_time import QueueTime
from windlass.core.states import JobState

backend_name = "valkey"
pytestmark = pytest.mark.service("valkey")

START_MS = 1_700_000_000_000


@pytest.fixture(params=["valkey", "redis"])
def server(request: pytest.FixtureRequest) -> Server:
    return valkey_server() if request.param == "valkey" else redis_server()


@pytest.mark.feature("J24")
@pytest.mark.parametrize("priority", [0, 5])
async def test_a_record_that_cannot_be_read_fails_alone_and_keeps_its_bytes(
    server: Server, priority: int
) -> None:
    namespace = new_id()
    async with opened(server.url, namespace) as store:
        await add(store, *(new(job_id=f"j{n}", priority=priority) for n in range(5)))
        bad = _spoil(server, namespace, "j2")
        jobs = await claim(store)
        assert [job.id for job in jobs] == ["j0", "j1", "j3", "j4"]
        assert await complete(store, *jobs) == [Settled.OK] * 4
        [found] = await store.execute(rq.GetJobs(refs=[JobRef("q", "j2")]))
        assert found is not None
        assert (found.state, found.reason, found.payload) == (JobState.FAILED, "bad_record", bad)
        assert found.errors[-1].error_class == "BadRecord"
        page = await store.execute(rq.ListJobs(queue="q", states=[JobState.FAILED]))
        assert [job.id for job in page.jobs] == ["j2"]


@pytest.mark.feature("J24")
@pytest.mark.parametrize("time", [7, "text", False, [], [1, 2], [1, 2, 3, 4, "5"], [1, 2, 3, 4, 5, 6]])
async def test_a_queue_time_that_cannot_be_counted_fails_its_job_alone(server: Server, time: Any) -> None:
    namespace = new_id()
    async with opened(server.url, namespace) as store:
        await add(store, *(new(job_id=f"j{n}", delay_ms=10) for n in range(3)), now_ms=START_MS)
        await store.execute(rq.Promote(now_ms=START_MS + 10))
        for ref in (JobRef("q", "j0"), JobRef("q", "j1"), JobRef("q", "j2")):  # scheduled, and have left that
            await store.execute(rq.ChangeJob(ref=ref, delay_ms=5, now_ms=START_MS + 20))
        _change_queue_time(server, namespace, "j1", time)
        jobs = await claim(store, now_ms=START_MS + 30)
        assert [job.id for job in jobs] == ["j0", "j2"]
        assert await complete(store, *jobs, now_ms=START_MS + 31) == [Settled.OK] * 2
        page = await store.execute(rq.ListJobs(queue="q", states=[JobState.FAILED]))
        assert [(job.id, job.reason) for job in page.jobs] == [("j1", "bad_record")]


async def test_a_prune_that_fills_the_indexes_leaves_a_damaged_job_to_the_next_claim(server: Server) -> None:
    """A prune writes no events: a job that it ended would do so without its dependents knowing."""
    namespace = new_id()
    async with opened(server.url, namespace) as store:
        await add(store, *(new(job_id=f"j{n}", priority=5) for n in range(3)))
        with server.client() as client:
            client.hset(Keys(namespace).queue("q") + ":m", "j1", b"\xc1")  # its head
            client.hdel(Keys(namespace).queue("q"), "ix")  # as an earlier release leaves it
        await store.execute(rq.Prune())
        ended = rq.ListJobs(queue="q", states=[JobState.FAILED])
        assert (await store.execute(ended)).jobs == []
        assert [job.id for job in await claim(store)] == ["j0", "j2"]
        assert [job.id for job in (await store.execute(ended)).jobs] == ["j1"]


@pytest.mark.feature("J24")
@pytest.mark.parametrize("suffix", ["", ":j", ":m", ":f", ":w", ":d", ":a", ":e", ":v", ":h", ":P", ":i"])
async def test_a_key_of_the_wrong_type_is_moved_aside_and_stops_no_other_queue(
    server: Server, suffix: str
) -> None:
    namespace = new_id()
    async with Windlass(f"{server.url}?namespace={namespace}") as app:
        for name in ("bad", "good"):
            await app.queue(name).add("n")
        key = Keys(namespace).queue("bad") + suffix
        with server.client() as client:
            client.delete(key)
            client.set(key, "a text")
        honest = [await app.queue("good").add("n") for _ in range(3)]

        async def handler(job: Job[Any]) -> str:
            return "done"

        async with Worker(["bad", "good"], handler, url_or_app=app, poll=0.05):
            for job in honest:
                assert await job.result(timeout=10) == "done"
            after = await app.queue("bad").add("n")
            assert await after.result(timeout=10) == "done"
        assert {"bad", "good"} <= {info.name for info in await app.queues()} | {"bad"}
        await app.queue("bad").get_jobs()
        with server.client() as client:
            assert client.get(key + DAMAGED) == b"a text"


def _change_queue_time(server: Server, namespace: str, job_id: str, time: Any) -> None:
    key = Keys(namespace).queue("q") + ":m"
    with server.client() as client:
        head = msgspec.msgpack.decode(client.hget(key, job_id))
        at = Head.__struct_fields__.index("queue_time")
        assert len(head[at]) == len(QueueTime.__struct_fields__)
        head[at] = time
        client.hset(key, job_id, msgspec.msgpack.encode(head))


def _spoil(server: Server, namespace: str, job_id: str) -> bytes:
    """Damage the options in the record of a job, where the server itself does not look."""
    with server.client() as client:
        [key] = [key for key in client.keys("*:j") if namespace.encode() in key]
        stored: bytes = client.hget(key, job_id)
        at = stored.index(b"json")
        bad = stored[: at - 1] + b"\xc1\xc1\xc1" + stored[at + 2 :]
        client.hset(key, job_id, bad)
    return bad
