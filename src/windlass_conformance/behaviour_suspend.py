"""Suspending a job until a signal comes, as users see it."""

from __future__ import annotations

from typing import Any

import pytest

from windlass import ConfigError, Job, JobNotFoundError, JobState, Suspend, Unique, current_job
from windlass.errors import IllegalTransitionError
from windlass.testing.kit import drain
from windlass_conformance.harness import Harness
from windlass_conformance.stage import QUEUE, Stage

NEEDS = "signals"


async def approve(job: Job[Any]) -> Any:
    """A handler that asks for an approval."""
    if "approved" in job.signals:
        return job.signals["approved"]
    if job.timed_out("approved"):
        return "no answer came"
    raise Suspend("approved", timeout=job.data)


@pytest.mark.feature("F8")
async def test_a_job_resumes_with_the_data_of_its_signal(harness: Harness) -> None:
    async with Stage(harness) as stage:
        job = await stage.queue.add("n")
        worker = await stage.work(approve)
        await stage.until_state(job, JobState.SUSPENDED)
        assert await job.is_suspended()
        await stage.queue.signal(job.id, "approved", {"by": "ada"})
        assert await job.result() == {"by": "ada"}
        assert (job.attempts, job.deliveries, worker.busy) == (0, 2, 0)


@pytest.mark.feature("F8", "Z14")
async def test_a_suspension_survives_that_everything_is_restarted(harness: Harness) -> None:
    async with Stage(harness) as stage:
        job = await stage.queue.add("n")
        await drain(await stage.work(approve))
        assert await job.get_state() is JobState.SUSPENDED
    await harness.reopen()
    async with Stage(harness) as stage:
        await stage.queue.signal(job.id, "approved", [1, 2])
    await harness.reopen()
    async with Stage(harness) as stage:
        again = await stage.queue.get_job(job.id)
        assert again is not None
        await drain(await stage.work(approve))
        assert await again.result() == [1, 2]


@pytest.mark.feature("F8")
async def test_a_suspension_may_end_without_its_signal(harness: Harness) -> None:
    async with Stage(harness) as stage:
        job = await stage.queue.add("n", 60)
        await stage.work(approve)
        await stage.until_state(job, JobState.SUSPENDED)
        await stage.advance(59)
        assert await job.get_state() is JobState.SUSPENDED
        await stage.advance(2)
        assert await job.result() == "no answer came"


@pytest.mark.feature("F8")
async def test_a_signal_that_comes_early_is_kept(harness: Harness) -> None:
    async with Stage(harness) as stage:
        job = await stage.queue.add("n")
        await stage.queue.signal(job.id, "approved", "early")
        await drain(await stage.work(approve))
        assert await job.result() == "early"
        assert job.deliveries == 1


@pytest.mark.feature("F8")
async def test_a_task_suspends_itself(harness: Harness) -> None:
    async with Stage(harness) as stage:

        @stage.app.task(name="ask", queue=QUEUE)
        def ask() -> str:
            job = current_job()
            if "yes" not in job.signals:
                job.suspend("yes")
            return "done"

        job = await ask.enqueue()
        worker = await stage.work()
        await stage.until_state(job, JobState.SUSPENDED)
        await stage.queue.signal(job.id, "yes")
        await drain(worker)
        assert await job.result() == "done"


@pytest.mark.feature("F8")
async def test_signals_that_cannot_be_sent_are_refused(harness: Harness) -> None:
    async with Stage(harness) as stage:
        with pytest.raises(JobNotFoundError):
            await stage.queue.signal("ghost", "x")
        job = await stage.queue.add("n")
        with pytest.raises(ConfigError):
            await stage.queue.signal(job.id, "")
        await job.cancel()
        with pytest.raises(IllegalTransitionError):
            await stage.queue.signal(job.id, "x")
        with pytest.raises(ConfigError):
            Suspend("")


@pytest.mark.feature("F8", "D5")
async def test_a_debounced_add_leaves_a_suspended_job_suspended(harness: Harness) -> None:
    async with Stage(harness) as stage:
        debounced = Unique("k", "debounce", ttl=10)
        job = await stage.queue.add("n", 600, unique=debounced)
        await stage.work(approve)
        await stage.advance(11)
        await stage.until_state(job, JobState.SUSPENDED)
        again = await stage.queue.add("n", 700, unique=debounced)
        assert (again.outcome, again.id, again.state) == ("replaced", job.id, JobState.SUSPENDED)
        await stage.advance(30)
        await job.refresh()
        assert (job.state, job.data, job.deliveries) == (JobState.SUSPENDED, 700, 1)
        await stage.queue.signal(job.id, "approved", "yes")
        assert await job.result() == "yes"


@pytest.mark.feature("F8", "D5")
async def test_the_time_limit_of_a_suspension_outlives_a_debounced_add(harness: Harness) -> None:
    async with Stage(harness) as stage:
        debounced = Unique("k", "debounce", ttl=10)
        job = await stage.queue.add("n", 60, unique=debounced)
        await stage.work(approve)
        await stage.advance(11)
        await stage.until_state(job, JobState.SUSPENDED)
        await stage.advance(40)
        await stage.queue.add("n", 60, unique=debounced)
        await stage.advance(21)
        assert await job.result() == "no answer came"
