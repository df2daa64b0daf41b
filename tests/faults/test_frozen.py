"""Processes that the kernel stops (SIGSTOP) and lets go on (SIGCONT) when the world has moved on."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.faults.kit import Stage, check_books, raises_within, staged, until
from windlass import StorageError
from windlass.backend import requests as rq
from windlass.core.outcome import Extended, Outcome, Settled, Settlement

if TYPE_CHECKING:
    from pathlib import Path

    from windlass.core.job import JobRecord

backend_name = "sqlite"

#: A worker whose only writes are claims, settlements and renewals.
QUIET: dict[str, Any] = {"duties": False, "heartbeat": 3600, "poll": 3600, "concurrency": 1}


@pytest.mark.feature("J3", "J7", "J24")
async def test_a_worker_frozen_past_its_lease_gets_lease_lost_and_changes_nothing(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        job = await stage.app.queue("q").add("hold")
        # At that point its only transaction is yet to come: it is frozen outside of one, in a handler.
        victim = stage.worker(probes="leases.renewing=stop", env={"STAGE_ROLE": "victim"}, **QUIET)
        await victim.frozen()
        assert stage.lines("holding") == [str(victim.pid)]
        before = await stage.app.store.get(job.ref)
        assert before is not None
        assert before.state == "active"

        stage.worker()
        assert await job.result(timeout=40) == "taken over"
        taken_over = await stage.app.store.get(job.ref)
        assert taken_over is not None
        assert (taken_over.deliveries, taken_over.stalls, taken_over.attempts) == (2, 1, 0)

        victim.signal(signal.SIGCONT)
        await until(lambda: stage.lines("late"), "the victim's handler has tried to report")
        assert stage.lines("late") == ["LeaseLostError"]
        victim.signal(signal.SIGTERM)  # gives back and settles what it believes to hold
        assert await victim.ended() == 0
        await _settle_late(stage.app.store.execute, before)
        assert await stage.app.store.get(job.ref) == taken_over
        outcomes = await check_books(stage.app, [job.id])
        assert outcomes == {"stalled": 1, "completed": 1}


async def _settle_late(execute: object, before: JobRecord) -> None:
    """What the frozen worker would send in the worst case: every verb under its old token."""
    assert callable(execute)
    token = before.token or ""
    for outcome in Outcome:
        end = Settlement(queue=before.queue, id=before.id, token=token, outcome=outcome, result=b'"late"')
        assert (await execute(rq.Settle(items=[end]))).items == [Settled.LOST]
    lease = rq.LeaseRef(before.queue, before.id, token, 60_000)
    assert await execute(rq.Extend(leases=[lease])) == [Extended.LOST]


@pytest.mark.parametrize("point", ["sqlite.begun", "sqlite.committing"])
async def test_a_freeze_in_a_transaction_makes_others_raise_and_resume(tmp_path: Path, point: str) -> None:
    async with staged(tmp_path, timeout=1) as stage:
        queue = stage.app.queue("q")
        jobs = await queue.add_bulk({"name": "tell", "data": {"n": n}} for n in range(50))
        victim = stage.worker(probes=f"{point}=stop@3", lease=30)
        await victim.frozen()

        error = await raises_within(queue.add("tell", {"n": 50}), StorageError, 10)
        assert "stopped in the middle of a transaction" in str(error)
        assert "Nothing was changed" in str(error)
        async with asyncio.timeout(5):  # reads never wait for writers
            counts = await queue.get_job_counts()
            assert sum(counts.values()) == 50
            assert await queue.get_job(jobs[0].id) is not None

        victim.signal(signal.SIGCONT)
        jobs.append(await queue.add("tell", {"n": 51}))
        await until(lambda: _is_done(stage.lines("ran"), 51), "everybody goes on")
        await until(lambda: _completed(stage, 51), "all is settled")
        outcomes = await check_books(stage.app, [job.id for job in jobs])
        assert outcomes == {"completed": 51}, "nothing lost or run twice, the refused add undone"


async def test_a_freeze_after_the_commit_holds_up_no_other_process(tmp_path: Path) -> None:
    async with staged(tmp_path, timeout=1) as stage:
        queue = stage.app.queue("q")
        jobs = await queue.add_bulk({"name": "tell", "data": {"n": n}} for n in range(50))
        victim = stage.worker(probes="sqlite.committed=stop@3", lease=30)
        await victim.frozen()
        jobs.append(await queue.add("tell", {"n": 50}))
        victim.signal(signal.SIGCONT)
        await until(lambda: _completed(stage, 51), "all is settled")
        assert await check_books(stage.app, [job.id for job in jobs]) == {"completed": 51}


def _is_done(lines: list[str], count: int) -> bool:
    return len(lines) >= count


async def _completed(stage: Stage, count: int) -> bool:
    return await stage.completed() >= count


@pytest.mark.feature("J3")
async def test_a_frozen_process_is_killed_and_its_transaction_never_happened(tmp_path: Path) -> None:
    async with staged(tmp_path, timeout=1) as stage:
        queue = stage.app.queue("q")
        jobs = await queue.add_bulk({"name": "noop", "data": {"n": n}} for n in range(50))
        victim = stage.worker(probes="sqlite.committing=stop@4")
        await victim.frozen()
        await raises_within(queue.add("noop", {"n": 50}), StorageError, 10)
        victim.signal(signal.SIGKILL)  # the kernel takes its locks away
        assert await victim.ended() == -signal.SIGKILL
        jobs.append(await queue.add("noop", {"n": 51}))
        other = stage.worker(burst=True)
        assert await other.ended() == 0
        await check_books(stage.app, [job.id for job in jobs])
