"""What a process remembers of the jobs that it claimed never outlives a change of them."""

from __future__ import annotations

import sqlite3
from copy import copy
from pathlib import Path

import pytest

from tests.backends.sqlite.support import add, claim, ended, new, opened, settle
from windlass.backend import requests as rq
from windlass.backends.sqlite import SqliteBackend
from windlass.core.edges import Dependency
from windlass.core.job import JobRef
from windlass.core.outcome import Outcome, Settled
from windlass.core.states import JobState
from windlass.errors import StorageError


def remembered(store: SqliteBackend) -> int:
    """How many claimed jobs the store's connection knows by heart."""
    return len(store._open_store().session._queues.leased)


async def state_of(store: SqliteBackend, job_id: str) -> JobState:
    (job,) = await store.execute(rq.GetJobs(refs=[JobRef("q", job_id)]))
    assert job is not None
    return job.state


async def test_a_claim_is_remembered_until_it_is_settled(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs.db") as store:
        await add(store, *[new() for _ in range(5)])
        held = await claim(store)
        assert remembered(store) == 5
        assert await settle(store, *map(ended, held[:3])) == [Settled.OK] * 3
        assert remembered(store) == 2
        again = [ended(held[0]), ended(held[3], Outcome.RETRY, delay_ms=50), ended(held[4])]
        assert await settle(store, *again) == [Settled.ALREADY, Settled.OK, Settled.OK]
        assert remembered(store) == 0


async def test_a_job_that_comes_twice_in_one_settlement_is_settled_once(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs.db") as store:
        await add(store, new())
        (job,) = await claim(store)
        assert await settle(store, ended(job), ended(job)) == [Settled.OK, Settled.ALREADY]
        assert await settle(store, ended(job)) == [Settled.ALREADY]


async def test_another_connection_makes_it_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with opened(path) as store:
        await add(store, new(id="a"), new(id="b"))
        first, second = await claim(store)
        stranger = sqlite3.connect(path)
        stranger.execute("UPDATE windlass_default_job SET token = 'another' WHERE id = 'a'")
        stranger.commit()
        stranger.close()
        assert await settle(store, ended(first), ended(second)) == [Settled.LOST, Settled.OK]
        assert await state_of(store, "a") is JobState.ACTIVE


async def test_a_lease_that_was_given_away_is_lost(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs.db") as store:
        await add(store, new(id="a"), now_ms=1_000)
        (late,) = await claim(store, now_ms=1_000, lease_ms=10)
        await store.execute(rq.Recover(limit=10, now_ms=5_000))
        (taken,) = await claim(store, now_ms=5_000)
        assert await settle(store, ended(late), now_ms=5_000) == [Settled.LOST]
        assert await settle(store, ended(taken), now_ms=5_000) == [Settled.OK]


async def test_who_comes_to_depend_on_a_running_job_hears_of_its_end(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs.db") as store:
        await add(store, new(id="child"))
        (child,) = await claim(store)
        await add(store, new(id="parent", depends_on=[Dependency("q", "child")]))
        assert await state_of(store, "parent") is JobState.BLOCKED
        assert await settle(store, ended(child)) == [Settled.OK]
        assert await state_of(store, "parent") is JobState.WAITING


async def test_a_memory_that_is_wrong_changes_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs.db") as store:
        await add(store, new(id="a"))
        (job,) = await claim(store)
        leased = store._open_store().session._queues.leased
        stale = {ref: copy(known) for ref, known in leased.items()}
        await settle(store, ended(job))
        leased.update(stale)
        with pytest.raises(StorageError, match="the cache of leases is stale"):
            await settle(store, ended(job))
        assert await settle(store, ended(job)) == [Settled.ALREADY]
