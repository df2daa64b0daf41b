"""Short writes on the spot, for callers that have their event loop to themselves; and only for them."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.backends.sqlite.support import add, claim, ended, new, opened, settle
from windlass import Job, Windlass, Worker
from windlass.backend import requests as rq
from windlass.backend.local import desk
from windlass.backends.sqlite import SqliteBackend
from windlass.core import probe
from windlass.core.outcome import AddOutcome, Settled
from windlass.core.states import JobState


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No disk is slow, and every look counts."""
    monkeypatch.setattr(desk, "_SLOW_S", 60.0)
    monkeypatch.setattr(desk, "_PAUSE_S", 0.0)
    monkeypatch.setattr(desk, "_LOOK_S", -1.0)


def writers(store: SqliteBackend) -> set[str]:
    """The names of threads that commit, gathered from now on."""
    seen: set[str] = set()

    def note(statement: str) -> None:
        if statement == "COMMIT":
            seen.add(threading.current_thread().name)

    store._database.session.conn.set_trace_callback(note)  # type: ignore[union-attr]
    return seen


def test_a_caller_that_is_alone_writes_on_the_spot(tmp_path: Path, alone: None) -> None:
    async def work() -> None:
        async with opened(tmp_path / "jobs.db") as store:
            await add(store, new(id="a"))
            seen = writers(store)
            for number in range(5):
                (added,) = await add(store, new(id=f"job{number}"))
                assert added.outcome is AddOutcome.QUEUED
            (again,) = await add(store, new(id="a", request_id="other"))
            assert again.outcome is AddOutcome.DUPLICATE
            assert seen == {"MainThread"}
            listener = store.listen(["ready:q"])
            await add(store, new(id="b"))
            assert await listener.wait(0) == {"ready:q"}
            listener.close()
            held = await claim(store)
            assert len(held) == 7
            assert await settle(store, *map(ended, held)) == [Settled.OK] * 7
            assert seen == {"MainThread"}

    asyncio.run(work())


def test_company_large_requests_and_probes_send_calls_to_the_thread(tmp_path: Path, alone: None) -> None:
    async def work() -> None:
        async with opened(tmp_path / "jobs.db") as store:
            await add(store, new())
            seen = writers(store)
            await asyncio.gather(*[add(store, new()) for _ in range(3)])
            await add(store, *[new() for _ in range(desk.SHORT_JOBS + 1)])
            await add(store, new(payload=b"x" * (desk.SHORT_BYTES + 1)))
            held = await claim(store, limit=desk.SHORT_CLAIM + 1)
            await settle(store, *[ended(job, result=b"x" * (desk.SHORT_BYTES // 4)) for job in held])
            before = probe.install(probe.Probe())
            await add(store, new())
            probe.install(before)
            assert seen == {"windlass-sqlite-writer"}

    asyncio.run(work())


def test_a_worker_writes_on_the_spot_while_none_of_its_jobs_run(tmp_path: Path, alone: None) -> None:
    async def work() -> None:
        app = Windlass(f"sqlite:///{tmp_path}/jobs.db")
        running, go_on = asyncio.Barrier(4), asyncio.Event()

        async def handle(job: Job[Any]) -> None:
            if job.name == "slow":
                await running.wait()
                await go_on.wait()

        async with app, Worker("q", handle, url_or_app=app, duties=False):
            queue, store = app.queue("q"), app.store.backend
            assert isinstance(store, SqliteBackend)
            await (await queue.add("quick")).result(timeout=10)  # the worker has begun
            seen = writers(store)
            await (await queue.add("quick")).result(timeout=10)
            assert "MainThread" in seen
            await queue.add_bulk([{"name": "slow"}] * 3)
            await running.wait()
            seen.clear()
            await (await queue.add("quick")).result(timeout=10)
            assert seen == {"windlass-sqlite-writer"}
            go_on.set()

    asyncio.run(work())


def test_who_adds_without_end_lets_timers_have_their_turn(tmp_path: Path, alone: None) -> None:
    async def work() -> None:
        async with opened(tmp_path / "jobs.db") as store:
            await add(store, new())
            seen = writers(store)
            stopped: list[bool] = []
            asyncio.get_running_loop().call_soon(stopped.append, True)
            while not stopped:
                await add(store, new())
            assert seen == {"MainThread"}

    asyncio.run(work())


def test_a_slow_disk_sends_calls_to_the_thread(
    tmp_path: Path, alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk, "_SLOW_S", 0.0)

    async def work() -> None:
        async with opened(tmp_path / "jobs.db") as store:
            await add(store, new())
            seen = writers(store)
            await add(store, new())
            assert seen == {"windlass-sqlite-writer"}

    asyncio.run(work())


def test_nobody_waits_on_the_loop_for_another_writer(tmp_path: Path, alone: None) -> None:
    path = tmp_path / "jobs.db"

    async def work() -> None:
        async with opened(path) as store:
            await add(store, new())
            seen = writers(store)
            foreign = sqlite3.connect(path, isolation_level=None)
            foreign.execute("BEGIN IMMEDIATE")
            asyncio.get_running_loop().call_later(0.02, foreign.execute, "ROLLBACK")
            await add(store, new())  # the loop was free to run the rollback
            assert seen == {"windlass-sqlite-writer"}
            foreign.close()
            assert (await store.execute(rq.CountJobs(queue="q")))[JobState.WAITING] == 2

    asyncio.run(work())


async def test_calls_of_many_tasks_share_a_transaction(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs.db") as store:
        await add(store, new())
        commits: list[str] = []
        store._database.session.conn.set_trace_callback(  # type: ignore[union-attr]
            lambda statement: commits.append(statement) if statement == "COMMIT" else None
        )
        await asyncio.gather(*[add(store, *[new() for _ in range(desk.SHORT_JOBS + 1)]) for _ in range(50)])
        assert len(commits) == 1
        tasks = [asyncio.create_task(add(store, *[new() for _ in range(desk.SHORT_JOBS + 1)]))]
        await asyncio.sleep(0)  # it is lined up, not yet handed over
    assert len(await tasks[0]) == desk.SHORT_JOBS + 1


async def test_calls_keep_their_order(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs.db") as store:
        first = asyncio.create_task(add(store, new(id="a")))
        second = asyncio.create_task(claim(store))
        third = asyncio.create_task(add(store, new(id="b")))
        fourth = asyncio.create_task(claim(store))
        assert [job.id for job in await second] == ["a"]
        assert [job.id for job in await fourth] == ["b"]
        await asyncio.gather(first, third)


def test_the_log_stays_short(tmp_path: Path, alone: None) -> None:
    path = tmp_path / "jobs.db"

    async def work() -> None:
        async with opened(path) as store:
            for _ in range(600):
                await add(store, new())
            assert os.stat(f"{path}-wal").st_size < 8 * 2**20

    asyncio.run(work())
