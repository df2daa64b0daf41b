"""One writer, many callers: what waits together is written together, and fails apart."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.backends.sqlite.support import add, claim, ended, new, opened, settle
from windlass.backend import requests as rq
from windlass.backends.sqlite import SqliteBackend
from windlass.backends.sqlite.writer import SqliteWriter
from windlass.core import probe
from windlass.core.job import JobRef
from windlass.core.outcome import AddOutcome, Extended, Settled
from windlass.core.states import JobState
from windlass.errors import ConfigError, StorageError


@pytest.fixture
def points() -> Iterator[probe.Probe]:
    """A probe for the length of a test."""
    made = probe.Probe()
    before = probe.install(made)
    yield made
    probe.install(before)


def void(_: object) -> None:
    """Nothing, after all."""


@contextlib.asynccontextmanager
async def held_up(store: SqliteBackend, points: probe.Probe) -> Any:
    """The writer stands still inside a transaction of its own; calls made meanwhile wait together."""
    gate = threading.Event()
    points.arm("sqlite.begun", lambda point, facts: void(gate.wait(10)))
    begun = points.count("sqlite.begun")
    first = asyncio.create_task(store.execute(rq.Elect(role="hold", holder="up", ttl_ms=1)))
    await asyncio.to_thread(points.wait, "sqlite.begun", count=begun + 1)
    try:
        yield
    finally:
        gate.set()
        await first


async def test_calls_that_wait_together_share_one_transaction(tmp_path: Path, points: probe.Probe) -> None:
    async with opened(tmp_path / "jobs.db") as store:
        async with held_up(store, points):
            calls = [asyncio.create_task(add(store, new())) for _ in range(50)]
            await asyncio.sleep(0.01)
            before = points.count("sqlite.committing")
        await asyncio.gather(*calls)
        assert points.count("sqlite.committing") - before == 2  # the one that stood still, and the fifty
        assert (await store.execute(rq.CountJobs(queue="q")))[JobState.WAITING] == 50


async def test_a_group_is_bounded(tmp_path: Path, points: probe.Probe) -> None:
    async with opened(tmp_path / "jobs.db") as store:
        async with held_up(store, points):
            calls = [asyncio.create_task(add(store, new())) for _ in range(SqliteWriter.group_calls * 2 + 1)]
            await asyncio.sleep(0.01)
            before = points.count("sqlite.committing")
        await asyncio.gather(*calls)
        assert points.count("sqlite.committing") - before == 4


async def test_one_bad_request_of_a_group_fails_alone(tmp_path: Path, points: probe.Probe) -> None:
    async with opened(tmp_path / "jobs.db") as store:
        async with held_up(store, points):
            good = [
                asyncio.create_task(add(store, new(id="a"))),
                asyncio.create_task(add(store, new("new", id="b"))),
            ]
            half = [new(id="c"), new("newer", id="d", priority=2**70)]
            bad = asyncio.create_task(add(store, *half))
            good.append(asyncio.create_task(add(store, new(id="e"))))
        answers = await asyncio.gather(*good)
        assert [answer[0].outcome for answer in answers] == [AddOutcome.QUEUED] * 3
        with pytest.raises(ConfigError, match="64 bits"):
            await bad
        refs = [
            JobRef("q", "a"),
            JobRef("new", "b"),
            JobRef("q", "c"),
            JobRef("newer", "d"),
            JobRef("q", "e"),
        ]
        found = await store.execute(rq.GetJobs(refs=refs))
        assert [job.id if job else None for job in found] == ["a", "b", None, None, "e"]
        assert [info.name for info in await store.execute(rq.ListQueues())] == ["new", "q"]
        events = (await store.execute(rq.ReadEvents(queue="q"))).events
        assert [(event.id, event.job_id) for event in events] == [(1, "a"), (2, "e")]
        await add(store, new("newer", id="f"))  # the queue that was taken back can be made again
        assert [info.name for info in await store.execute(rq.ListQueues())] == ["new", "newer", "q"]


async def test_a_bad_request_alone_changes_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs.db") as store:
        with pytest.raises(ConfigError, match="64 bits"):
            await add(store, new("fresh", id="a"), new("fresh", id="b", priority=2**70))
        assert await store.execute(rq.ListQueues()) == []
        await add(store, new("fresh", id="a"))
        assert (await store.execute(rq.CountJobs(queue="fresh")))[JobState.WAITING] == 1


async def test_renewals_go_first(tmp_path: Path, points: probe.Probe) -> None:
    async with opened(tmp_path / "jobs.db") as store:
        await add(store, new(), now_ms=1_000)
        (job,) = await claim(store, now_ms=1_000, lease_ms=500)
        assert job.token is not None
        lease = rq.LeaseRef(job.queue, job.id, job.token, 10_000)
        async with held_up(store, points):
            recovering = asyncio.create_task(store.execute(rq.Recover(now_ms=2_000)))
            await asyncio.sleep(0)
            extending = asyncio.create_task(store.execute(rq.Extend(leases=[lease], now_ms=2_000)))
            await asyncio.sleep(0.005)
        assert await extending == [Extended.OK]
        assert (await recovering).recovered == []


async def test_all_answers_for_a_loop_come_in_one_wake_up(
    tmp_path: Path, points: probe.Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path / "jobs.db") as store:
        loop = asyncio.get_running_loop()
        real, woken = loop.call_soon_threadsafe, []

        def counted(*args: Any, **more: Any) -> Any:
            woken.append(1)
            return real(*args, **more)

        async with held_up(store, points):
            calls = [asyncio.create_task(add(store, new())) for _ in range(20)]
            await asyncio.sleep(0.005)
            monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
        await asyncio.gather(*calls)
        assert len(woken) == 2  # for the call that stood still, and for the twenty
        monkeypatch.undo()


async def test_cancelling_the_caller_does_not_cancel_the_write(tmp_path: Path, points: probe.Probe) -> None:
    async with opened(tmp_path / "jobs.db") as store:
        async with held_up(store, points):
            call = asyncio.create_task(add(store, new(id="a")))
            await asyncio.sleep(0.001)
            call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await add(store, new(id="b"))
        assert [job.id for job in (await store.execute(rq.ListJobs(queue="q"))).jobs] == ["b", "a"]


@pytest.mark.parametrize("point", ["sqlite.begun", "sqlite.committing"])
async def test_a_failure_before_the_commit_leaves_nothing(
    tmp_path: Path, points: probe.Probe, point: str
) -> None:
    async with opened(tmp_path / "jobs.db") as store:
        points.arm(point, _fail)
        with pytest.raises(StorageError, match="pulled the plug"):
            await add(store, new("fresh", id="a"))
        assert await store.execute(rq.ListQueues()) == []
        (added,) = await add(store, new("fresh", id="a"))
        assert added.outcome is AddOutcome.QUEUED
        assert (await store.execute(rq.ReadEvents(queue="fresh"))).last_id == 1


async def test_a_lost_reply_to_add_claim_and_settle(tmp_path: Path, points: probe.Probe) -> None:
    async with opened(tmp_path / "jobs.db") as store:
        job = new(id="a", request_id="r1")
        points.arm("sqlite.committed", _fail)
        with pytest.raises(StorageError):
            await add(store, job)
        (again,) = await add(store, job)
        assert again.outcome is AddOutcome.QUEUED
        assert (await store.execute(rq.CountJobs(queue="q")))[JobState.WAITING] == 1

        points.arm("sqlite.committed", _fail)
        with pytest.raises(StorageError):
            await claim(store)
        assert await store.execute(rq.Reconcile(worker="w", held=[])) == 1
        (leased,) = await claim(store)
        assert leased.deliveries == 2
        assert leased.stalls == 0

        points.arm("sqlite.committed", _fail)
        with pytest.raises(StorageError):
            await settle(store, ended(leased))
        assert await settle(store, ended(leased)) == [Settled.ALREADY]
        assert (await store.execute(rq.CountJobs(queue="q")))[JobState.COMPLETED] == 1


async def test_several_loops_and_threads_share_one_database(tmp_path: Path) -> None:
    def other_thread() -> int:
        async def work() -> int:
            async with opened(tmp_path / "jobs.db") as store:
                answers = await asyncio.gather(*[add(store, new()) for _ in range(20)])
                return len(answers)

        return asyncio.run(work())

    async with opened(tmp_path / "jobs.db") as store:
        writers = [thread for thread in threading.enumerate() if thread.name == "windlass-sqlite-writer"]
        counts = await asyncio.gather(*[asyncio.to_thread(other_thread) for _ in range(3)])
        assert counts == [20, 20, 20]
        assert [t for t in threading.enumerate() if t.name == "windlass-sqlite-writer"] == writers
        assert (await store.execute(rq.CountJobs(queue="q")))[JobState.WAITING] == 60


def _fail(point: str, facts: dict[str, Any]) -> None:
    raise RuntimeError("pulled the plug")
