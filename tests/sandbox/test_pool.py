"""Jobs in child processes: results, errors, crashes, limits, ends."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from typing import TYPE_CHECKING, Any, cast

import psutil
import pytest
import uvloop

from tests.sandbox import handlers
from tests.sandbox.conftest import Recorder, call_to, wait_for_end
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
from windlass.sandbox.limits import MB

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from windlass.sandbox.pool import JobVerbs


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


# --- crashes -------------------------------------------------------------------------------------------


@pytest.mark.feature("T2")
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("exit", "exited with code 3"),
        ("kill", r"signal 9 \(SIGKILL\)"),
        ("segfault", r"signal 11 \(SIGSEGV\)"),
    ],
)
async def test_a_crash_fails_the_attempt_and_the_child_is_replaced(
    pool: ProcessPool, how: str, words: str
) -> None:
    before = await pool.run(call_to(handlers.pid))
    with pytest.raises(WorkerCrashError, match=words):
        await pool.run(call_to(handlers.crash, how))
    after = await pool.run(call_to(handlers.pid))
    assert after != before
    assert pool.pids == [after]


async def test_a_child_that_died_while_idle_is_not_used(pool: ProcessPool) -> None:
    idle = await pool.run(call_to(handlers.pid))
    os.kill(idle, signal.SIGKILL)
    wait_for_end(idle)  # blocks the loop, so that nobody can have noticed
    assert await pool.run(call_to(handlers.pid)) != idle


@pytest.mark.parametrize("fn", [handlers.scribble, handlers.announce_too_much])
async def test_malformed_messages_are_a_crash(pool: ProcessPool, fn: Callable[..., Any]) -> None:
    with pytest.raises(WorkerCrashError, match="malformed"):
        await pool.run(call_to(fn))
    assert await pool.run(call_to(handlers.add, 1)) == 1


async def test_a_closed_pipe_is_a_crash(pool: ProcessPool) -> None:
    with pytest.raises(WorkerCrashError, match="exited with code 1"):
        await pool.run(call_to(handlers.close_the_pipe))
    assert await pool.run(call_to(handlers.add, 1)) == 1


async def test_a_forked_copy_does_not_keep_the_pipe_open(pool: ProcessPool) -> None:
    copy = await pool.run(call_to(handlers.fork_and_return))
    with pytest.raises(WorkerCrashError, match="SIGKILL"):
        await pool.run(call_to(handlers.crash, "kill"))
    wait_for_end(copy)  # its group is swept with it


async def test_a_child_that_cannot_start_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    async with ProcessPool(1) as pool:
        with pytest.raises(WorkerCrashError, match="did not start"):
            await pool.run(call_to(handlers.add, 1))


# --- memory --------------------------------------------------------------------------------------------


@pytest.mark.feature("T2")
async def test_memory_over_the_limit_fails_the_attempt_with_the_limit_named() -> None:
    async with ProcessPool(1, memory_limit=128 * MB) as pool:
        before = await pool.run(call_to(handlers.pid))
        with pytest.raises(WorkerCrashError, match="limit of its process is 128 MB"):
            await pool.run(call_to(handlers.hold_memory, 256))
        assert await pool.run(call_to(handlers.hold_memory, 8)) == 8  # in a child with nothing held
        assert await pool.run(call_to(handlers.pid)) != before


@pytest.mark.feature("T2")
async def test_measured_memory_over_the_limit_kills_the_child() -> None:
    async with ProcessPool(1, memory_limit=96 * MB, memory_mode="rss") as pool:
        assert await pool.run(call_to(handlers.hold_memory, 8)) == 8
        with pytest.raises(WorkerCrashError, match="more than its memory limit of 96 MB"):
            await pool.run(call_to(handlers.grow_and_wait, 128), Recorder(), timeout=30)
        assert await pool.run(call_to(handlers.add, 1)) == 1


async def test_a_call_may_bring_its_own_limit(pool: ProcessPool) -> None:
    free = await pool.run(call_to(handlers.pid))
    limited = await pool.run(call_to(handlers.pid, memory_limit=128 * MB))
    assert limited != free
    with pytest.raises(WorkerCrashError, match="128 MB"):
        await pool.run(call_to(handlers.hold_memory, 256, memory_limit=128 * MB))
    assert await pool.run(call_to(handlers.hold_memory, 256)) == 256
    assert len(pool.pids) == 1


@pytest.mark.parametrize("limit", [0, -1, 1_000, True, "64MB"])
def test_limits_that_cannot_work_are_refused(limit: Any) -> None:
    with pytest.raises(ConfigError, match="memory_limit"):
        ProcessPool(1, memory_limit=limit)


# --- timeouts and cancellation -------------------------------------------------------------------------


@pytest.mark.feature("T2")
@pytest.mark.parametrize("fn", [handlers.spin, handlers.spin_stubborn])
async def test_an_endless_loop_is_killed_at_its_timeout(pool: ProcessPool, fn: Callable[..., Any]) -> None:
    """Only a process can be killed: not even one that blocks SIGTERM outlives the grace."""
    started = Recorder()
    await pool.start()
    doomed = pool.pids[0]
    with pytest.raises(JobTimeoutError, match=r"longer than 0\.5 s"):
        await pool.run(call_to(fn), started, timeout=0.5)
    assert not psutil.pid_exists(doomed)
    assert await pool.run(call_to(handlers.add, 1)) == 1


@pytest.mark.feature("T2")
@pytest.mark.parametrize("fn", [handlers.tidy, handlers.tidy_later])
async def test_cancellation_lets_the_handler_clean_up(tmp_path: Path, fn: Callable[..., Any]) -> None:
    note = tmp_path / "note"
    async with ProcessPool(1, grace=20) as pool:
        started = Recorder()
        run = asyncio.create_task(pool.run(call_to(fn, str(note)), started))
        await started.started.wait()
        doomed = pool.pids[0]
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert note.read_text() == "tidied"
        assert not psutil.pid_exists(doomed)


async def test_a_second_cancellation_does_not_wait_for_the_grace() -> None:
    async with ProcessPool(1, grace=600) as pool:
        started = Recorder()
        run = asyncio.create_task(pool.run(call_to(handlers.spin_stubborn), started))
        await started.started.wait()
        doomed = pool.pids[0]
        run.cancel()
        done, _ = await asyncio.wait([run], timeout=0.05)  # the grace has begun
        assert not done
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
    wait_for_end(doomed)


async def test_cancelled_while_waiting_for_a_child_disturbs_nobody(pool: ProcessPool) -> None:
    started = Recorder()
    first = asyncio.create_task(pool.run(call_to(handlers.spin), started))
    await started.started.wait()
    second = asyncio.create_task(pool.run(call_to(handlers.add, 1)))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    assert pool.busy == 1
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert await pool.run(call_to(handlers.add, 1)) == 1


async def test_what_the_handler_started_ends_with_it(pool: ProcessPool) -> None:
    started = Recorder()
    run = asyncio.create_task(pool.run(call_to(handlers.with_grandchild), started))
    await started.started.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    wait_for_end(int(started.requests[0].value[0]))


async def test_an_interrupt_is_the_parents_business(pool: ProcessPool) -> None:
    assert await pool.run(call_to(handlers.interrupt)) == "still here"


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
    with pytest.raises(ConfigError, match="something that json can store"):
        await pool.run(call_to(handlers.unstorable_progress), Recorder())


async def test_tasks_left_by_a_coroutine_do_not_meet_the_next_job(pool: ProcessPool) -> None:
    assert await pool.run(call_to(handlers.leave_task)) == 2
    assert await pool.run(call_to(handlers.count_tasks)) == 1


# --- closing -------------------------------------------------------------------------------------------


def _open_files() -> int:
    return len(os.listdir(f"/proc/{os.getpid()}/fd"))


@pytest.mark.feature("T2")
def test_close_leaves_nothing_behind() -> None:
    async def main() -> list[int]:
        pool = ProcessPool(2, grace=0.3)
        await asyncio.gather(*(pool.run(call_to(handlers.add, 1)) for _ in range(4)))
        pids = pool.pids
        started = Recorder()
        run = asyncio.create_task(pool.run(call_to(handlers.spin_stubborn), started))
        await started.started.wait()
        await pool.close()
        await pool.close()
        with pytest.raises(WorkerCrashError, match="was ended by its worker: shutdown"):
            await run
        return pids

    asyncio.run(main())  # imports and caches of the first loop stay open
    files, threads = _open_files(), threading.active_count()
    pids = asyncio.run(main())
    assert len(pids) == 2
    assert not any(psutil.pid_exists(pid) for pid in pids)  # not even as zombies
    assert (_open_files(), threading.active_count()) == (files, threads)


async def test_a_closed_pool_takes_no_jobs(pool: ProcessPool) -> None:
    await pool.close()
    with pytest.raises(WorkerCrashError, match="closed"):
        await pool.run(call_to(handlers.add, 1))


async def test_close_refuses_those_who_wait(pool: ProcessPool) -> None:
    started = Recorder()
    runs = [asyncio.create_task(pool.run(call_to(handlers.spin), started)) for _ in range(2)]
    await started.started.wait()
    await pool.close()
    ends = await asyncio.gather(*runs, return_exceptions=True)
    assert [type(end) for end in ends] == [WorkerCrashError, WorkerCrashError]


@pytest.mark.parametrize("options", [{"size": 0}, {"size": 1, "max_jobs_per_child": 0}])
def test_options_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ProcessPool(**options)
