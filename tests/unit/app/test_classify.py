"""From what a handler did to how its attempt ends: the whole table."""

from __future__ import annotations

import random
from typing import Any

import pytest

from windlass import Backoff, Cancel, JobTimeoutError, RateLimitError, Retry, Snooze, UnrecoverableError
from windlass.core.job import JobRecord
from windlass.core.options import StoredOptions
from windlass.core.outcome import Outcome, Settlement
from windlass.errors import ResultError, WorkerCrashError
from windlass.worker import classify
from windlass.worker.classify import UNKNOWN_TASK_DELAYS_MS, bad_payload, describe, unknown_task


def _job(attempts: int = 0, **options: Any) -> JobRecord:
    stored = StoredOptions(**{"backoff": Backoff(type="fixed", delay_ms=7_000, jitter=0), **options})
    return JobRecord(queue="q", id="j", task="t", payload=b"", token="tok", attempts=attempts, options=stored)


def _end(error: BaseException, job: JobRecord | None = None, **more: Any) -> Settlement:
    return classify.classify(job or _job(), error, rng=random.Random(1), **more)


@pytest.mark.parametrize(
    ("error", "outcome", "reason", "delay_ms"),
    [
        (ValueError("x"), Outcome.RETRY, "", 7_000),
        (JobTimeoutError("x"), Outcome.RETRY, "", 7_000),
        (WorkerCrashError("x"), Outcome.RETRY, "", 7_000),
        (KeyboardInterrupt(), Outcome.RETRY, "", 7_000),
        (Retry(3), Outcome.RETRY, "", 3_000),
        (Snooze(3), Outcome.SNOOZE, "snoozed", 3_000),
        (RateLimitError(4), Outcome.SNOOZE, "rate_limited", 4_000),
        (Cancel("why"), Outcome.CANCEL, "why", 0),
        (UnrecoverableError("x"), Outcome.FAIL, "unrecoverable", 0),
        (ResultError("x"), Outcome.FAIL, "result", 0),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_each_error_has_its_end(error: BaseException, outcome: Outcome, reason: str, delay_ms: int) -> None:
    end = _end(error)
    assert (end.outcome, end.reason, end.delay_ms) == (outcome, reason, delay_ms)
    assert (end.queue, end.id, end.token) == ("q", "j", "tok")


@pytest.mark.parametrize("error", [ValueError("x"), Retry(3)])
def test_the_last_attempt_fails_for_good(error: BaseException) -> None:
    for failed_before, outcome in ((0, Outcome.RETRY), (1, Outcome.RETRY), (2, Outcome.FAIL)):
        end = _end(error, _job(failed_before, max_attempts=3))
        assert end.outcome is outcome
    assert end.reason == "attempts"


def test_a_budget_of_one_means_no_retry() -> None:
    assert _end(ValueError(), _job(max_attempts=1)).outcome is Outcome.FAIL


@pytest.mark.parametrize("signal", [Snooze(1), RateLimitError(1), Cancel()])
def test_signals_cost_no_attempt_even_on_the_last(signal: BaseException) -> None:
    end = _end(signal, _job(2, max_attempts=3))
    assert end.outcome in (Outcome.SNOOZE, Outcome.CANCEL)
    assert end.error is None


def test_a_discarded_job_fails_by_any_error_but_obeys_its_signals() -> None:
    assert _end(ValueError(), discarded=True).reason == "discarded"
    assert _end(Snooze(1), discarded=True).outcome is Outcome.SNOOZE


def test_a_strategy_that_gives_none_gives_up() -> None:
    job = _job(backoff=Backoff(type="mine"))
    end = _end(ValueError(), job, strategies={"mine": lambda failures, error: None})
    assert (end.outcome, end.reason) == (Outcome.FAIL, "gave_up")


def test_an_unknown_strategy_falls_back_to_the_default_and_keeps_the_job() -> None:
    end = _end(ValueError(), _job(backoff=Backoff(type="of-tomorrow")))
    assert end.outcome is Outcome.RETRY
    assert 1_600 <= end.delay_ms <= 2_000


def test_an_unknown_task_is_given_back_four_times_and_then_fails() -> None:
    job = _job()
    assert UNKNOWN_TASK_DELAYS_MS == (5_000, 30_000, 120_000, 600_000)
    for misses, delay_ms in enumerate(UNKNOWN_TASK_DELAYS_MS):
        job.misses = misses
        end = unknown_task(job)
        assert (end.outcome, end.delay_ms, end.miss, end.reason) == (
            Outcome.RELEASE,
            delay_ms,
            True,
            "unknown_task",
        )
    job.misses = 4
    end = unknown_task(job)
    assert (end.outcome, end.reason, end.uses_attempt) == (Outcome.FAIL, "unknown_task", False)
    assert end.error is not None
    assert "'t'" in end.error.message


def test_a_bad_payload_fails_without_using_an_attempt() -> None:
    end = bad_payload(_job(), ValueError("garbage"))
    assert (end.outcome, end.reason, end.uses_attempt) == (Outcome.FAIL, "bad_payload", False)


def test_an_error_is_kept_with_its_last_lines() -> None:
    def deep(level: int) -> None:
        if level == 0:
            raise ValueError("deep down")
        deep(level - 1)

    try:
        deep(40)
    except ValueError as exc:
        whole, short, none = describe(exc, 1_000), describe(exc, 3), describe(exc, 0)
    assert whole.traceback.splitlines()[0].startswith("Traceback")
    assert short.traceback.splitlines()[-1] == "ValueError: deep down"
    assert len(short.traceback.splitlines()) == 3
    assert none.traceback == ""
    assert (whole.error_class, whole.message) == ("ValueError", "deep down")


def test_very_long_messages_are_cut() -> None:
    info = describe(ValueError("x" * 100_000), 50)
    assert len(info.message) == 10_000
    assert len(info.traceback) <= 32_000


def test_errors_that_differ_in_numbers_and_quotes_share_a_fingerprint() -> None:
    prints = {describe(KeyError(f"user {number} at 0x{number:x}"), 0).fingerprint for number in range(5)}
    assert len(prints) == 1
    assert describe(ValueError("a"), 0).fingerprint != describe(ValueError("b"), 0).fingerprint
    assert describe(ValueError("a"), 0).fingerprint != describe(TypeError("a"), 0).fingerprint
