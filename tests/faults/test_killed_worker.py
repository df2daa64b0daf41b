"""``kill -9`` of a worker that is busy: nothing is lost, nothing is done twice in the books."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.faults.kit import Stage, check_books, staged, until

if TYPE_CHECKING:
    from pathlib import Path

backend_name = "sqlite"
JOBS = 20_000
OPTIONS = ("--queues", "q", "--lease", "2s")


@pytest.mark.feature("J3", "J7", "J8")
async def test_two_workers_finish_20000_jobs_though_one_is_killed_while_busy(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        queue = stage.app.queue("q")
        jobs = await queue.add_bulk({"name": "noop", "data": {"n": n}} for n in range(JOBS))
        victim = stage.command(*OPTIONS, env={"STAGE_ROLE": "victim", "STAGE_HANG_AFTER": "500"})
        await until(lambda: len(stage.lines("hanging")) == 16, "the victim is inside 16 jobs")
        other = stage.command(*OPTIONS)
        await until(lambda: _completed_by(stage, other.pid), "the other works as well")
        victim.signal(signal.SIGKILL)
        assert await victim.ended() == -signal.SIGKILL

        await until(lambda: _all_completed(stage), "all jobs are completed", timeout=55)
        outcomes = await check_books(stage.app, [job.id for job in jobs])
        assert outcomes["completed"] == JOBS
        other.signal(signal.SIGTERM)
        assert await other.ended() == 0

        history = await stage.history()
        stalled = {ended.job_id for ended in history if ended.outcome == "stalled"}
        assert len(stalled) == outcomes["stalled"] >= 16
        for ended in history:
            if ended.outcome == "completed":
                assert ended.delivery == (2 if ended.job_id in stalled else 1)
                assert ended.attempt == 1, "a lost worker costs no attempt"
        hung = [jobs[int(line)].id for line in stage.lines("hanging")]
        assert set(hung) <= stalled
        record = await queue.get_job(hung[0])
        assert record is not None
        assert (record.deliveries, record.stalled_count, record.attempts) == (2, 1, 0)


async def _all_completed(stage: Stage) -> bool:
    return await stage.completed() >= JOBS


async def _completed_by(stage: Stage, pid: int) -> bool:
    return any(f":{pid}:" in (ended.worker or "") for ended in await stage.history())
