"""How calls reach the thread that writes: in order, and those that come while it begins together."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from pathlib import Path

from tests.backends.sqlite.support import add, claim, new, opened
from windlass.backend import requests as rq
from windlass.backends.sqlite import SqliteBackend
from windlass.core.states import JobState


def commits(store: SqliteBackend) -> list[str]:
    """The names of the threads that commit, one for each transaction from now on."""
    seen: list[str] = []

    def trace(statement: str) -> None:
        if statement == "COMMIT":
            seen.append(threading.current_thread().name)

    store._open_store().session.conn.set_trace_callback(trace)
    return seen


async def test_a_caller_that_is_alone_writes_on_the_thread_too(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs.db") as store:
        await add(store, new())
        seen = commits(store)
        for _ in range(3):
            await add(store, new())
        assert seen == ["windlass-sqlite-writer"] * 3


async def test_calls_of_many_tasks_share_a_transaction(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs.db") as store:
        await add(store, new())
        seen = commits(store)
        await asyncio.gather(*[add(store, new()) for _ in range(50)])
        assert len(seen) <= 5  # the thread may begin before the last task has made its call
        last = asyncio.create_task(add(store, new()))
        await asyncio.sleep(0)  # it is lined up: closing waits for it
    assert len(await last) == 1


async def test_calls_keep_their_order(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs.db") as store:
        first = asyncio.create_task(add(store, new(id="a")))
        second = asyncio.create_task(claim(store))
        third = asyncio.create_task(add(store, new(id="b")))
        fourth = asyncio.create_task(claim(store))
        assert [job.id for job in await second] == ["a"]
        assert [job.id for job in await fourth] == ["b"]
        await asyncio.gather(first, third)


async def test_the_loop_is_free_while_another_program_writes(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with opened(path) as store:
        await add(store, new())
        foreign = sqlite3.connect(path, isolation_level=None)
        foreign.execute("BEGIN IMMEDIATE")
        asyncio.get_running_loop().call_later(0.02, foreign.execute, "ROLLBACK")
        await add(store, new())  # the loop was free to run the rollback
        foreign.close()
        assert (await store.execute(rq.CountJobs(queue="q")))[JobState.WAITING] == 2


async def test_the_log_stays_short(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with opened(path) as store:
        for _ in range(600):
            await add(store, new())
        assert os.stat(f"{path}-wal").st_size < 8 * 2**20
