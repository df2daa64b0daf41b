"""SIGTERM and SIGINT to a worker process: running jobs finish, long ones go back as they were."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.faults.kit import check_books, staged, until

if TYPE_CHECKING:
    from pathlib import Path

    from windlass import Job

backend_name = "sqlite"
#: Nobody waits for a lease in these tests: what is given back is given back at once.
LONG: dict[str, Any] = {"lease": 600, "poll": 600}


@pytest.mark.feature("V1", "V2", "V3", "V4")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_running_job_finishes_and_no_new_one_begins(tmp_path: Path, number: signal.Signals) -> None:
    async with staged(tmp_path) as stage:
        running = await stage.app.queue("q").add("linger")
        worker = stage.worker(concurrency=1, **LONG)
        await until(lambda: stage.lines("lingering"), "the job is running")
        waiting = await stage.app.queue("q").add("tell", {"n": 1})
        worker.signal(number)
        await until(lambda: "stopping" in worker.output, "the worker was told")
        assert worker.code is None
        stage.path("go").touch()
        assert await worker.ended() == 0

        assert (await running.refresh()).state == "completed"
        assert running.return_value == "done"
        assert (await waiting.refresh()).state == "waiting"
        assert waiting.deliveries == 0
        assert stage.lines("lingering") == [str(worker.pid)], "it was not cancelled"
        assert await stage.app.workers() == [], "it took itself off the list"


@pytest.mark.feature("V3", "V5", "J8")
async def test_a_long_job_is_cancelled_and_given_back_without_using_an_attempt(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        job = await stage.app.queue("q").add("linger")
        worker = stage.worker(grace=0.2, cancel_wait=5, **LONG)
        await until(lambda: stage.lines("lingering"), "the job is running")
        worker.signal(signal.SIGTERM)
        assert await worker.ended() == 0
        assert stage.lines("lingering") == [str(worker.pid), "cancelled"]
        await job.refresh()
        assert (job.state, job.attempts, job.deliveries, job.stalled_count) == ("waiting", 0, 1, 0)

        stage.path("go").touch()
        heir = stage.worker(burst=True, **LONG)
        assert await heir.ended() == 0
        await job.refresh()
        assert (job.state, job.attempts, job.deliveries) == ("completed", 0, 2)
        assert await check_books(stage.app, [job.id]) == {"released": 1, "completed": 1}


@pytest.mark.feature("V2", "V5")
async def test_a_second_signal_is_immediate(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        job = await stage.app.queue("q").add("linger")
        worker = stage.worker(grace=600, cancel_wait=600, **LONG)
        await until(lambda: stage.lines("lingering"), "the job is running")
        worker.signal(signal.SIGTERM)
        await until(lambda: "stopping" in worker.output, "the worker was told")
        worker.signal(signal.SIGTERM)
        assert await worker.ended() == 0
        await job.refresh()
        assert (job.state, job.attempts, job.deliveries) == ("waiting", 0, 1)


@pytest.mark.feature("V1", "V2", "V5")
async def test_the_command_obeys_the_same_signals(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        job = await stage.app.queue("q").add("linger")
        options = ("--queues", "q", "--lease", "600s", "--grace")
        polite = stage.command(*options, "200ms")
        await until(lambda: stage.lines("lingering"), "the job is running")
        polite.signal(signal.SIGTERM)
        assert await polite.ended() == 0
        assert await _state_is(job, "waiting")

        hurried = stage.command(*options, "600s")
        await until(lambda: str(hurried.pid) in stage.lines("lingering"), "the job is running again")
        hurried.signal(signal.SIGTERM)
        await until(lambda: "stopping" in hurried.output, "the worker was told")
        hurried.signal(signal.SIGTERM)
        assert await hurried.ended() == 130
        await job.refresh()
        assert (job.state, job.attempts, job.deliveries) == ("waiting", 0, 2)


@pytest.mark.feature("V2", "V5")
async def test_a_thread_that_does_not_stop_does_not_hold_up_the_end(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        job = await stage.app.queue("q").add("stubborn")
        worker = stage.worker(grace=0.1, cancel_wait=0.1, **LONG)
        await until(lambda: stage.lines("stubborn"), "the thread is running")
        worker.signal(signal.SIGTERM)
        await until(lambda: _state_is(job, "waiting"), "the job was given back")
        stage.path("go").touch()
        assert await worker.ended() == 0
        await job.refresh()
        # What it did since does not count.
        assert (job.state, job.attempts, job.deliveries) == ("waiting", 0, 1)


async def _state_is(job: Job[object], state: str) -> bool:
    return await job.get_state() == state
