"""``kill -9`` at every named point of the worker and of the writer: a restart finds all in order."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.faults.kit import Stage, check_books, staged, until
from windlass import JobState
from windlass.jobs import AddOutcome

if TYPE_CHECKING:
    from pathlib import Path

backend_name = "sqlite"
JOBS = 60


async def add_jobs(stage: Stage, name: str = "noop") -> list[str]:
    jobs = await stage.app.queue("q").add_bulk({"name": name, "data": {"n": n}} for n in range(JOBS))
    return [job.id for job in jobs]


@pytest.mark.feature("J3", "J7", "J8")
@pytest.mark.parametrize("nth", [1, 3, 4])
@pytest.mark.parametrize(
    "point", ["worker.claimed", "sqlite.begun", "sqlite.committing", "sqlite.committed", "recover.done"]
)
async def test_a_worker_killed_at_a_point_loses_nothing(tmp_path: Path, point: str, nth: int) -> None:
    async with staged(tmp_path) as stage:
        ids = await add_jobs(stage)
        victim = stage.worker(probes=f"{point}=kill@{nth}")
        assert await victim.ended() == -signal.SIGKILL
        heir = stage.worker(burst=True)  # ends when nothing is waiting, active or retrying
        assert await heir.ended() == 0
        outcomes = await check_books(stage.app, ids)
        assert set(outcomes) <= {"completed", "stalled"}
        for ended in await stage.history():
            assert ended.delivery <= 2


@pytest.mark.feature("J3", "J7", "J8")
async def test_a_worker_killed_while_it_renews_leases_loses_nothing(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        ids = await add_jobs(stage)
        victim = stage.worker(probes="leases.renewing=kill", env={"STAGE_ROLE": "victim"})
        assert await victim.ended() == -signal.SIGKILL
        assert len(stage.lines("hanging")) == 16
        heir = stage.worker(burst=True)
        assert await heir.ended() == 0
        assert await check_books(stage.app, ids) == {"completed": JOBS, "stalled": 16}


@pytest.mark.feature("J3", "J7")
async def test_a_worker_killed_after_it_took_back_jobs_of_another_loses_nothing(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        ids = await add_jobs(stage)
        first = stage.worker(probes="worker.claimed=kill@2")
        assert await first.ended() == -signal.SIGKILL
        # Its claims are refused work; sooner or later it recovers the first one's jobs, then it dies.
        second = stage.worker(queues=["other"], probes="recover.done=kill@12")
        assert await second.ended() == -signal.SIGKILL
        heir = stage.worker(burst=True)
        assert await heir.ended() == 0
        outcomes = await check_books(stage.app, ids)
        assert outcomes["stalled"] > 0


@pytest.mark.feature("C18")
async def test_a_job_whose_workers_die_again_and_again_fails_at_last(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        queue = stage.app.queue("q")
        poison = await queue.add("suicide", max_stalls=1)
        for deaths in (1, 2):
            victim = stage.worker(concurrency=1)
            assert await victim.ended() == -signal.SIGKILL
            assert len(stage.lines("died")) == deaths
        heir = stage.worker(burst=True)
        assert await heir.ended() == 0
        record = await poison.refresh()
        assert (record.state, record.reason, record.deliveries) == ("failed", "stalled", 2)
        assert record.attempts == 0, "the cap on lost workers is apart from the cap on attempts"
        assert len(stage.lines("died")) == 2


@pytest.mark.parametrize("point", ["sqlite.begun", "sqlite.committing", "sqlite.committed"])
async def test_a_producer_killed_at_a_point_leaves_all_or_nothing(tmp_path: Path, point: str) -> None:
    async with staged(tmp_path) as stage:
        before = await add_jobs(stage, "tell")
        producer = stage.spawn("tests.faults.produce", "500", probes=f"{point}=kill")
        assert await producer.ended() == -signal.SIGKILL
        assert stage.lines("acknowledged") == []
        queue = stage.app.queue("q")
        counts = await queue.get_job_counts()
        assert counts[JobState.WAITING] == JOBS + (500 if point == "sqlite.committed" else 0)

        again = stage.spawn("tests.faults.produce", "500")  # the same ids once more
        assert await again.ended() == 0
        outcome = AddOutcome.DUPLICATE if point == "sqlite.committed" else AddOutcome.QUEUED
        assert stage.lines("acknowledged") == [outcome.value] * 500
        worker = stage.worker(burst=True)
        assert await worker.ended() == 0
        await check_books(stage.app, before + [f"chosen-{n}" for n in range(500)])
        assert len(stage.lines("ran")) == JOBS + 500


@pytest.mark.feature("J3", "J8")
async def test_the_leader_is_killed_and_its_duties_go_on(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        ids = await add_jobs(stage)
        settings: dict[str, Any] = {"prune_every": 0.2, "concurrency": 4}
        leads = stage.path("leads")
        leader = stage.worker(
            probes=f"prune.done=touch:{leads},prune.done=kill@5", env={"STAGE_ROLE": "victim"}, **settings
        )
        await until(leads.exists, "the first worker leads")
        other = stage.worker(**settings)
        assert await leader.ended() == -signal.SIGKILL
        await until(lambda: _completed(stage), "the other took back its jobs")
        other.signal(signal.SIGTERM)
        assert await other.ended() == 0
        await check_books(stage.app, ids)


async def _completed(stage: Stage) -> bool:
    return await stage.completed() >= JOBS
