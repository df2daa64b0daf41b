"""Exceptions of handlers, and what they do to their jobs."""

from __future__ import annotations

import asyncio
from copy import deepcopy
from typing import Any

import pytest

from windlass import (
    Cancel,
    ConfigError,
    Job,
    JobCancelledError,
    JobFailedError,
    JobState,
    RateLimitError,
    Retry,
    Snooze,
    UnrecoverableError,
)
from windlass.errors import MaxRetriesError
from windlass_conformance.harness import Harness
from windlass_conformance.stage import Stage

EXACT = {"type": "fixed", "delay": 10, "jitter": 0}


def nested(levels: int) -> Any:
    """A list in a list, and so on."""
    found: Any = []
    for _ in range(levels - 1):
        found = [found]
    return found


class Script:
    """A handler that follows a list of instructions, one for each run."""

    def __init__(self, *steps: Any) -> None:
        self.steps = list(steps)
        self.runs: list[int] = []

    async def __call__(self, job: Job[Any]) -> Any:
        self.runs.append(job.attempt)
        step = self.steps.pop(0)
        if isinstance(step, BaseException):
            raise step
        return step


@pytest.mark.feature("C1", "C7", "A10")
async def test_a_failed_attempt_is_retried_after_its_backoff(harness: Harness) -> None:
    async with Stage(harness) as stage:
        script = Script(ValueError("one"), "done")
        await stage.work(script)
        job = await stage.queue.add("n", backoff=EXACT)
        await stage.until_state(job, JobState.RETRYING)
        assert (job.attempts, job.run_at_ms) == (1, stage.clock.now_ms() + 10_000)
        await stage.advance(9.99)
        assert script.runs == [1]
        await stage.advance(0.02)
        assert script.runs == [1, 2]
        assert await job.result() == "done"


@pytest.mark.feature("C1", "C16", "A10", "Z15")
async def test_a_spent_budget_fails_the_job_with_everything_a_dead_letter_needs(harness: Harness) -> None:
    async with Stage(harness) as stage:
        script = Script(*(ValueError(f"no {n}") for n in range(3)))
        await stage.work(script)
        job = await stage.queue.add("n", {"to": "ada"}, max_attempts=3, backoff=EXACT)
        await stage.until_state(job, JobState.RETRYING)
        await stage.advance(60)
        with pytest.raises(MaxRetriesError) as caught:
            await job.result()
        error = caught.value
        assert (error.attempts, error.error_class, error.error_message) == (3, "ValueError", "no 2")
        assert error.payload == {"to": "ada"}
        assert script.runs == [1, 2, 3]


@pytest.mark.feature("C20", "A18")
async def test_every_attempts_error_is_kept(harness: Harness) -> None:
    async with Stage(harness) as stage:
        await stage.work(Script(ValueError("one"), KeyError("two"), "fine"))
        job = await stage.queue.add("n", backoff=EXACT)
        await stage.until_state(job, JobState.RETRYING)
        await stage.advance(60)
        await job.refresh()
        assert [(e.attempt, e.error_class) for e in job.errors] == [(1, "ValueError"), (2, "KeyError")]
        assert "ValueError: one" in job.errors[0].traceback


@pytest.mark.feature("A10")
async def test_one_attempt_means_one_run(harness: Harness) -> None:
    async with Stage(harness) as stage:
        script = Script(ValueError())
        await stage.work(script)
        job = await stage.queue.add("n", max_attempts=1)
        assert await job.wait_until_finished() is JobState.FAILED
        await stage.advance(3_600)
        assert script.runs == [1]


@pytest.mark.feature("C8", "Z15")
async def test_an_unrecoverable_error_fails_at_once(harness: Harness) -> None:
    async with Stage(harness) as stage:
        await stage.work(Script(UnrecoverableError("no such user")))
        job = await stage.queue.add("n", max_attempts=5)
        with pytest.raises(JobFailedError) as caught:
            await job.result()
        assert (caught.value.reason, caught.value.error_message) == ("unrecoverable", "no such user")


@pytest.mark.feature("B15")
async def test_a_snoozed_job_comes_back_without_using_an_attempt(harness: Harness) -> None:
    async with Stage(harness) as stage:
        script = Script(Snooze(30), Snooze(30), "done")
        await stage.work(script)
        job = await stage.queue.add("n", max_attempts=1)
        await stage.until_state(job, JobState.SCHEDULED)
        await stage.advance(61)
        assert await job.result() == "done"
        assert (job.attempts, job.deliveries, script.runs) == (0, 3, [1, 1, 1])


@pytest.mark.feature("C9", "Z15")
async def test_a_rate_limited_job_comes_back_without_using_an_attempt(harness: Harness) -> None:
    async with Stage(harness) as stage:
        await stage.work(Script(RateLimitError(5), "done"))
        job = await stage.queue.add("n", max_attempts=1)
        await stage.until_state(job, JobState.SCHEDULED)
        await stage.advance(5.1)
        assert await job.result() == "done"
        assert job.attempts == 0


@pytest.mark.feature("C1")
async def test_retry_asks_for_its_own_delay_and_costs_an_attempt(harness: Harness) -> None:
    async with Stage(harness) as stage:
        script = Script(Retry(100), Retry(0), "never")
        await stage.work(script)
        job = await stage.queue.add("n", max_attempts=2, backoff=EXACT)
        await stage.until_state(job, JobState.RETRYING)
        await stage.advance(99)
        assert script.runs == [1]
        await stage.advance(2)
        assert await job.wait_until_finished() is JobState.FAILED
        assert script.runs == [1, 2]


@pytest.mark.feature("F5", "Z15")
async def test_a_handler_can_cancel_its_own_job(harness: Harness) -> None:
    async with Stage(harness) as stage:
        await stage.work(Script(Cancel("not needed any more")))
        job = await stage.queue.add("n")
        with pytest.raises(JobCancelledError) as caught:
            await job.result()
        assert caught.value.reason == "not needed any more"


@pytest.mark.feature("A26")
async def test_a_discarded_job_that_fails_is_not_retried(harness: Harness) -> None:
    async with Stage(harness) as stage:

        async def handler(job: Job[Any]) -> None:
            job.discard()
            raise ValueError("bad")

        await stage.work(handler)
        job = await stage.queue.add("n", max_attempts=5)
        assert await job.wait_until_finished() is JobState.FAILED
        assert (job.reason, job.attempts) == ("discarded", 1)


@pytest.mark.feature("A26")
async def test_a_handler_can_fail_its_job_by_hand(harness: Harness) -> None:
    async with Stage(harness) as stage:

        async def handler(job: Job[Any]) -> str:
            await job.move_to_failed(ValueError("by hand"))
            return "ignored"

        await stage.work(handler)
        job = await stage.queue.add("n")
        assert await job.wait_until_finished() is JobState.FAILED
        assert (job.errors[-1].message, job.return_value) == ("by hand", None)


@pytest.mark.feature("C5", "A11")
async def test_a_named_strategy_decides_and_may_give_up(harness: Harness) -> None:
    def patience(failures: int, error: BaseException) -> float | None:
        return 7.0 * failures if failures < 3 else None

    async with Stage(harness, backoff_strategies={"patience": patience}) as stage:
        script = Script(*(ValueError() for _ in range(4)))
        await stage.work(script)
        job = await stage.queue.add("n", backoff="patience", max_attempts=99)
        await stage.until_state(job, JobState.RETRYING)
        await stage.advance(6.9)
        assert script.runs == [1]
        await stage.advance(0.2)
        assert script.runs == [1, 2]
        await stage.advance(14)
        assert await job.wait_until_finished() is JobState.FAILED
        assert (job.reason, script.runs) == ("gave_up", [1, 2, 3])


@pytest.mark.feature("A12", "F3")
async def test_an_attempt_past_its_timeout_is_stopped_and_counts_as_failed(harness: Harness) -> None:
    async with Stage(harness) as stage:
        stopped: list[bool] = []

        async def handler(job: Job[Any]) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                stopped.append(job.abort_signal is not None and job.abort_signal.aborted)

        await stage.work(handler, lease=1_000)
        job = await stage.queue.add("n", timeout=30, max_attempts=1)
        await stage.until_state(job, JobState.ACTIVE)
        await stage.advance(29.9)
        assert await job.is_active()
        await stage.advance(0.2)
        assert await job.wait_until_finished() is JobState.FAILED
        assert (job.errors[-1].error_class, stopped) == ("JobTimeoutError", [True])


@pytest.mark.feature("E7")
async def test_a_result_that_cannot_be_stored_fails_the_job_for_good(harness: Harness) -> None:
    async with Stage(harness) as stage:
        await stage.work(Script(object()))
        job = await stage.queue.add("n", max_attempts=5)
        with pytest.raises(JobFailedError) as caught:
            await job.result()
        assert (caught.value.reason, caught.value.error_class) == ("result", "ResultError")


@pytest.mark.feature("A25", "C14")
async def test_a_failed_job_can_be_retried_by_hand(harness: Harness) -> None:
    async with Stage(harness) as stage:
        script = Script(ValueError(), "done")
        await stage.work(script)
        job = await stage.queue.add("n", max_attempts=1)
        assert await job.wait_until_finished() is JobState.FAILED
        await job.retry()
        assert await job.result() == "done"
        assert (job.manual_retries, script.runs) == (1, [1, 1])


@pytest.mark.feature("C11", "A23")
async def test_a_waiting_retry_can_be_hurried(harness: Harness) -> None:
    async with Stage(harness) as stage:
        await stage.work(Script(ValueError(), "done"))
        job = await stage.queue.add("n", backoff={"type": "fixed", "delay": 3_600})
        await stage.until_state(job, JobState.RETRYING)
        await job.promote()
        assert await job.result() == "done"


@pytest.mark.feature("C10")
async def test_all_failed_jobs_can_be_retried_at_once(harness: Harness) -> None:
    async with Stage(harness) as stage:
        script = Script(*(ValueError() for _ in range(5)), *("ok" for _ in range(5)))
        await stage.work(script, concurrency=1)
        jobs = await stage.queue.add_bulk([{"name": "n", "max_attempts": 1} for _ in range(5)])
        for job in jobs:
            await job.wait_until_finished()
        assert len(await stage.queue.get_dead_letter_jobs()) == 5
        assert await stage.queue.retry_jobs() == 5
        assert [await job.result() for job in jobs] == ["ok"] * 5


@pytest.mark.feature("C21")
async def test_each_retry_gets_the_next_fallback_and_the_last_one_stays(harness: Harness) -> None:
    async with Stage(harness) as stage:
        seen: list[Any] = []

        async def handler(job: Job[Any]) -> Any:
            seen.append(job.fallback)
            if job.attempt < 4:
                raise ValueError("not this way")
            return job.fallback

        await stage.work(handler)
        ways = [{"model": "small"}, "by mail"]
        job = await stage.queue.add("n", max_attempts=5, backoff=EXACT, fallbacks=ways)
        plain = await stage.queue.add("n", max_attempts=1)
        assert (job.fallback, plain.fallback) == (None, None)
        await stage.advance(31)
        assert await job.result() == "by mail"
        assert [way for way in seen if way] == [{"model": "small"}, "by mail", "by mail"]
        assert seen.count(None) == 2
        retried = await stage.queue.get_job(plain.id)
        assert retried is not None and retried.fallback is None


@pytest.mark.feature("A19", "C21")
async def test_a_handler_that_changes_fields_of_its_job_changes_no_other_job(harness: Harness) -> None:
    """Jobs with the same options share them, in a store and in a worker."""
    async with Stage(harness) as stage:
        seen: list[Any] = []

        async def handler(job: Job[Any]) -> None:
            way = job.fallback
            seen.append((dict(job.trace), way and dict(way), len(job.errors), dict(job.signals)))
            for field in (job.trace, job.signals, *([way] if way else [])):
                field["mine"] = "yes"
            job.errors.clear()
            raise ValueError("not this way")

        await stage.work(handler, concurrency=2)
        options = {"trace": {"tenant": "acme"}, "fallbacks": [{"model": "small"}]}
        jobs = await stage.queue.add_bulk(
            [{"name": "n", "max_attempts": 3, "backoff": EXACT, **options} for _ in range(2)]
        )
        await stage.advance(21)
        for job in jobs:
            await stage.until_state(job, JobState.FAILED)
        first: Any = ({"tenant": "acme"}, None, 0, {})
        later: Any = [({"tenant": "acme"}, {"model": "small"}, failed, {}) for failed in (1, 2)]
        assert seen == [first, first, later[0], later[0], later[1], later[1]]


@pytest.mark.feature("C21")
async def test_what_code_does_to_a_fallback_or_a_trace_reaches_no_stored_job(harness: Harness) -> None:
    async with Stage(harness) as stage:
        seen: list[Any] = []

        async def handler(job: Job[Any]) -> None:
            seen.append(deepcopy((job.fallback, job.trace)))
            job.trace["more"] = "x"
            if job.attempt == 1:
                raise ValueError("not this way")
            job.fallback["models"].append("huge")

        await stage.work(handler, concurrency=1)
        options: dict[str, Any] = {"max_attempts": 2, "backoff": EXACT, "trace": {"from": "here"}}
        for _ in range(2):
            way = {"models": ["small"]}
            job = await stage.queue.add("n", fallbacks=[way], **options)
            way["models"].append("large")
            assert (await stage.queue.add("n", delay=1_000, fallbacks=[nested(100)])).options.fallbacks
            await stage.advance(31)
            await job.result()
            stored = await stage.queue.get_job(job.id)
            assert stored is not None and stored.options.fallbacks == ({"models": ["small"]},)
            assert stored.trace == {"from": "here"}
        assert seen == [(None, {"from": "here"}), ({"models": ["small"]}, {"from": "here"})] * 2


@pytest.mark.feature("C21")
@pytest.mark.parametrize("wrong", ["text", [object()], [b"bytes"], [1] * 33, ["x" * 20_000], [nested(101)]])
async def test_fallbacks_that_cannot_travel_are_refused(harness: Harness, wrong: Any) -> None:
    async with Stage(harness) as stage:
        with pytest.raises(ConfigError):
            await stage.queue.add("n", fallbacks=wrong)
        assert await stage.queue.count() == 0


@pytest.mark.feature("A19")
async def test_the_reason_says_why_a_job_ended_and_failed_reason_what_its_last_error_said(
    harness: Harness,
) -> None:
    async with Stage(harness) as stage:

        async def handler(job: Job[Any]) -> None:
            if job.data == "cancel":
                raise Cancel("sold out")
            if job.data != "fine":
                raise ValueError(f"{job.data} {job.attempt}")

        add = stage.queue.add
        later: Any = {"max_attempts": 2, "backoff": {"type": "fixed", "delay": 600, "jitter": 0}}
        jobs = {
            "spent": (await add("n", "spent", max_attempts=2, backoff=0), JobState.FAILED),
            "retrying": (await add("n", "retrying", **later), JobState.RETRYING),
            "cancelled": (await add("n", "cancelled", **later), JobState.RETRYING),
            "by handler": (await add("n", "cancel"), JobState.CANCELLED),
            "fine": (await add("n", "fine"), JobState.COMPLETED),
        }
        await stage.work(handler)
        for job, state in jobs.values():
            await stage.until_state(job, state)
        await jobs["cancelled"][0].cancel("enough")
        seen = {name: await job.refresh() for name, (job, _) in jobs.items()}
        assert {name: (job.reason, job.failed_reason) for name, job in seen.items()} == {
            "spent": ("attempts", "spent 2"),
            "retrying": (None, "retrying 1"),
            "cancelled": ("enough", None),
            "by handler": ("sold out", None),
            "fine": (None, None),
        }
