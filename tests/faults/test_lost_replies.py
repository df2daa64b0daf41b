"""The store did what it was asked and the answer never came: nobody loses, doubles or stalls a job.

Leases are long here: a job that had to wait for one to run out would fail its test by time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.faults.kit import check_books, store_url, until
from windlass import Job, StorageError, Windlass, Worker
from windlass.backend import requests as rq
from windlass.jobs import AddOutcome
from windlass.testing import FaultyBackend
from windlass.testing.faults import lose_reply, probing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


class Faulty:
    """An app whose store loses replies, and a worker that counts what it ran."""

    def __init__(self, url: str) -> None:
        self.app = Windlass(url)
        self.backend = FaultyBackend(self.app.store.backend)
        self.app.store.backend = self.backend
        self.queue = self.app.queue("q")
        self.ran: Counter[str] = Counter()
        self.hold = asyncio.Event()
        self.hold.set()

    async def handle(self, job: Job[Any]) -> str:
        self.ran[job.id] += 1
        await self.hold.wait()
        return job.id

    def worker(self, **options: Any) -> Worker:
        return Worker("q", self.handle, url_or_app=self.app, **{"lease": 600, "duties": False, **options})

    async def add(self, count: int) -> list[str]:
        jobs = await self.queue.add_bulk({"name": "t", "data": {"n": n}} for n in range(count))
        return [job.id for job in jobs]

    async def check(self, ids: list[str]) -> Counter[str]:
        """All ran once and completed once; nothing was recovered from a silent worker."""
        assert self.ran == Counter(ids), "a handler ran twice, or never"
        outcomes = await check_books(self.app, ids)
        assert outcomes["stalled"] == 0
        return outcomes


@pytest.fixture(params=["memory", "sqlite", "file"])
def backend_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def faulty(backend_name: str, tmp_path: Path) -> AsyncIterator[Faulty]:
    scene = Faulty(store_url(backend_name, tmp_path))
    async with scene.app:
        yield scene


@asynccontextmanager
async def running(worker: Worker) -> AsyncIterator[Worker]:
    await worker.start()
    try:
        yield worker
    finally:
        await worker.close(force=True)


@pytest.mark.parametrize("lost", [1, 2])
async def test_lost_reply_of_add(faulty: Faulty, lost: int) -> None:
    faulty.backend.lose_reply(rq.Add, times=lost)
    job = await faulty.queue.add("t", {"n": 1})
    assert job.outcome is AddOutcome.QUEUED, "the answer is that of the first time"
    assert faulty.backend.sent["Add"] == lost + 1
    await faulty.worker(burst=True).run()
    await faulty.check([job.id])


async def test_an_add_that_stays_unanswered_can_be_repeated_by_its_id(faulty: Faulty) -> None:
    faulty.backend.lose_reply(rq.Add, times=3)
    with pytest.raises(StorageError):
        await faulty.queue.add("t", {"n": 1}, job_id="order-7")
    job = await faulty.queue.add("t", {"n": 1}, job_id="order-7")
    assert job.outcome is AddOutcome.DUPLICATE
    await faulty.worker(burst=True).run()
    await faulty.check(["order-7"])


async def test_lost_reply_of_add_bulk_in_the_second_chunk(faulty: Faulty) -> None:
    faulty.backend.lose_reply(rq.Add, skip=1)
    ids = await faulty.add(2_500)
    assert len(set(ids)) == 2_500
    await faulty.worker(burst=True, concurrency=500).run()
    await faulty.check(ids)


@pytest.mark.parametrize("kind", ["lose_reply", "refuse"])
async def test_lost_claim(faulty: Faulty, kind: str) -> None:
    ids = await faulty.add(40)
    getattr(faulty.backend, kind)(rq.Claim)
    await faulty.worker(burst=True).run()
    outcomes = await faulty.check(ids)
    assert outcomes["released"] == (16 if kind == "lose_reply" else 0), "given back at once, by reconciling"
    assert faulty.backend.sent["Reconcile"] == 1


@pytest.mark.feature("J4")
@pytest.mark.parametrize("kind", ["lose_reply", "refuse"])
async def test_lost_settle_with_the_next_claim(faulty: Faulty, kind: str) -> None:
    ids = await faulty.add(40)
    getattr(faulty.backend, kind)(rq.Settle)
    await faulty.worker(burst=True).run()
    outcomes = await faulty.check(ids)
    assert outcomes["completed"] == 40
    if kind == "refuse":
        assert outcomes["released"] == 0


@pytest.mark.parametrize("kind", ["lose_reply", "refuse"])
async def test_lost_settle_alone(faulty: Faulty, kind: str) -> None:
    faulty.hold.clear()
    ids = await faulty.add(4)
    async with running(faulty.worker()) as worker:
        await until(lambda: worker.busy == 4, "all are running")
        worker.pause()  # from now on it settles without claiming
        getattr(faulty.backend, kind)(rq.Settle)
        faulty.hold.set()
        await until(lambda: _completed(faulty, 4), "all are settled")
    assert faulty.backend.failed["Settle"] == 1
    outcomes = await faulty.check(ids)
    assert outcomes == {"completed": 4}


@pytest.mark.parametrize("kind", ["lose_reply", "refuse"])
async def test_lost_extend(faulty: Faulty, kind: str) -> None:
    faulty.hold.clear()
    ids = await faulty.add(4)
    getattr(faulty.backend, kind)(rq.Extend)
    async with running(faulty.worker(lease=6)) as worker:
        lost: list[Any] = []
        worker.on("lease_lost", lost.append)
        await until(lambda: faulty.backend.sent["Extend"] >= 2, "the renewal was sent again")
        faulty.hold.set()
        await until(lambda: _completed(faulty, 4), "all are settled")
    assert lost == []
    assert await faulty.check(ids) == {"completed": 4}


async def test_lost_release_at_shutdown(faulty: Faulty) -> None:
    faulty.hold.clear()
    ids = await faulty.add(4)
    async with running(faulty.worker(grace=0, cancel_wait=1)) as worker:
        await until(lambda: worker.busy == 4, "all are running")
        faulty.backend.lose_reply(rq.Settle)
        await worker.close()
    faulty.hold.set()
    faulty.ran.clear()
    await faulty.worker(burst=True).run()
    outcomes = await faulty.check(ids)
    assert outcomes == {"released": 4, "completed": 4}


async def test_a_storm_of_lost_replies(faulty: Faulty) -> None:
    for verb in (rq.Add, rq.Claim, rq.Settle):
        for skip in (1, 3, 7):
            faulty.backend.lose_reply(verb, skip=skip)
    async with running(faulty.worker(concurrency=7)):
        ids = []
        for _ in range(60):
            ids += await faulty.add(3)
        await until(lambda: _completed(faulty, len(ids)), "all are settled")
    await faulty.check(ids)


async def _completed(faulty: Faulty, count: int) -> bool:
    rows = await faulty.queue.get_metrics()
    return sum(row.total for row in rows if row.outcome == "completed") >= count


async def test_replies_lost_after_the_commit_itself(tmp_path: Path) -> None:
    """The same, one level below: every third transaction commits and nobody hears of it."""
    scene = Faulty(f"sqlite:///{tmp_path / 'jobs.db'}")
    async with scene.app:
        with probing() as probe:
            for _ in range(8):
                probe.arm("sqlite.committed", lambda point, facts: None, times=2)
                probe.arm("sqlite.committed", lose_reply)
            async with running(scene.worker()):
                ids = []
                for _ in range(20):
                    ids += await scene.add(3)
                await until(lambda: _completed(scene, len(ids)), "all are settled")
        await scene.check(ids)


async def test_a_worker_whose_store_was_out_of_reach_at_its_start_can_be_started_again(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "not there yet"
    app = Windlass(f"sqlite:///{folder / 'jobs.db'}")
    done = asyncio.Event()

    async def handle(job: Job[Any]) -> None:
        done.set()

    worker = Worker("q", handle, url_or_app=app)
    with pytest.raises(StorageError):
        await worker.start()
    folder.mkdir()
    await worker.start()
    try:
        await app.queue("q").add("t")
        async with asyncio.timeout(20):
            await done.wait()
    finally:
        await worker.close()
        await app.close()
