"""Jobs in child processes: results, errors, signals, the verbs of the job."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any, cast

import pytest
import uvloop

from tests.sandbox import handlers
from tests.sandbox.conftest import Recorder, call_to
from windlass.core.job import JobRecord
from windlass.core.options import StoredOptions
from windlass.errors import (
    Cancel,
    ConfigError,
    JobTimeoutError,
    LeaseLostError,
    PayloadTooLargeError,
    RateLimitError,
    ResultError,
    Retry,
    Snooze,
    UnrecoverableError,
    WorkerCrashError,
)
from windlass.handlers.signature import ArgumentError
from windlass.sandbox import JobRequest, ProcessPool, RemoteError, SandboxCall, requests_to, target_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from windlass.sandbox.pool import JobVerbs


# --- running -------------------------------------------------------------------------------------------


# --- running -------------------------------------------------------------------------------------------


@pytest.mark.feature("T1")
@pytest.mark.parametrize("fn", [handlers.add, handlers.add_later])
async def test_functions_and_coroutines_run_in_a_child(pool: ProcessPool, fn: Callable[..., Any]) -> None:
    assert await pool.run(call_to(fn, 2, b=3)) == 5
    assert await pool.run(call_to(handlers.pid)) == pool.pids[0] != os.getpid()


async def test_a_function_that_returns_a_coroutine_is_awaited(pool: ProcessPool) -> None:
    assert await pool.run(call_to(handlers.returns_coroutine, 1)) == 2


@pytest.mark.feature("T1")
async def test_warm_children_are_reused(pool: ProcessPool) -> None:
    pids = {await pool.run(call_to(handlers.pid)) for _ in range(3)}
    assert len(pids) == 1


@pytest.mark.feature("W4")
async def test_arguments_are_decoded_to_annotations(pool: ProcessPool) -> None:
    order = {"id": 1, "at": "2024-05-01T00:00:00Z"}
    kinds = await pool.run(call_to(handlers.typed, order, day="2024-05-01", wait="PT5S"))
    assert kinds == ["Order", "datetime", "date", "timedelta"]
    # An annotation that only a type checker can resolve takes what came.
    assert await pool.run(call_to(handlers.checker_only, "1.5")) == "str"


@pytest.mark.feature("W4")
async def test_arguments_that_do_not_fit_fail_for_good(pool: ProcessPool) -> None:
    with pytest.raises(RemoteError, match="argument 'a' of task 'add' must be int") as caught:
        await pool.run(call_to(handlers.add, "1"))
    assert isinstance(caught.value, UnrecoverableError)
    assert caught.value.error_class == ArgumentError.__name__


@pytest.mark.feature("T1")
async def test_a_handler_of_the_job_sees_its_fields(pool: ProcessPool) -> None:
    record = JobRecord(
        queue="mail",
        id="j1",
        task="send",
        payload=b'{"kwargs":{"to":"ada"},"form":"object"}',
        attempts=1,
        deliveries=3,
        token="run-7",
        options=StoredOptions(tags=("a",), trace={"traceparent": "x"}),
    )
    seen = await pool.run(SandboxCall(target=target_of(handlers.facts), record=record, takes_job=True))
    assert seen == {
        "id": "j1",
        "queue": "mail",
        "name": "send",
        "data": {"to": "ada"},
        "attempt": 2,
        "deliveries": 3,
        "tags": ["a"],
        "trace": {"traceparent": "x"},
        "run_id": "run-7",
        "current": True,
        "logger": {"job_id": "j1", "task": "send", "queue": "mail", "attempt": 2},
    }


async def test_results_keep_their_codec(pool: ProcessPool) -> None:
    call = call_to(handlers.echo, value=2**70)
    assert await pool.run_encoded(call) == b"1180591620717411303424"
    assert await pool.run(call_to(handlers.now)) == "2020-01-01T00:00:00Z"


@pytest.mark.feature("T1")
async def test_twenty_jobs_share_two_children() -> None:
    async with ProcessPool(2) as pool:
        pids = await asyncio.gather(*(pool.run(call_to(handlers.pid)) for _ in range(20)))
        assert len(pids) == 20
        assert set(pids) == set(pool.pids)
        assert len(pool.pids) == 2


async def test_children_can_be_started_before_the_first_job() -> None:
    async with ProcessPool(2) as pool:
        await pool.start()
        warm = pool.pids
        assert len(warm) == 2
        assert await pool.run(call_to(handlers.pid)) in warm


async def test_a_child_is_replaced_after_its_share_of_jobs() -> None:
    async with ProcessPool(1, max_jobs_per_child=2) as pool:
        pids = [await pool.run(call_to(handlers.pid)) for _ in range(4)]
    assert pids[0] == pids[1] != pids[2] == pids[3]


def test_children_are_spawned_not_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork would copy this process's memory, and its threads' locks without the threads."""
    monkeypatch.setattr(handlers, "STATE", "changed")

    async def main() -> None:
        async with ProcessPool(1) as pool:
            assert await pool.run(call_to(handlers.state)) == ["fresh", ["MainThread", "windlass-pipe"]]

    asyncio.run(main())


def test_the_pool_works_on_uvloop() -> None:
    async def main() -> None:
        async with ProcessPool(1, grace=0.3) as pool:
            assert await pool.run(call_to(handlers.add, 1, 2)) == 3
            with pytest.raises(WorkerCrashError):
                await pool.run(call_to(handlers.crash, "kill"))
            with pytest.raises(JobTimeoutError):
                await pool.run(call_to(handlers.spin), Recorder(), timeout=1)

    uvloop.run(main())


async def test_the_pool_works_without_pidfd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    async with ProcessPool(1, grace=0.3) as pool:
        with pytest.raises(WorkerCrashError, match="SIGKILL"):
            await pool.run(call_to(handlers.crash, "kill"))
        assert await pool.run(call_to(handlers.add, 1, 2)) == 3


# --- errors and signals --------------------------------------------------------------------------------


@pytest.mark.feature("T1")
@pytest.mark.parametrize("fn", [handlers.raises, handlers.raises_later])
async def test_errors_keep_class_message_and_traceback(pool: ProcessPool, fn: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="bad value") as caught:
        await pool.run(call_to(fn, "ValueError"))
    error = caught.value
    assert isinstance(error, RemoteError)
    assert (type(error).__name__, error.error_class, error.module) == ("ValueError", "ValueError", "builtins")
    lines = error.remote_traceback.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "handlers.py" in error.remote_traceback
    assert lines[-1] == "ValueError: bad value"
    assert await pool.run(call_to(handlers.add, 1)) == 1  # the child is none the worse


@pytest.mark.parametrize(
    ("kind", "base"),
    [
        ("KeyError", KeyError),
        ("ConnectionResetError", OSError),
        ("CardDeclinedError", ValueError),
        ("BadCardError", UnrecoverableError),
        ("UnicodeDecodeError", ValueError),
        ("TimeoutError", TimeoutError),
        ("SystemExit", Exception),
        ("KeyboardInterrupt", Exception),
        ("StopIteration", Exception),
        ("ExceptionGroup", Exception),
    ],
)
async def test_every_kind_of_error_comes_back(pool: ProcessPool, kind: str, base: type[Exception]) -> None:
    with pytest.raises(RemoteError) as caught:
        await pool.run(call_to(handlers.raises, kind), timeout=30)
    assert isinstance(caught.value, base)
    assert caught.value.error_class == kind
    assert isinstance(caught.value, UnrecoverableError) == (kind == "BadCardError")


@pytest.mark.parametrize("fn", [handlers.raises, handlers.raises_later])
async def test_a_handlers_own_cancelled_error_is_a_failure(pool: ProcessPool, fn: Callable[..., Any]) -> None:
    """It must not look like the cancellation of the worker's task."""
    with pytest.raises(RemoteError) as caught:
        await pool.run(call_to(fn, "CancelledError"))
    assert caught.value.error_class == "CancelledError"


@pytest.mark.feature("T1")
async def test_signals_arrive_as_themselves(pool: ProcessPool) -> None:
    with pytest.raises(Snooze) as snooze:
        await pool.run(call_to(handlers.signals, "snooze"))
    assert snooze.value.delay_ms == 1_500
    with pytest.raises(Retry) as retry:
        await pool.run(call_to(handlers.signals, "retry"))
    assert (retry.value.delay_ms, retry.value.reason) == (2_000, "busy")
    with pytest.raises(RateLimitError) as limit:
        await pool.run(call_to(handlers.signals, "rate_limit"))
    assert limit.value.delay_ms == 3_000
    with pytest.raises(Cancel) as cancel:
        await pool.run(call_to(handlers.signals, "cancel"))
    assert cancel.value.reason == "no longer wanted"


@pytest.mark.feature("T2")
async def test_results_that_cannot_be_stored_fail_for_good(pool: ProcessPool) -> None:
    with pytest.raises(ResultError, match="object cannot be stored as json"):
        await pool.run(call_to(handlers.unstorable))


async def test_large_payloads_and_results_pass(pool: ProcessPool) -> None:
    text = "x" * 8_000_000
    assert await pool.run(call_to(handlers.echo, text)) == text


async def test_what_is_over_the_cap_is_refused_and_harms_nobody() -> None:
    async with ProcessPool(1, max_bytes=100_000) as pool:
        with pytest.raises(PayloadTooLargeError):
            await pool.run(call_to(handlers.echo, "x" * 100_000))
        with pytest.raises(ResultError, match="too large"):
            await pool.run(call_to(handlers.large, 100_000))
        assert await pool.run(call_to(handlers.add, 1)) == 1


# --- the job's verbs -----------------------------------------------------------------------------------


@pytest.mark.feature("T1")
@pytest.mark.parametrize("fn", [handlers.reports, handlers.reports_later])
async def test_log_progress_data_and_discard_reach_the_parent(
    pool: ProcessPool, fn: Callable[..., Any]
) -> None:
    asked = Recorder()
    assert await pool.run(call_to(fn), asked) == "1 2 True"
    assert asked.requests == [
        JobRequest("log", ["one", "info"]),
        JobRequest("update_progress", {"current": 1, "total": 2}),
        JobRequest("update_data", {"a": 2}),
        JobRequest("discard", None),
    ]


async def test_requests_are_performed_on_a_job(pool: ProcessPool) -> None:
    class Held:
        done: list[Any]

        def __init__(self) -> None:
            self.done = []

        async def log(self, line: str, level: str) -> None:
            self.done.append((line, level))

        async def update_progress(self, progress: Any) -> None:
            self.done.append(progress)

        async def update_data(self, data: Any) -> None:
            self.done.append(data)

        def discard(self) -> None:
            self.done.append("discarded")

    held = Held()
    await pool.run(call_to(handlers.reports), requests_to(cast("JobVerbs", held)))
    assert held.done == [("one", "info"), {"current": 1, "total": 2}, {"a": 2}, "discarded"]


@pytest.mark.parametrize("fn", [handlers.many_reports, handlers.many_unawaited])
async def test_floods_of_requests_pass_in_order(pool: ProcessPool, fn: Callable[..., Any]) -> None:
    asked = Recorder()
    count = 20_000 if fn is handlers.many_unawaited else 500
    assert await pool.run(call_to(fn, count), asked) == count
    assert [request.value for request in asked.requests] == list(range(count))


async def test_threads_of_a_handler_may_ask(pool: ProcessPool) -> None:
    asked = Recorder()
    await pool.run(call_to(handlers.report_from_threads), asked)
    assert sorted(request.value for request in asked.requests) == [[str(n), "info"] for n in range(8)]


async def test_what_the_worker_raises_is_raised_in_the_handler(pool: ProcessPool) -> None:
    async def refuse(request: JobRequest) -> None:
        raise LeaseLostError("q", "job-1")

    assert "lost: the lease on job 'job-1'" in await pool.run(call_to(handlers.lost_lease), refuse)


async def test_an_ended_job_cannot_ask_in_the_name_of_the_next(pool: ProcessPool) -> None:
    asked = Recorder()
    await pool.run(call_to(handlers.leave_thread), asked)
    refused = await pool.run(call_to(handlers.free_thread), asked)
    assert refused == ["log() is not available to this job now"]
    assert asked.requests == []


async def test_progress_that_cannot_be_stored_is_the_handlers_error(pool: ProcessPool) -> None:
    with pytest.raises(ConfigError, match="a value cannot be stored as json"):
        await pool.run(call_to(handlers.unstorable_progress), Recorder())


async def test_tasks_left_by_a_coroutine_do_not_meet_the_next_job(pool: ProcessPool) -> None:
    assert await pool.run(call_to(handlers.leave_task)) == 2
    assert await pool.run(call_to(handlers.count_tasks)) == 1
