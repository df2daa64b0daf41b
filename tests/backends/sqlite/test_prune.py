"""Plain jobs stand in no index by age: prune finds them by when they finished, behind those that stay."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.backends.sqlite.support import add, claim, ended, new, opened, settle
from windlass.backend import limit_requests as lrq
from windlass.backend import requests as rq
from windlass.backends.sqlite import SqliteBackend
from windlass.core.job import JobRef
from windlass.core.limit_rules import GroupLimits, Rate
from windlass.core.option_values import KEEP_COMPLETED, Keep
from windlass.core.options import StoredOptions
from windlass.core.outcome import Outcome

T0 = 1_700_000_000_000
DAY = KEEP_COMPLETED.age_ms or 0
FOR_EVER = StoredOptions(keep_completed=Keep())
A_WEEK = StoredOptions(keep_completed=Keep(7 * DAY))


async def complete(store: SqliteBackend, at_ms: int, *ids: str, **fields: Any) -> None:
    await add(store, *(new(id=job_id, **fields) for job_id in ids), now_ms=at_ms)
    jobs = await claim(store, limit=len(ids), now_ms=at_ms)
    await settle(store, *(ended(job) for job in jobs), now_ms=at_ms)


async def prune(store: SqliteBackend, at_ms: int, limit: int = 1_000) -> rq.Pruned:
    return await store.execute(rq.Prune(limit=limit, now_ms=at_ms))


async def left(store: SqliteBackend, *ids: str) -> list[str]:
    records = await store.execute(rq.GetJobs(refs=[JobRef("q", job_id) for job_id in ids]))
    return [record.id for record in records if record is not None]


def aged(path: Path) -> int:
    """How many jobs the index by age holds."""
    with closing(sqlite3.connect(path)) as conn:
        found = conn.execute("SELECT count(*) FROM windlass_default_job WHERE keep_until_ms IS NOT NULL")
        return int(found.fetchone()[0])


async def test_plain_jobs_go_at_the_default_age_to_the_millisecond(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs.db") as store:
        await complete(store, T0, "first")
        await complete(store, T0 + 5, "second")
        assert aged(tmp_path / "jobs.db") == 0
        assert (await prune(store, T0 + DAY - 1)).jobs == 0
        assert (await prune(store, T0 + DAY)).jobs == 1
        assert await left(store, "first", "second") == ["second"]
        assert (await prune(store, T0 + DAY + 5)).jobs == 1


async def test_jobs_that_are_kept_longer_hide_none_behind_them(tmp_path: Path) -> None:
    kept = [f"kept-{number}" for number in range(30)]
    async with opened(tmp_path / "jobs.db") as store:
        await complete(store, T0, "oldest")
        await complete(store, T0, *kept, options=FOR_EVER)
        await complete(store, T0, "between")
        await complete(store, T0 + 1, "a-week", options=A_WEEK)
        await complete(store, T0 + 2, "newest")
        assert aged(tmp_path / "jobs.db") == 1
        found = await prune(store, T0 + DAY, limit=1)
        assert (found.jobs, found.more) == (1, True)
        assert (await prune(store, T0 + DAY)).jobs == 1
        assert (await prune(store, T0 + DAY + 2)).jobs == 1
        assert await left(store, "oldest", "between", "newest", "a-week", *kept) == ["a-week", *kept]
        assert (await prune(store, T0 + 8 * DAY)).jobs == 1
        assert await left(store, *kept) == kept


async def test_more_jobs_that_stay_than_one_prune_looks_at(tmp_path: Path) -> None:
    kept = [f"kept-{number}" for number in range(2_500)]
    async with opened(tmp_path / "jobs.db") as store:
        await complete(store, T0, *kept, options=FOR_EVER)
        await complete(store, T0, "last")
        rounds = [await prune(store, T0 + DAY, limit=10) for _ in range(4)]
        assert [(found.jobs, found.more) for found in rounds] == [
            (0, True),
            (0, True),
            (1, False),
            (0, False),
        ]
    async with opened(tmp_path / "jobs.db") as store:  # which remembers nothing of that
        await complete(store, T0 + 1, "later")
        while (found := await prune(store, T0 + DAY + 1, limit=10)).more:
            assert found.jobs == 0
        assert found.jobs == 1
        assert await left(store, "later", *kept) == kept


async def test_a_prune_checks_a_bounded_number_of_queues_and_the_next_one_the_others(tmp_path: Path) -> None:
    names = [f"q{n:03}" for n in range(600)]
    async with opened(tmp_path / "jobs.db") as store:
        await add(store, *(new(name, id="j") for name in names), now_ms=T0)
        for name in (names[0], names[-1]):
            await settle(store, *(ended(job) for job in await claim(store, name, now_ms=T0)), now_ms=T0)
        rounds = [await prune(store, T0 + DAY) for _ in range(6)]
        assert [(found.jobs, found.more) for found in rounds[:3]] == [(1, True), (0, True), (1, False)]
        assert [found.more for found in rounds[3:]] == [True, True, False]


async def test_queues_wait_for_those_before_them_that_have_more_to_prune(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs.db") as store:
        await complete(store, T0, *(f"j{n}" for n in range(5)))
        await add(store, *(new(f"q{n:03}", id="j") for n in range(300)), now_ms=T0)
        rounds = [await prune(store, T0 + DAY, limit=2) for _ in range(4)]
        assert [(found.jobs, found.more) for found in rounds] == [(2, True), (2, True), (1, True), (0, False)]


async def test_jobs_that_an_older_release_finished_go_as_well(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with opened(path) as store:
        await complete(store, T0, "old", "new")
        with closing(sqlite3.connect(path)) as conn, conn:
            conn.execute(
                "UPDATE windlass_default_job SET keep_until_ms = finished_ms + ? WHERE id = 'old'", (DAY,)
            )
        assert (await prune(store, T0 + DAY)).jobs == 2


async def test_failed_and_cancelled_jobs_have_the_age_of_their_state(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs.db") as store:
        await add(store, new(id="failed"), new(id="cancelled"), now_ms=T0)
        await store.execute(rq.CancelJobs(refs=[JobRef("q", "cancelled")], now_ms=T0))
        (job,) = await claim(store, now_ms=T0)
        await settle(store, ended(job, Outcome.FAIL, reason="unrecoverable"), now_ms=T0)
        assert (await prune(store, T0 + DAY)).jobs == 1
        assert await left(store, "failed", "cancelled") == ["failed"]
        assert (await prune(store, T0 + 180 * DAY - 1)).jobs == 0
        assert (await prune(store, T0 + 180 * DAY)).jobs == 1
        assert await left(store, "failed") == []


async def test_groups_whose_rate_is_in_use_hide_no_idle_ones(tmp_path: Path) -> None:
    path, groups = tmp_path / "jobs.db", 1_100
    async with opened(path) as store:
        for queue, per_ms in (("in-use", DAY), ("over", 1_000)):
            limits = GroupLimits(rate=Rate(5, per_ms))
            await store.execute(lrq.SetGroupLimits(queue=queue, group="*", limits=limits))
            options = [StoredOptions(group=f"g{n}") for n in range(groups)]
            await add(store, *(new(queue, options=one) for one in options), now_ms=T0)
            jobs = await claim(store, queue, limit=groups, now_ms=T0)
            await settle(store, *(ended(job) for job in jobs), now_ms=T0)
        assert _groups(path) == {"in-use": groups, "over": groups}
        for _ in range(3):
            await prune(store, T0 + 60_000)
        assert _groups(path) == {"in-use": groups}


def _groups(path: Path) -> dict[str, int]:
    """How many groups each queue has rows of."""
    rows = "windlass_default_grp JOIN windlass_default_queue q ON q.num = queue"
    with closing(sqlite3.connect(path)) as conn:
        return dict(conn.execute(f"SELECT q.name, count(*) FROM {rows} GROUP BY 1"))
