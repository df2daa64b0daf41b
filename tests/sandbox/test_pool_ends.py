"""Child processes that crash, take too much memory or time, or are closed."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from tests.sandbox import handlers
from tests.sandbox.conftest import Recorder, call_to, wait_for_end
from windlass.errors import ConfigError, JobTimeoutError, WorkerCrashError
from windlass.sandbox import ProcessPool
from windlass.sandbox.limits import MB

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


# --- running -------------------------------------------------------------------------------------------


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
