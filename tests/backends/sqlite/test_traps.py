"""The traps of a job queue on SQLite, one test each: none of them may come back.

The numbers are those of the list of semantics that the project keeps (b-004-*, b-py-7).
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from tests.backends.sqlite.support import add, claim, ended, new, opened, settle
from windlass.backend import requests as rq
from windlass.backends.sqlite.statements import load, read
from windlass.core.job import ErrorInfo, EventType, JobRef
from windlass.core.outcome import AddOutcome, Changed, Outcome, Settled
from windlass.core.states import JobState
from windlass.errors import WindlassError

NOW = 1_700_000_000_000


async def test_queues_do_not_share_rows(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs.db") as store:
        await add(store, new("a", id="same"), new("b", id="same"))
        assert [(job.queue, job.id) for job in await claim(store, "a")] == [("a", "same")]
        assert (await store.execute(rq.CountJobs(queue="b")))[JobState.WAITING] == 1
        await store.execute(rq.Purge(queue="a", states=list(JobState), force=True))
        assert (await store.execute(rq.CountJobs(queue="b")))[JobState.WAITING] == 1


async def test_a_delayed_job_is_due_at_its_time_when_new_and_when_retried(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs.db") as store:
        await add(store, new(id="a", delay_ms=5_000), now_ms=NOW)
        assert await claim(store, now_ms=NOW + 4_999) == []
        (job,) = await claim(store, now_ms=NOW + 5_000)
        await settle(store, ended(job, Outcome.RETRY, delay_ms=2_000), now_ms=NOW + 6_000)
        assert await claim(store, now_ms=NOW + 7_999) == []
        (again,) = await claim(store, now_ms=NOW + 8_000)
        assert again.attempts == 1


async def test_every_time_is_milliseconds(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with opened(path) as store:
        await add(store, new(id="a", expires_in_ms=60_000), new(id="b", delay_ms=60_000))
        (job,) = await claim(store)
        await settle(store, ended(job))
        conn = sqlite3.connect(path)
        columns = [
            row[1]
            for row in conn.execute("PRAGMA table_info(windlass_default_job)")
            if row[1].endswith("_ms")
        ]
        assert len(columns) >= 9
        for row in conn.execute(f"SELECT {', '.join(columns)} FROM windlass_default_job"):
            for column, value in zip(columns, row, strict=True):
                assert value is None or (isinstance(value, int) and value > 1_600_000_000_000), column
        conn.close()


async def test_jobs_of_a_dead_worker_come_back(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs.db") as store:
        await add(store, new(id="a"), new(id="b"), now_ms=NOW)
        (job,) = await claim(store, limit=1, now_ms=NOW, lease_ms=1_000)
        recovered = await store.execute(rq.Recover(now_ms=NOW + 999))
        assert recovered.recovered == []
        recovered = await store.execute(rq.Recover(now_ms=NOW + 1_000))
        assert recovered.recovered == [job.ref]
        (again, _) = await claim(store, now_ms=NOW + 1_001)
        assert (again.id, again.deliveries, again.stalls) == ("a", 2, 1)  # at its old place, before b


@pytest.mark.feature("A5")
async def test_a_batch_is_added_whole_or_not_at_all(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs.db") as store:
        jobs = [new(id=f"job{number}") for number in range(20)]
        jobs[13].priority = 2**80
        with pytest.raises(WindlassError):
            await add(store, *jobs)
        assert (await store.execute(rq.ListJobs(queue="q"))).jobs == []
        jobs[13].priority = 0
        answers = await add(store, *jobs)
        assert {answer.outcome for answer in answers} == {AddOutcome.QUEUED}


async def test_one_claim_fills_all_free_slots(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs.db") as store:
        await add(store, *[new() for _ in range(100)])
        assert len(await claim(store, limit=64)) == 64
        assert len(await claim(store, limit=64)) == 36


async def test_attempts_count_failures_and_nothing_else(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs.db") as store:
        await add(store, new(id="a"))
        seen = []
        for outcome in (Outcome.RETRY, Outcome.RELEASE, Outcome.SNOOZE, Outcome.RETRY, Outcome.FAIL):
            (job,) = await claim(store)
            seen.append(job.attempts)
            await settle(store, ended(job, outcome))
        (final,) = await store.execute(rq.GetJobs(refs=[JobRef("q", "a")]))
        assert final is not None
        assert seen == [0, 1, 1, 1, 2]
        assert (final.attempts, final.deliveries) == (3, 5)


async def test_retry_by_hand_gives_a_fresh_budget(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs.db") as store:
        await add(store, new(id="a"), new(id="b"))
        (job, _) = await claim(store)
        await settle(store, ended(job, Outcome.FAIL, error=ErrorInfo(error_class="Boom")))
        answers = await store.execute(rq.RetryJobs(refs=[JobRef("q", "a"), JobRef("q", "b")]))
        assert [answer.status for answer in answers] == [Changed.OK, Changed.ILLEGAL]
        (again,) = await claim(store)
        assert (again.attempts, again.manual_retries, len(again.errors)) == (0, 1, 1)


async def test_removed_jobs_leave_the_file_and_the_file_shrinks(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with opened(path) as store:
        for _ in range(3):
            await add(store, *[new(payload=b"x" * 1_500) for _ in range(1_000)])
        await add(store, *[new(payload=b"x" * 9_000) for _ in range(600)])
        while (await store.execute(rq.Purge(queue="q", states=[JobState.WAITING]))).count:
            pass
        conn = sqlite3.connect(path)
        (jobs,) = conn.execute("SELECT count(*) FROM windlass_default_job").fetchone()
        (payloads,) = conn.execute("SELECT count(*) FROM windlass_default_payload").fetchone()
        (before,) = conn.execute("PRAGMA page_count").fetchone()
        assert (jobs, payloads) == (0, 0)
        for _ in range(8):
            await store.execute(rq.Prune())
        (after,) = conn.execute("PRAGMA page_count").fetchone()
        conn.close()
        assert after < before / 2
    assert os.stat(path).st_size < before * 4096 / 2


async def test_nothing_is_left_of_a_removed_job(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with opened(path) as store:
        await add(store, new(id="a", payload=b"x" * 10_000))
        await store.execute(rq.Report(ref=JobRef("q", "a"), logs=["one", "two"]))
        await store.execute(rq.RemoveJobs(refs=[JobRef("q", "a")]))
        conn = sqlite3.connect(path)
        for name in ("job", "payload", "log"):
            assert conn.execute(f"SELECT count(*) FROM windlass_default_{name}").fetchone() == (0,)
        conn.close()
        await add(store, new(id="a"))
        assert (await store.execute(rq.GetLogs(ref=JobRef("q", "a")))).count == 0


async def test_an_id_that_the_caller_chose_is_kept(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs.db") as store:
        await add(store, new(id="order-17", request_id="r1"))
        (twice,) = await add(store, new(id="order-17", request_id="r2"))
        assert twice.outcome is AddOutcome.DUPLICATE
        (job,) = await claim(store)
        assert job.id == "order-17"


async def test_progress_overwrites_nothing_else(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs.db") as store:
        await add(store, new(id="a"))
        (job,) = await claim(store)
        await store.execute(rq.CancelJobs(refs=[job.ref], reason="enough"))
        report = rq.Report(ref=job.ref, token=job.token, progress=b"50")
        assert (await store.execute(report)).status is Changed.OK
        (found,) = await store.execute(rq.GetJobs(refs=[job.ref]))
        assert found is not None
        assert (found.progress, found.cancel_reason) == (b"50", "enough")
        await settle(store, ended(job))
        assert (await store.execute(report)).status is Changed.LOST


async def test_pages_neither_lose_nor_repeat(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs.db") as store:
        await add(store, *[new(id=f"job{number}") for number in range(25)])
        seen: list[str] = []
        cursor: str | None = None
        while True:
            page = await store.execute(rq.ListJobs(queue="q", limit=10, cursor=cursor, newest_first=False))
            seen += [job.id for job in page.jobs]
            cursor = page.cursor
            if cursor is None:
                break
        assert seen == [f"job{number}" for number in range(25)]


@pytest.mark.feature("J24")
async def test_only_the_newest_lease_completes_and_one_failed_event_is_sent(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path / "jobs.db") as store:
        await add(store, new(id="a"), now_ms=NOW)
        (late,) = await claim(store, worker="w1", now_ms=NOW, lease_ms=1_000)
        await store.execute(rq.Recover(now_ms=NOW + 2_000))
        (owner,) = await claim(store, worker="w2", now_ms=NOW + 2_000)
        assert await settle(store, ended(late), now_ms=NOW + 2_001) == [Settled.LOST]
        boom = ErrorInfo(error_class="Boom")
        assert await settle(store, ended(owner, Outcome.RETRY, error=boom)) == [Settled.OK]
        (last,) = await claim(store)
        assert await settle(store, ended(owner)) == [Settled.ALREADY]
        assert await settle(store, ended(last, Outcome.FAIL, error=boom)) == [Settled.OK]
        events = [event.type for event in (await store.execute(rq.ReadEvents(queue="q"))).events]
        assert events.count(EventType.FAILED) == 1
        assert events.count(EventType.RETRYING) == 1


@pytest.mark.feature("L11")
async def test_new_states_need_no_rebuilt_table(tmp_path: Path) -> None:
    assert "CHECK" not in read("001_schema.sql")
    path = tmp_path / "jobs.db"
    async with opened(path) as store:
        await add(store, new(id="a"))
        conn = sqlite3.connect(path)
        with conn:
            conn.execute("UPDATE windlass_default_job SET state = 'parked' WHERE id = 'a'")
        conn.close()
        (job,) = await store.execute(rq.GetJobs(refs=[JobRef("q", "a")]))
        assert job is not None
        assert job.state is JobState.PARKED


async def test_transactions_are_begun_by_our_own_statements(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs.db") as store:
        conn = store._open_store().session.conn
        assert conn.isolation_level is None
        said: list[str] = []
        conn.set_trace_callback(said.append)
        await add(store, new())
        conn.set_trace_callback(None)
        assert said[0] == "BEGIN IMMEDIATE"
        assert said[-1] == "COMMIT"
        assert not any("BEGIN" in text for text in load("default").values())
