"""How an attempt ends: results, errors, signals, timeouts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.unit.app.support import DrivenClock, WaitingHandler, event_names, history_of, work_off, working
from windlass import (
    Cancel,
    ConfigError,
    Job,
    JobCancelledError,
    JobFailedError,
    JobState,
    Queue,
    RateLimitError,
    Retry,
    Snooze,
    UnrecoverableError,
    Windlass,
    Worker,
)
from windlass.errors import IllegalTransitionError, MaxRetriesError


@pytest.mark.feature("E7")
@pytest.mark.parametrize("value", [None, 0, "", [], {}, False, 1.5, {"deep": [1, None]}], ids=repr)
async def test_any_json_value_can_be_a_result_none_included(app: Windlass, queue: Queue, value: Any) -> None:
    async def handler(job: Job[Any]) -> Any:
        return value

    job = await queue.add("work")
    await work_off(app, "default", handler)
    assert await job.result() == value
    assert (await queue.get_status(job.id) or {})["result"] == value


@pytest.mark.feature("C1", "C6", "C7", "A10", "A11")
async def test_a_failure_with_budget_left_is_retried_after_its_backoff(
    timed_app: Windlass, clock: DrivenClock
) -> None:
    queue = timed_app.queue("default")
    runs: list[int] = []

    async def handler(job: Job[Any]) -> str:
        runs.append(clock.now_ms() - start)
        if job.attempt < 3:
            raise OSError(f"attempt {job.attempt}")
        return "third time lucky"

    start = clock.now_ms()
    job = await queue.add("work", backoff={"type": "exponential", "delay": 10, "jitter": 0})
    async with working(timed_app, "default", handler):
        await clock.settle()
        await job.refresh()
        assert (job.state, job.attempts, job.run_at_ms) == (JobState.RETRYING, 1, start + 10_000)
        assert job.failed_reason == "attempt 1"
        assert [listed.id for listed in await queue.get_jobs("retrying")] == [job.id]
        await clock.advance(9.9)
        assert len(runs) == 1
        await clock.advance(25)
        assert await job.get_state() is JobState.COMPLETED
    assert len(runs) == 3
    assert 10_000 <= runs[1] <= 10_050
    assert 30_000 <= runs[2] <= 30_100
    assert [error.message for error in job.errors] == ["attempt 1", "attempt 2"]
    assert await event_names(queue, job.id) == [
        "enqueued",
        *("started", "retrying", "promoted"),
        *("started", "retrying", "promoted"),
        *("started", "completed"),
    ]
    assert [(row.outcome, row.attempt, row.delivery) for row in await history_of(queue)] == [
        ("retrying", 1, 1),
        ("retrying", 2, 2),
        ("completed", 3, 3),
    ]


@pytest.mark.feature("C1", "C16", "Z15")
async def test_a_spent_budget_raises_max_retries_with_everything_a_dead_letter_needs(
    app: Windlass, queue: Queue
) -> None:
    async def handler(job: Job[Any]) -> None:
        raise LookupError("nobody home")

    job = await queue.add("work", {"who": "ada"}, max_attempts=2, backoff=0)
    await work_off(app, "default", handler)
    with pytest.raises(MaxRetriesError) as spent:
        await job.result()
    assert isinstance(spent.value, JobFailedError)
    assert (spent.value.job_id, spent.value.attempts) == (job.id, 2)
    assert (spent.value.error_class, spent.value.error_message) == ("LookupError", "nobody home")
    assert spent.value.payload == {"who": "ada"}
    assert "in handler" in spent.value.traceback
    assert (await job.refresh()).reason == "attempts"


@pytest.mark.feature("C8")
async def test_an_unrecoverable_error_fails_at_once(app: Windlass, queue: Queue) -> None:
    async def handler(job: Job[Any]) -> None:
        raise UnrecoverableError("no such customer")

    job = await queue.add("work", max_attempts=10)
    await work_off(app, "default", handler)
    with pytest.raises(JobFailedError, match="no such customer") as failed:
        await job.result()
    assert not isinstance(failed.value, MaxRetriesError)
    await job.refresh()
    assert (job.attempts, job.reason) == (1, "unrecoverable")


async def test_an_error_class_of_ones_own_can_say_that_it_is_unrecoverable(
    app: Windlass, queue: Queue
) -> None:
    class NoSuchUser(Exception):
        unrecoverable = True

    async def handler(job: Job[Any]) -> None:
        raise NoSuchUser("ada")

    job = await queue.add("work", max_attempts=10)
    await work_off(app, "default", handler)
    assert (await job.refresh()).reason == "unrecoverable"
    assert job.errors[0].error_class == "NoSuchUser"


@pytest.mark.feature("A26")
async def test_discard_forbids_further_retries_but_not_success(app: Windlass, queue: Queue) -> None:
    async def handler(job: Job[Any]) -> str:
        job.discard()
        if job.data == "bad":
            raise ValueError("no more")
        return "fine"

    bad, good = await queue.add("work", "bad"), await queue.add("work", "good")
    await work_off(app, "default", handler)
    await bad.refresh()
    assert (bad.state, bad.attempts, bad.reason) == (JobState.FAILED, 1, "discarded")
    assert await good.result() == "fine"


@pytest.mark.feature("A26")
async def test_a_handler_can_fail_its_job_by_hand_and_its_return_no_longer_counts(
    app: Windlass, queue: Queue
) -> None:
    async def handler(job: Job[Any]) -> str:
        await job.move_to_failed(KeyError("bad row"), reason="import")
        return "ignored"

    job = await queue.add("work", max_attempts=5)
    await work_off(app, "default", handler)
    await job.refresh()
    assert (job.state, job.reason, job.return_value) == (JobState.FAILED, "import", None)
    assert job.errors[-1].error_class == "KeyError"
    assert [row.outcome for row in await history_of(queue)] == ["failed"]


@pytest.mark.feature("A26")
async def test_only_the_running_attempt_may_fail_its_job_by_hand(queue: Queue) -> None:
    job = await queue.add("work")
    with pytest.raises(IllegalTransitionError, match="use cancel"):
        await job.move_to_failed("because")
    assert await job.get_state() is JobState.WAITING


@pytest.mark.feature("B15", "C9")
@pytest.mark.parametrize(
    ("signal", "reason"),
    [(Snooze, "snoozed"), (RateLimitError, "rate_limited"), (Worker.RateLimitError, "rate_limited")],
)
async def test_a_snooze_or_rate_limit_puts_the_job_back_without_using_an_attempt(
    timed_app: Windlass, clock: DrivenClock, signal: Callable[[Any], Exception], reason: str
) -> None:
    queue = timed_app.queue("default")
    attempts: list[tuple[int, int]] = []

    async def handler(job: Job[Any]) -> str:
        attempts.append((job.attempt, job.deliveries))
        if len(attempts) == 1:
            raise signal(timedelta(seconds=40))
        return "done"

    job = await queue.add("work", max_attempts=1)
    async with working(timed_app, "default", handler):
        await clock.settle()
        await job.refresh()
        assert (job.state, job.attempts) == (JobState.SCHEDULED, 0)
        assert job.run_at_ms == clock.now_ms() + 40_000
        await clock.advance(41)
        assert await job.get_state() is JobState.COMPLETED
    assert attempts == [(1, 1), (1, 2)]
    assert job.errors == []
    assert [row.outcome for row in await history_of(queue)] == ["snoozed", "completed"]


async def test_a_snooze_of_no_time_goes_to_the_back_of_its_priority(app: Windlass, queue: Queue) -> None:
    order: list[str] = []

    async def handler(job: Job[Any]) -> None:
        order.append(job.data)
        if order == ["a"]:
            raise Snooze

    await queue.add("work", "a")
    await queue.add("work", "b")
    await work_off(app, "default", handler, concurrency=1)
    assert order == ["a", "b", "a"]


async def test_retry_asks_for_its_own_delay_and_costs_an_attempt(
    timed_app: Windlass, clock: DrivenClock
) -> None:
    queue = timed_app.queue("default")

    async def handler(job: Job[Any]) -> None:
        raise Retry(100, "not yet there")

    job = await queue.add("work", max_attempts=2)
    async with working(timed_app, "default", handler):
        await clock.settle()
        await job.refresh()
        assert (job.state, job.attempts, job.run_at_ms) == (JobState.RETRYING, 1, clock.now_ms() + 100_000)
        await clock.advance(101)
        await job.refresh()
    assert (job.state, job.attempts, job.reason) == (JobState.FAILED, 2, "attempts")


@pytest.mark.feature("A26")
async def test_cancel_ends_the_job_as_cancelled(app: Windlass, queue: Queue) -> None:
    async def handler(job: Job[Any]) -> None:
        raise Cancel("the order was withdrawn")

    job = await queue.add("work")
    await work_off(app, "default", handler)
    with pytest.raises(JobCancelledError, match="withdrawn"):
        await job.result()
    await job.refresh()
    assert (job.state, job.attempts, job.reason) == (JobState.CANCELLED, 0, "the order was withdrawn")


@pytest.mark.parametrize("delay", [-1, "5", float("nan"), True, None])
def test_a_signal_with_a_bad_delay_is_refused(delay: Any) -> None:
    for signal in (Snooze, Retry, RateLimitError):
        with pytest.raises(ConfigError, match="delay must be"):
            signal(delay)


# --- timeouts --------------------------------------------------------------------------------------------


@pytest.mark.feature("A12", "F3")
async def test_an_async_handler_past_its_timeout_is_cancelled_and_the_attempt_failed(
    timed_app: Windlass, clock: DrivenClock
) -> None:
    queue = timed_app.queue("default")
    handler = WaitingHandler()
    job = await queue.add("work", timeout=5, max_attempts=1)
    async with working(timed_app, "default", handler):
        await clock.advance(4.9)
        assert handler.reasons == []
        await clock.advance(0.2)
        await job.refresh()
    assert handler.reasons == ["timeout"]
    assert (job.state, job.attempts) == (JobState.FAILED, 1)
    assert job.errors[0].error_class == "JobTimeoutError"
    assert "5 s" in job.errors[0].message


@pytest.mark.feature("A12", "F3")
async def test_a_handler_in_a_thread_sees_its_timeout_as_a_signal(app: Windlass, queue: Queue) -> None:
    def handler(job: Job[Any]) -> str:
        assert job.abort_signal is not None
        assert job.abort_signal.wait(20)
        return "too late to count"

    job = await queue.add("work", timeout=0.05, max_attempts=1)
    await work_off(app, "default", handler)
    await job.refresh()
    assert (job.state, job.errors[0].error_class) == (JobState.FAILED, "JobTimeoutError")


@pytest.mark.feature("A12")
async def test_a_handler_that_swallows_its_cancellation_still_timed_out(app: Windlass, queue: Queue) -> None:
    async def handler(job: Job[Any]) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
        return "as if nothing happened"

    job = await queue.add("work", timeout=0.05, max_attempts=1)
    await work_off(app, "default", handler)
    assert (await job.refresh()).errors[0].error_class == "JobTimeoutError"


@pytest.mark.feature("A12")
async def test_a_timeout_is_retried_like_any_failure(app: Windlass, queue: Queue) -> None:
    async def handler(job: Job[Any]) -> str:
        if job.attempt == 1:
            await asyncio.Event().wait()
        return "second try"

    job = await queue.add("work", timeout=0.05, backoff=0)
    await work_off(app, "default", handler)
    assert await job.result() == "second try"
    assert (await job.refresh()).attempts == 1


async def test_a_handler_that_cancels_itself_has_failed(app: Windlass, queue: Queue) -> None:
    async def handler(job: Job[Any]) -> None:
        raise asyncio.CancelledError

    job = await queue.add("work", max_attempts=1)
    await work_off(app, "default", handler)
    await job.refresh()
    assert (job.state, job.errors[0].error_class) == (JobState.FAILED, "CancelledError")


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=repr)
async def test_a_handler_that_asks_the_process_to_exit_fails_its_job_only(
    app: Windlass, queue: Queue, error: BaseException
) -> None:
    def handler(job: Job[Any]) -> str:
        if job.name == "exits":
            raise error
        return "alive"

    bad = await queue.add("exits", max_attempts=1)
    good = await queue.add("fine")
    await work_off(app, "default", handler, concurrency=1)
    assert (await bad.refresh()).errors[0].error_class == type(error).__name__
    assert await good.result() == "alive"


# --- results that cannot be stored -----------------------------------------------------------------------


async def test_a_result_that_cannot_be_encoded_fails_for_good(app: Windlass, queue: Queue) -> None:
    runs: list[int] = []

    async def handler(job: Job[Any]) -> object:
        runs.append(1)
        return threading.Lock()

    job = await queue.add("work", max_attempts=5, backoff=0)
    await work_off(app, "default", handler)
    await job.refresh()
    assert runs == [1]
    assert (job.state, job.reason) == (JobState.FAILED, "result")
    assert job.errors[0].error_class == "ResultError"
    assert "cannot be stored as json" in job.errors[0].message


async def test_a_result_over_the_cap_fails_for_good(url: str) -> None:
    async with Windlass(url, max_payload_bytes=1_000) as app:
        job = await app.queue("default").add("work")
        await work_off(app, "default", lambda job: "x" * 1_000)
        await job.refresh()
    assert (job.state, job.reason) == (JobState.FAILED, "result")
    assert "over the limit of 1000" in job.errors[0].message


async def test_an_unexpected_error_of_the_store_reaches_the_callers_that_wait(
    app: Windlass, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await queue.add("work")

    async def fails(*_: Any) -> Any:
        raise TypeError("a damaged answer")

    monkeypatch.setattr(app.store, "listen_completed", fails)
    with pytest.raises(TypeError, match="a damaged answer"):
        await job.result(timeout=60)
