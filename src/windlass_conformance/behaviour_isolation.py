"""Where handlers run: on the loop, in threads, in child processes."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from windlass import Job, JobFailedError, JobState, UnrecoverableError, current_job
from windlass_conformance import targets
from windlass_conformance.harness import Harness
from windlass_conformance.needs import needs
from windlass_conformance.stage import QUEUE, Stage, eventually

if TYPE_CHECKING:
    from pathlib import Path


def isolated(stage: Stage, fn: Any, **options: Any) -> Any:
    """``fn`` as a task that runs in a child process."""
    return stage.app.task(queue=QUEUE, isolation="process", **options)(fn)


@pytest.mark.feature("J10", "Y6")
async def test_async_functions_run_on_the_loop_and_plain_ones_in_threads(harness: Harness) -> None:
    async with Stage(harness) as stage:

        @stage.app.task(queue=QUEUE)
        async def on_loop() -> str:
            return threading.current_thread().name

        @stage.app.task(queue=QUEUE)
        def in_thread() -> str:
            return threading.current_thread().name

        await stage.work()
        here = threading.current_thread().name
        assert await (await on_loop.enqueue()).result() == here
        assert await (await in_thread.enqueue()).result() != here


@pytest.mark.feature("Y6", "H1")
async def test_plain_functions_of_one_worker_run_side_by_side(harness: Harness) -> None:
    async with Stage(harness) as stage:
        meeting = threading.Barrier(3, timeout=10)

        def meet(job: Job[Any]) -> int:
            return meeting.wait()

        await stage.work(meet, concurrency=3)
        jobs = await stage.queue.add_bulk([{"name": "n"} for _ in range(3)])
        assert sorted([await job.result() for job in jobs]) == [0, 1, 2]


@pytest.mark.feature("A22", "A33", "J15")
async def test_a_plain_function_reports_through_its_job(harness: Harness) -> None:
    async with Stage(harness) as stage:

        @stage.app.task(queue=QUEUE)
        def work() -> None:
            job: Any = current_job()
            job.sync.log("half")
            job.sync.update_progress({"current": 1, "total": 2})

        await stage.work()
        job = await work.enqueue()
        await job.result()
        assert job.progress == {"current": 1, "total": 2}
        assert await stage.queue.get_job_logs(job.id) == (["half"], 1)


@pytest.mark.feature("T1")
async def test_an_isolated_task_runs_in_another_process(harness: Harness) -> None:
    async with Stage(harness) as stage:
        pid, double = isolated(stage, targets.pid), isolated(stage, targets.double)
        await stage.work(process_slots=1)
        child = await (await pid.enqueue()).result()
        assert child != os.getpid()
        assert await (await double.enqueue(21)).result() == 42
        assert await (await pid.enqueue()).result() == child


@pytest.mark.feature("T1", "A22", "A33")
async def test_an_isolated_task_reports_through_its_job(harness: Harness) -> None:
    async with Stage(harness) as stage:
        report = isolated(stage, targets.report)
        await stage.work(process_slots=1)
        job = await report.enqueue()
        assert await job.result() == "attempt 1"
        assert job.progress == 50
        assert await stage.queue.get_job_logs(job.id) == (["from the child"], 1)


@pytest.mark.feature("T1", "C20")
async def test_an_error_in_a_child_comes_back_with_its_class_and_traceback(harness: Harness) -> None:
    async with Stage(harness) as stage:
        fail, give_up = isolated(stage, targets.fail, max_attempts=1), isolated(stage, targets.give_up)
        await stage.work(process_slots=1)
        job = await fail.enqueue()
        with pytest.raises(JobFailedError) as caught:
            await job.result()
        assert (caught.value.error_class, caught.value.error_message) == ("ValueError", "in the child")
        assert "in fail" in caught.value.traceback
        job = await give_up.enqueue()
        await job.wait_until_finished()
        assert (job.reason, job.errors[-1].error_class) == (
            "unrecoverable",
            UnrecoverableError.__name__,
        )


@pytest.mark.feature("T1", "B15")
async def test_signals_of_a_child_steer_its_job(harness: Harness) -> None:
    async with Stage(harness) as stage:
        snooze = isolated(stage, targets.snooze_once, max_attempts=1)
        await stage.work(process_slots=1)
        job = await snooze.enqueue()
        await stage.until_state(job, JobState.SCHEDULED)
        await stage.advance(31)
        assert await job.result() == "after the snooze"


@pytest.mark.feature("T2")
async def test_a_child_that_dies_costs_an_attempt_and_nothing_else(harness: Harness) -> None:
    async with Stage(harness) as stage:
        crash, double = isolated(stage, targets.crash, max_attempts=1), isolated(stage, targets.double)
        await stage.work(process_slots=1)
        job = await crash.enqueue()
        assert await job.wait_until_finished() is JobState.FAILED
        assert (job.attempts, job.errors[-1].error_class) == (1, "WorkerCrashError")
        assert await (await double.enqueue(2)).result() == 4


@pytest.mark.feature("T2", "A12", "F6")
async def test_a_child_past_its_timeout_is_killed(harness: Harness, tmp_path: Path) -> None:
    async with Stage(harness) as stage:
        hang = isolated(stage, targets.hang, max_attempts=1, timeout=30)
        await stage.work(process_slots=1, lease=3_600)
        job = await hang.enqueue(str(tmp_path / "began"))
        await eventually((tmp_path / "began").exists)
        await stage.advance(31)
        assert await job.wait_until_finished() is JobState.FAILED
        assert job.errors[-1].error_class == "JobTimeoutError"


@pytest.mark.feature("F2", "F6", "T2")
async def test_a_cancelled_child_is_killed(harness: Harness, tmp_path: Path) -> None:
    async with Stage(harness) as stage:
        hang = isolated(stage, targets.hang)
        await stage.work(process_slots=1)
        job = await hang.enqueue(str(tmp_path / "began"))
        await eventually((tmp_path / "began").exists)
        await job.cancel("stop")
        assert await job.wait_until_finished() is JobState.CANCELLED


@pytest.mark.feature("I10", "T1", "E10")
@needs("flows")
async def test_a_child_process_makes_children_and_streams(harness: Harness) -> None:
    async with Stage(harness) as stage:
        isolated(stage, targets.double, name="double")
        split = isolated(stage, targets.split)
        job = await split.enqueue()
        await stage.work()
        assert await job.result() == 6
        chunks = [chunk.value async for chunk in stage.queue.read_stream(job.id)]
        assert chunks == ["all", "there"]


@pytest.mark.feature("F8", "T1")
@needs("signals")
async def test_a_child_process_suspends_its_job(harness: Harness) -> None:
    async with Stage(harness) as stage:
        ask = isolated(stage, targets.ask)
        job = await ask.enqueue()
        await stage.work()
        await stage.until_state(job, JobState.SUSPENDED)
        await stage.queue.signal(job.id, "yes", 7)
        assert await job.result() == "received 7"
