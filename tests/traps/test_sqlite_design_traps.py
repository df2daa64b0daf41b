"""Traps of the SQLite design (b-004-*), seen from queues and workers, on every backend."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.app.support import (
    DrivenClock,
    event_names,
    eventually,
    history_of,
    states_of,
    store_url,
    watched,
    work_off,
    working,
)
from windlass import ConfigError, Job, JobState, Queue, StorageError, Windlass, Worker
from windlass.backend import requests as rq
from windlass.core.clock import SYSTEM_CLOCK
from windlass.core.outcome import Outcome, Settlement
from windlass.core.states import MOVES
from windlass.errors import IllegalTransitionError
from windlass.testing import faults

if TYPE_CHECKING:
    from pathlib import Path


async def _ok(job: Job[Any]) -> str:
    return "ok"


async def _fail(job: Job[Any]) -> None:
    raise ValueError("no")


def _claim(claim_id: str, limit: int = 1, lease_ms: int = 30_000, queue: str = "default") -> rq.Claim:
    queues = [rq.ClaimQueue(queue, limit, limit)]
    return rq.Claim(worker="w", queues=queues, limit=limit, claim_id=claim_id, lease_ms=lease_ms)


@pytest.mark.feature("J6")
async def test_a_worker_of_one_queue_never_runs_anothers_jobs(app: Windlass) -> None:
    ran: list[str] = []

    async def handler(job: Job[Any]) -> None:
        ran.append(job.queue_name)

    mine = await app.queue("a").add("work", job_id="same")
    other = await app.queue("b").add("work", job_id="same")
    await work_off(app, "a", handler)
    assert ran == ["a"]
    assert await mine.get_state() is JobState.COMPLETED
    assert await other.get_state() is JobState.WAITING
    assert await app.queue("b").count() == 1
    assert await app.queue("a").drain() == 0


@pytest.mark.parametrize("named_by", ["the one that waits", "the other"])
@pytest.mark.feature("I5", "I7")
async def test_an_edge_has_one_direction_and_is_kept(app: Windlass, queue: Queue, named_by: str) -> None:
    """A job waits for what it depends on, whichever side names the edge; nothing else waits."""
    if named_by == "the other":
        second = await queue.add("second")
        first = await queue.add("first", parent=second)
    else:
        first = await queue.add("first")
        second = await queue.add("second", depends_on=[first])
    assert await first.get_state() is JobState.WAITING
    assert await second.get_state() is JobState.BLOCKED
    ran: list[str] = []

    async def handler(job: Job[Any]) -> None:
        ran.append(job.name)

    await work_off(app, "default", handler)
    assert ran == ["first", "second"]


@pytest.mark.feature("A5")
async def test_no_reader_sees_half_of_what_was_added_together(app: Windlass, queue: Queue) -> None:
    """A graph will be added in one step; the step is atomic today. Readers see nothing, or everything."""
    seen: set[int] = set()

    async def look_until_all_are_there() -> None:
        async def all_there() -> bool:
            seen.add((await queue.get_job_counts())[JobState.WAITING])
            return 1_000 in seen

        await eventually(all_there)

    await asyncio.gather(look_until_all_are_there(), queue.add_bulk([{"name": "n"} for _ in range(1_000)]))
    assert seen <= {0, 1_000}


@pytest.mark.feature("A8")
async def test_a_delay_is_an_instant_once_stored_on_add_and_on_retry(
    timed_app: Windlass, clock: DrivenClock
) -> None:
    queue = timed_app.queue("default")
    start = clock.now_ms()
    later = await queue.add("later", delay=3_600)
    bad = await queue.add("bad", backoff=60)
    async with working(timed_app, "default", _fail):
        await clock.settle()
        assert (await later.refresh()).run_at_ms == start + 3_600_000
        assert later.deliveries == 0, "a new delayed job is not due at once"
        assert (await bad.refresh()).run_at_ms == start + 60_000
        await clock.advance(3_599)
        assert (await later.refresh()).deliveries == 0
        await clock.advance(2)
        assert (await later.refresh()).deliveries == 1


@pytest.mark.feature("A19")
async def test_all_times_are_milliseconds_of_one_clock(app: Windlass, queue: Queue) -> None:
    before = SYSTEM_CLOCK.now_ms()
    job = await queue.add("work")
    later = await queue.add("work", delay=100)
    await work_off(app, "default", _ok)
    after = SYSTEM_CLOCK.now_ms()
    await job.refresh()
    times = [before, job.enqueued_ms, job.started_ms, job.finished_ms, after]
    assert all(type(time) is int for time in times)
    assert times == sorted(times, key=lambda time: time or 0)
    assert before + 100_000 <= (later.run_at_ms or 0) <= after + 100_000


@pytest.mark.feature("J3", "J7", "J8")
async def test_a_dead_workers_job_is_taken_back_after_its_lease(
    timed_app: Windlass, clock: DrivenClock
) -> None:
    queue = timed_app.queue("default")
    job = await queue.add("work")
    await timed_app.store.execute(_claim("dead"))
    async with working(timed_app, "default", _ok, recover_every=15):
        await clock.advance(29)
        assert await job.get_state() is JobState.ACTIVE
        await clock.advance(17)
        assert await job.get_state() is JobState.COMPLETED
    assert (job.deliveries, job.stalled_count, job.attempts) == (2, 1, 0)


@pytest.mark.feature("J6", "J17")
async def test_two_clients_never_claim_the_same_job(backend_name: str, url: str, tmp_path: Path) -> None:
    # Different settings: on sqlite each client has a writer and connections of its own.
    other_url = f"{url}?timeout=10" if backend_name == "sqlite" else url
    async with Windlass(url) as one, Windlass(other_url) as two:
        await one.queue("default").add_bulk([{"name": "n"} for _ in range(400)])

        async def take(app: Windlass, name: str) -> list[str]:
            ids: list[str] = []
            number = 0
            while True:
                number += 1
                claimed = await app.store.execute(_claim(f"{name}{number}", limit=7))
                if not claimed.jobs:
                    return ids
                ids += [record.id for record in claimed.jobs]

        taken = await asyncio.gather(
            *(take(app, f"{n}-{i}-") for n, app in enumerate((one, two)) for i in range(3))
        )
        ids = [job_id for part in taken for job_id in part]
        assert len(ids) == len(set(ids)) == 400


@pytest.mark.feature("A5")
async def test_a_bulk_that_fails_leaves_nothing_behind(
    backend_name: str, app: Windlass, queue: Queue
) -> None:
    with pytest.raises(ConfigError):
        await queue.add_bulk([{"name": "n"}] * 500 + [{"name": "n", "dely": 1}])
    assert await queue.count() == 0
    if backend_name == "sqlite":
        with faults.probing() as probe:
            probe.arm("sqlite.committing", faults.lose_reply, times=3)
            with pytest.raises(StorageError):
                await queue.add_bulk([{"name": "n"}] * 500)
        assert await queue.count() == 0
    assert len(await queue.add_bulk([{"name": "n"}] * 500)) == 500
    assert await queue.count() == 500


@pytest.mark.feature("J2", "J16")
async def test_all_slots_are_filled_and_no_poll_stands_between_jobs(
    timed_app: Windlass, clock: DrivenClock
) -> None:
    queue = timed_app.queue("default")
    await queue.add_bulk([{"name": "n"} for _ in range(300)])
    start = clock.now_ms()
    async with working(timed_app, "default", _ok, concurrency=8, duties=False):
        while await queue.count() or (await queue.get_job_counts())[JobState.ACTIVE]:
            await clock.settle()
        assert clock.now_ms() == start, "300 jobs, and no time passed"
        backend = timed_app.store.backend
        backend.requests.clear()  # type: ignore[attr-defined]
        await clock.advance(60)
        idle = Counter(type(request).__name__ for request in backend.requests)  # type: ignore[attr-defined]
    assert idle["Claim"] <= 31, "an idle worker looks every two seconds, not in a loop"
    assert idle["Settle"] == 0


@pytest.mark.feature("A10")
@pytest.mark.parametrize("budget", [1, 2, 3, 5])
async def test_max_attempts_is_the_exact_number_of_runs(app: Windlass, queue: Queue, budget: int) -> None:
    runs: list[int] = []

    async def handler(job: Job[Any]) -> None:
        runs.append(job.attempt)
        raise ValueError

    job = await queue.add("work", max_attempts=budget, backoff=0)
    await work_off(app, "default", handler)
    assert runs == list(range(1, budget + 1))
    assert (await job.refresh()).attempts == budget
    with pytest.raises(ConfigError, match="max_attempts"):
        await queue.add("work", max_attempts=0)


@pytest.mark.feature("A25")
async def test_retry_by_hand_gives_a_fresh_budget(app: Windlass, queue: Queue) -> None:
    job = await queue.add("work", max_attempts=2, backoff=0)
    await work_off(app, "default", _fail)
    await job.retry()
    assert (await job.refresh()).attempts == 0
    await work_off(app, "default", _fail)
    await job.refresh()
    assert (job.attempts, job.deliveries, job.manual_retries) == (2, 4, 1)
    waiting = await queue.add("work")
    with pytest.raises(IllegalTransitionError):
        await waiting.retry()


@pytest.mark.feature("A13", "A31")
async def test_clean_and_retention_really_delete_and_keep_to_their_limits(
    timed_app: Windlass, clock: DrivenClock
) -> None:
    queue = timed_app.queue("default")
    await queue.add_bulk([{"name": "n"} for _ in range(10)])
    await clock.until(work_off(timed_app, "default", _ok, duties=False))
    cleaned = await queue.clean(limit=4)
    assert (cleaned.count, len(cleaned.ids)) == (4, 4)
    assert await states_of(queue) == {JobState.COMPLETED: 6}
    assert [await queue.get_job(job_id) for job_id in cleaned.ids] == [None] * 4
    await queue.add("n", keep_completed=2)
    await clock.until(work_off(timed_app, "default", _ok, duties=False))
    await clock.advance(61)
    await timed_app.store.execute(rq.Prune())
    assert await states_of(queue) == {JobState.COMPLETED: 2}


@pytest.mark.feature("A24")
async def test_nothing_refers_to_a_job_that_was_removed(app: Windlass, queue: Queue) -> None:
    async def handler(job: Job[Any]) -> None:
        await job.log("line")

    job = await queue.add("work", {"old": "x" * 10_000}, job_id="again")
    await work_off(app, "default", handler)
    await job.remove()
    fresh = await queue.add("work", {"new": True}, job_id="again")
    assert fresh.outcome == "queued"
    assert await queue.get_job_logs("again") == ([], 0)
    assert (await fresh.refresh()).data == {"new": True}
    assert (fresh.deliveries, fresh.errors, fresh.return_value) == (0, [], None)


@pytest.mark.feature("J1", "A6")
async def test_a_worker_stands_on_its_own_and_custom_ids_count(url: str) -> None:
    async with Queue("default", url) as queue:
        job = await queue.add("work", job_id="order-1")
        told: list[str] = []
        worker = Worker("default", _ok, url_or_app=url)
        worker.on("completed", lambda job, result: told.append(job.id))
        await worker.drain()
        assert job.id == "order-1"
        assert told == ["order-1"]
        oldest_first = await queue.get_jobs(newest_first=False)
        assert [one.id for one in oldest_first] == ["order-1"]


@pytest.mark.feature("A22")
async def test_progress_changes_nothing_else_and_ends_with_the_job(app: Windlass, queue: Queue) -> None:
    started, told, go = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def handler(job: Job[Any]) -> None:
        started.set()
        await told.wait()
        await job.update_progress({"done": 1})
        await go.wait()

    job = await queue.add("work", {"n": 1})
    async with working(app, "default", handler):
        await started.wait()
        other = await queue.get_job(job.id)
        assert other is not None
        await other.update_progress(99)  # from outside, through an older snapshot
        assert (await job.refresh()).progress == 99
        told.set()

        async def reported() -> bool:
            return bool((await job.refresh()).progress != 99)

        await eventually(reported)
        assert (job.progress, job.state, job.data, job.priority) == (
            {"done": 1},
            JobState.ACTIVE,
            {"n": 1},
            0,
        )
        go.set()
        await job.wait_until_finished()
    with pytest.raises(IllegalTransitionError, match="progress ends with the job"):
        await job.update_progress(100)
    assert (await job.refresh()).progress == {"done": 1}


@pytest.mark.feature("A28")
async def test_a_page_holds_exactly_what_was_asked_for(queue: Queue) -> None:
    await queue.add_bulk([{"name": "n"} for _ in range(7)])
    page = await queue.get_jobs(limit=3)
    assert len(page) == 3
    assert len(await queue.get_jobs(cursor=page.cursor, limit=4)) == 4
    with pytest.raises(ConfigError, match="limit"):
        await queue.get_jobs(limit=-1)


@pytest.mark.feature("J24", "C1", "K3")
async def test_completion_is_fenced_and_one_failed_event_is_sent(
    timed_app: Windlass, clock: DrivenClock
) -> None:
    queue = timed_app.queue("default")
    job = await queue.add("work")
    (record,) = (await timed_app.store.execute(_claim("late", lease_ms=1_000))).jobs
    await clock.advance(2)
    await timed_app.store.execute(rq.Recover())
    await clock.until(work_off(timed_app, "default", _ok))
    late = Settlement(
        queue="default", id=job.id, token=record.token or "", outcome=Outcome.COMPLETE, result=b'"late"'
    )
    assert (await timed_app.store.execute(rq.Settle(items=[late]))).items == ["lost"]
    assert await job.result() == "ok"

    bad = await queue.add("work", max_attempts=3, backoff=1)
    await clock.until(work_off(timed_app, "default", _fail))
    names = await event_names(queue, bad.id)
    assert (names.count("failed"), names.count("retrying")) == (1, 2)
    outcomes = [row.outcome for row in await history_of(queue) if row.job_id == bad.id]
    assert outcomes == ["retrying", "retrying", "failed"]


async def test_states_are_checked_by_the_program_and_not_by_the_table(tmp_path: Path) -> None:
    assert {state for state in MOVES if state is not None} == set(JobState)
    url = store_url("sqlite", tmp_path)
    async with Windlass(url) as app:
        await app.queue("default").add("work")
    connection = sqlite3.connect(tmp_path / "jobs.db")
    try:
        tables = dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'"))
    finally:
        connection.close()
    assert not [name for name, sql in tables.items() if "CHECK" in (sql or "").upper()]
    assert [name for name in tables if "migration" in name or "schema" in name or "meta" in name]


async def test_an_unknown_state_is_refused_by_name(queue: Queue) -> None:
    with pytest.raises(ConfigError, match="did you mean 'completed'"):
        await queue.get_jobs("complete")
    assert watched(queue.app).requests == []
