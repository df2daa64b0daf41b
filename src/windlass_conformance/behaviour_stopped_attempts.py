"""How an attempt ends that was stopped, or that cancels what it finds."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from windlass import Job, JobState, JobTimeoutError, Worker
from windlass_conformance import targets
from windlass_conformance.harness import Harness
from windlass_conformance.stage import QUEUE, LiveStage, Stage, eventually, in_time
from windlass_conformance.stop_support import BOUND, HASTY, check_gone, tasks

# --- how a stopped attempt ends ---------------------------------------------------------------------------


def _handlers(what: str, begun: threading.Event) -> dict[str, Any]:
    """Handlers that return or raise, as ``what`` says, when they are asked to stop."""

    async def on_loop(job: Job[Any]) -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if what == "return":
                return str(job.abort_signal.reason) if job.abort_signal else ""
            raise ValueError("broken by the stop") from None
        raise AssertionError("not reached")

    def in_thread(job: Job[Any]) -> str:
        begun.set()
        assert job.abort_signal is not None
        assert job.abort_signal.wait(30)
        if what == "return":
            return str(job.abort_signal.reason)
        raise ValueError("broken by the stop")

    return {"loop": on_loop, "thread": in_thread}


async def _begin(
    stage: Stage, tmp_path: Any, mode: str, what: str, **options: Any
) -> tuple[Worker, Job[Any]]:
    """A worker whose only job waits to be stopped."""
    limits: dict[str, Any] = {"grace": 0, "cancel_wait": 10}
    if mode == "process":
        task = stage.app.task(queue=QUEUE, isolation="process", name="stop_with", **options)(
            targets.stop_with
        )
        worker = await stage.work(**limits)
        path = tmp_path / "begun"
        job: Job[Any] = await task.enqueue(str(path), what)
        await eventually(path.exists, timeout=20)
        return worker, job
    begun = threading.Event()
    worker = await stage.work(_handlers(what, begun)[mode], **limits)
    job = await stage.queue.add("n", **options)
    await eventually(begun.is_set)
    return worker, job


MODES = ["loop", "thread", "process"]


@pytest.mark.feature("V5", "C9")
@pytest.mark.parametrize("mode", MODES)
async def test_a_handlers_own_error_after_a_shutdown_gives_the_job_back(
    harness: Harness, tmp_path: Any, mode: str
) -> None:
    async with LiveStage(harness) as stage:
        worker, job = await _begin(stage, tmp_path, mode, "raise", max_attempts=1)
        await worker.close()
        await job.refresh()
        assert (job.state, job.attempts, job.errors) == (JobState.WAITING, 0, [])


@pytest.mark.feature("V5", "C9")
@pytest.mark.parametrize("mode", MODES)
async def test_a_handler_that_returns_after_a_shutdown_has_completed(
    harness: Harness, tmp_path: Any, mode: str
) -> None:
    async with LiveStage(harness) as stage:
        worker, job = await _begin(stage, tmp_path, mode, "return")
        await worker.close()
        assert await job.result(timeout=5) == "shutdown"


@pytest.mark.feature("C14")
@pytest.mark.parametrize("mode", MODES)
async def test_an_error_after_a_cancel_ends_as_cancelled_on_the_last_attempt_too(
    harness: Harness, tmp_path: Any, mode: str
) -> None:
    async with LiveStage(harness) as stage:
        _, job = await _begin(stage, tmp_path, mode, "raise", max_attempts=1)
        await job.cancel("not needed")
        assert await job.wait_until_finished(timeout=20) is JobState.CANCELLED
        await job.refresh()
        assert (job.attempts, job.errors) == (0, [])


@pytest.mark.feature("C14")
@pytest.mark.parametrize("mode", MODES)
async def test_a_handler_that_returns_after_a_cancel_has_completed(
    harness: Harness, tmp_path: Any, mode: str
) -> None:
    async with LiveStage(harness) as stage:
        _, job = await _begin(stage, tmp_path, mode, "return")
        await job.cancel("not needed")
        assert await job.result(timeout=20) == "cancel"


@pytest.mark.feature("C9")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("what", ["raise", "return"])
async def test_what_a_handler_does_after_its_timeout_is_a_failed_attempt(
    harness: Harness, tmp_path: Any, mode: str, what: str
) -> None:
    async with LiveStage(harness) as stage:
        timeout = 4 if mode == "process" else 0.5  # importing the handler is part of it
        _, job = await _begin(stage, tmp_path, mode, what, max_attempts=1, timeout=timeout)
        assert await job.wait_until_finished(timeout=20) is JobState.FAILED
        await job.refresh()
        assert [error.error_class for error in job.errors] == [JobTimeoutError.__name__]


@pytest.mark.feature("V5")
async def test_a_thread_can_raise_what_its_signal_offers(harness: Harness) -> None:
    async with LiveStage(harness) as stage:
        begun = threading.Event()

        def patient(job: Job[Any]) -> str:
            signal = job.abort_signal
            assert signal is not None
            signal.raise_if_aborted()
            begun.set()
            signal.wait(30)
            signal.raise_if_aborted()
            return "not reached"

        worker = await stage.work(patient, grace=0, cancel_wait=10)
        job = await stage.queue.add("n", max_attempts=1)
        await eventually(begun.is_set)
        await worker.close()
        await job.refresh()
        assert (job.state, job.attempts, job.errors) == (JobState.WAITING, 0, [])


# --- a handler that cancels what it finds ---------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "windlass"])
async def test_a_worker_goes_on_though_a_handler_cancels_its_tasks(
    harness: Harness, caplog: pytest.LogCaptureFixture, prefix: str
) -> None:
    """A handler shares the loop with its worker: a task of the worker that it cancels is started again."""
    async with LiveStage(harness) as stage:
        of_the_test, cancelled = asyncio.all_tasks(), set[str]()

        async def handler(job: Job[Any]) -> str:
            if job.name == "rude":
                for task in asyncio.all_tasks() - of_the_test - {asyncio.current_task()}:
                    if task.get_name().startswith(prefix):
                        cancelled.add(task.get_name().removeprefix("windlass-"))
                        task.cancel()
            return job.name

        worker = await stage.work(handler, concurrency=1, duties=True, heartbeat=0.05, poll=0.1)
        rude = await stage.queue.add("rude")
        await eventually(lambda: bool(cancelled))
        polite = await stage.queue.add("polite")
        assert await polite.result(timeout=10) == "polite"
        assert await rude.result(timeout=10) == "rude"
        kept = {"pump", "lease-watch", "heartbeat", "lead", "recover", "prune"}
        assert kept <= cancelled
        await eventually(lambda: kept <= {name.removeprefix("windlass-") for name in tasks()})
        for name in kept:
            assert f"the worker's task {name} ended unexpectedly and is started again" in caplog.text
        await worker.close()
        assert worker.left_behind == []


@pytest.mark.feature("V2", "V3")
@pytest.mark.parametrize("moment", ["run", "close", "grace"])
async def test_a_worker_stops_in_time_and_says_why_though_a_handler_cancels_every_task(
    harness: Harness, caplog: pytest.LogCaptureFixture, moment: str
) -> None:
    """The task that runs the worker and the one that closes it are among those that the handler cancels."""
    async with LiveStage(harness) as stage:
        of_the_test, begun, go_on = asyncio.all_tasks(), asyncio.Event(), asyncio.Event()

        async def rude(job: Job[Any]) -> str:
            begun.set()
            await go_on.wait()
            if moment == "close":
                closings.append(asyncio.ensure_future(worker.close()))
                await asyncio.sleep(0)  # its close is asked for, and has not had its first step
            for task in asyncio.all_tasks() - of_the_test - {asyncio.current_task()}:
                task.cancel()
            return "done"

        worker = await stage.work(rude, concurrency=1, **HASTY)
        closings = [asyncio.ensure_future(worker.run())]
        job = await stage.queue.add("n")
        await begun.wait()
        if moment == "grace":
            closings.append(asyncio.ensure_future(worker.close()))
            await eventually(lambda: not worker.is_running)
        go_on.set()
        await asyncio.wait(closings, timeout=BOUND + 5)
        assert await in_time(worker.close()) < BOUND + 0.5
        assert (worker.is_running, worker.left_behind) == (False, [])
        await check_gone(stage, worker, set(threading.enumerate()))
        assert await job.get_state() in (JobState.COMPLETED, JobState.WAITING)
        assert "the worker's task pump ended unexpectedly" in caplog.text or moment != "run"
