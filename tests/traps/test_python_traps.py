"""Traps that Python itself sets (b-py-*)."""

from __future__ import annotations

import asyncio
import os
import pickle
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import msgspec
import pytest

from tests.unit.app.support import DrivenClock, store_url, work_off, working
from windlass import (
    ConfigError,
    Job,
    JobState,
    Queue,
    StorageError,
    WaitTimeoutError,
    Windlass,
    Worker,
)
from windlass.backend import requests as rq
from windlass.serde import get_codec

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.feature("J3", "J18", "J21")
async def test_a_handler_that_blocks_the_loop_past_its_lease_keeps_its_job(
    url: str, app: Windlass, queue: Queue
) -> None:
    """Leases are renewed by a thread of their own. A rival in another thread looks for silent workers."""
    started, stop = threading.Event(), threading.Event()
    runs: list[str] = []

    async def blocks(job: Job[Any]) -> str:
        runs.append("first")
        started.set()
        time.sleep(2.2)  # noqa: ASYNC251 - blocking the loop is the point of this test
        return "kept"

    def rival() -> None:
        async def main() -> None:
            worker = Worker("default", lambda job: runs.append("rival"), url_or_app=url, recover_every=0.1)
            await worker.start()
            await asyncio.to_thread(stop.wait)
            await worker.close()

        asyncio.run(main())

    job = await queue.add("work")
    thread = threading.Thread(target=rival)
    async with working(app, "default", blocks, lease=1, duties=False):
        await asyncio.to_thread(started.wait)
        thread.start()
        try:
            assert await job.result() == "kept"
        finally:
            stop.set()
            await asyncio.to_thread(thread.join)
    await job.refresh()
    assert runs == ["first"]
    assert (job.deliveries, job.stalled_count) == (1, 0)


@pytest.mark.feature("A12", "F3")
async def test_a_handler_that_swallows_its_cancellation_cannot_swallow_the_outcome(
    timed_app: Windlass, clock: DrivenClock
) -> None:
    async def stubborn(job: Job[Any]) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
        return "as if nothing happened"

    queue = timed_app.queue("default")
    job = await queue.add("work", timeout=5, max_attempts=1)
    async with working(timed_app, "default", stubborn):
        await clock.advance(6)
        await job.refresh()
    assert (job.state, job.errors[0].error_class) == (JobState.FAILED, "JobTimeoutError")


@pytest.mark.feature("F3")
async def test_a_handler_that_swallows_its_cancellation_does_not_stop_the_shutdown(
    timed_app: Windlass, clock: DrivenClock
) -> None:
    async def deaf(job: Job[Any]) -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if over:
                    raise

    over: list[bool] = []
    queue = timed_app.queue("default")
    job = await queue.add("work")
    worker = Worker("default", deaf, url_or_app=timed_app)
    await worker.start()
    await clock.settle()
    (attempt,) = worker._parts.running.attempts.values()
    closing = asyncio.create_task(worker.close())
    await clock.advance(26)
    assert closing.done()
    assert await job.get_state() is JobState.WAITING
    assert (await job.refresh()).attempts == 0
    over.append(True)
    assert attempt.task is not None
    attempt.task.cancel()
    await asyncio.wait([attempt.task])


@pytest.mark.feature("F3")
async def test_a_thread_keeps_its_slot_and_lease_until_it_returns(app: Windlass, queue: Queue) -> None:
    started, go = threading.Event(), threading.Event()

    def handler(job: Job[Any]) -> None:
        started.set()
        go.wait(30)

    job = await queue.add("work", timeout=0.02, max_attempts=1)
    behind = await queue.add("behind", max_attempts=1)
    async with working(app, "default", handler, concurrency=1) as worker:
        await asyncio.to_thread(started.wait)
        (attempt,) = worker._parts.running.attempts.values()
        await asyncio.to_thread(attempt.signal.wait, 20)
        assert attempt.signal.reason == "timeout"
        assert worker.busy == 1
        assert await job.get_state() is JobState.ACTIVE
        assert await behind.get_state() is JobState.WAITING
        go.set()
        assert await job.wait_until_finished() is JobState.FAILED
        assert await behind.wait_until_finished() is JobState.COMPLETED


def test_a_fork_does_not_inherit_connections_ids_or_the_portal(tmp_path: Path) -> None:
    """Runs in a process of its own: the child of a fork refuses the parent's database and opens its own."""
    script = textwrap.dedent(
        """
        import os, sys
        from windlass import StorageError, Windlass
        from windlass.core.ids import new_id
        from windlass.sync import PORTAL

        app = Windlass(sys.argv[1])
        queue = app.sync.queue("default")
        queue.add("work", job_id="parent")
        ids = {new_id() for _ in range(50)}
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                try:
                    queue.add("work", job_id="through-the-parent")
                    answer = "no error"
                except StorageError as exc:
                    answer = "refused" if "fork" in str(exc) else str(exc)
                own = Windlass(sys.argv[1]).sync.queue("default")
                own.add("work", job_id="child")
                fresh = new_id()
                os.write(write, f"{answer} {fresh}".encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        answer, fresh = os.read(read, 1000).decode().rsplit(" ", 1)
        ours = {new_id() for _ in range(50)}
        assert fresh not in ids | ours
        assert queue.get_job("child") is not None
        assert queue.get_job("through-the-parent") is None
        print(answer)
        app.sync.close()
        PORTAL.stop()
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", script, store_url("sqlite", tmp_path)],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.stdout.strip() == "refused", done.stderr


@pytest.mark.feature("Z6", "C17")
async def test_pickled_data_in_the_store_is_never_run(app: Windlass, queue: Queue, tmp_path: Path) -> None:
    mark = tmp_path / "was-run"

    class Bomb:
        def __reduce__(self) -> Any:
            return (os.mkdir, (str(mark),))

    for codec in ("json", "msgpack", "pickle"):
        new = queue.prepare("work")
        new.payload, new.codec = pickle.dumps(Bomb()), codec
        await app.store.execute(rq.Add(jobs=[new]))
    await work_off(app, "default", lambda job: job.data)
    assert not mark.exists()
    assert {job.reason for job in await queue.get_jobs("failed")} == {"bad_payload"}
    with pytest.raises(ConfigError):
        get_codec("pickle")
    with pytest.raises(ConfigError, match="arguments cannot be stored as json"):
        await queue.add("work", object())


@pytest.mark.feature("A8")
async def test_a_naive_datetime_is_refused_and_zones_are_kept_exactly(
    timed_app: Windlass, clock: DrivenClock
) -> None:
    """Instants are stored as UTC milliseconds. Cron across the change of the hour remains for schedules."""
    queue = timed_app.queue("default")
    with pytest.raises(ConfigError, match="timezone"):
        await queue.add("work", run_at=datetime(2099, 1, 1))
    berlin = ZoneInfo("Europe/Berlin")
    # The hour that happens twice: 02:30 summer time and 02:30 winter time are an hour apart.
    first = await queue.add("work", run_at=datetime(2099, 10, 25, 2, 30, tzinfo=berlin, fold=0))
    second = await queue.add("work", run_at=datetime(2099, 10, 25, 2, 30, tzinfo=berlin, fold=1))
    assert (second.run_at_ms or 0) - (first.run_at_ms or 0) == 3_600_000
    same = [
        datetime(2099, 6, 1, 12, tzinfo=UTC),
        datetime(2099, 6, 1, 14, tzinfo=berlin),
        datetime(2099, 6, 1, 17, 30, tzinfo=timezone(timedelta(hours=5, minutes=30))),
    ]
    assert len({(await queue.add("work", run_at=at)).run_at_ms for at in same}) == 1


@pytest.mark.feature("W3")
@pytest.mark.parametrize(
    "data",
    [
        {"empty": [], "object": {}},
        {"big": 2**63 - 1, "bigger": 2**64 - 1, "small": -(2**63)},
        {"f": 1.0, "i": 1},
    ],
    ids=["empty", "integers", "kinds"],
)
async def test_payloads_are_opaque_to_the_store(app: Windlass, queue: Queue, data: Any) -> None:
    """Empty lists stay lists, large integers stay exact. The Valkey functions must keep this promise too."""
    job = await queue.add("work", data)
    raw = job.record.payload
    await work_off(app, "default", lambda job: job.data)
    stored = await queue.get_job(job.id)
    assert stored is not None
    assert stored.record.payload == raw, "byte for byte"
    assert stored.data == data
    assert await job.result() == data
    assert [type(value) for value in stored.data.values()] == [type(value) for value in data.values()]


@pytest.mark.feature("W2")
async def test_bytes_of_any_value_survive(url: str) -> None:
    async with Windlass(url, codec="msgpack") as app:
        queue = app.queue("default")
        blob = bytes(range(256))
        job = await queue.add("work", {"blob": blob, "none": b""})
        await work_off(app, "default", lambda job: job.data)
        assert await job.result() == {"blob": blob, "none": b""}
        assert msgspec.msgpack.decode(job.record.payload)["kwargs"]["blob"] == blob


async def test_writers_of_one_file_wait_for_each_other_without_lock_errors(tmp_path: Path) -> None:
    """Each client has a writer of its own; every write begins with BEGIN IMMEDIATE."""
    url = store_url("sqlite", tmp_path)
    async with (
        Windlass(url) as one,
        Windlass(f"{url}?timeout=20") as two,
        Windlass(f"{url}?timeout=30") as three,
    ):
        apps = (one, two, three)
        await asyncio.gather(
            *(app.queue("default").add("work", number) for number in range(50) for app in apps)
        )
        ends = await asyncio.gather(
            *(work_off(app, "default", lambda job: None, concurrency=4, duties=False) for app in apps)
        )
        assert len(ends) == 3
        counts = await one.queue("default").get_job_counts()
    assert counts[JobState.COMPLETED] == 150
    assert counts[JobState.ACTIVE] == 0


async def test_a_call_to_a_store_that_does_not_answer_ends_in_time(tmp_path: Path) -> None:
    """No call waits for ever. Half-open connections of a network client remain for the Valkey backend."""
    url = f"{store_url('sqlite', tmp_path)}?timeout=0.2"
    async with Windlass(url) as app:
        queue = app.queue("default")
        await queue.add("work", job_id="before")
        foreign = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
        try:
            foreign.execute("BEGIN IMMEDIATE")
            async with asyncio.timeout(20):
                with pytest.raises(StorageError, match="did not begin a call within"):
                    await queue.add("work", job_id="blocked")
            assert await queue.get_job("before") is not None, "readers go on"
            foreign.execute("ROLLBACK")
        finally:
            foreign.close()
        assert (await queue.add("work", job_id="after")).outcome == "queued"
        assert await queue.get_job("blocked") is None, "nothing was changed"


@pytest.mark.feature("E1")
async def test_waiting_for_an_answer_ends_in_time(queue: Queue) -> None:
    async with asyncio.timeout(20):
        with pytest.raises(WaitTimeoutError):
            await queue.add_and_wait("work", timeout=0.05)
