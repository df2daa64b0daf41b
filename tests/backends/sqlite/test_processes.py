"""Several processes on one file: they take turns, wake each other, and survive each other's end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.backends.sqlite.support import add, claim, client, new, opened
from windlass.backend import requests as rq
from windlass.backend.local import notify
from windlass.backend.local.socket_folder import directory
from windlass.core.job import JobRef
from windlass.core.states import JobState
from windlass.errors import StorageError
from windlass_conformance.stage import in_time

ROOT = Path(__file__).parents[3]


class Child:
    """A process of ``children.py``."""

    def __init__(self, *arguments: object) -> None:
        command = [sys.executable, "-m", "tests.backends.sqlite.children", *map(str, arguments)]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def heard(self) -> str:
        """The next line that it prints."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go(self) -> None:
        """Let it go on."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def frozen(self) -> None:
        """Wait until it has stopped."""
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED)

    def end(self) -> int:
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        return self.process.wait(20)


@pytest.fixture
def children() -> Iterator[Any]:
    """Starts processes, and ends those that are left."""
    started: list[Child] = []

    def start(*arguments: object) -> Child:
        started.append(Child(*arguments))
        return started[-1]

    yield start
    for child in started:
        if child.process.poll() is None:
            child.process.kill()
        child.end()


# --- opening ------------------------------------------------------------------------------------


def test_processes_that_open_a_new_file_at_once_agree(tmp_path: Path, children: Any) -> None:
    opening = [children("open", tmp_path / "jobs.db") for _ in range(4)]
    assert [child.heard() for child in opening] == ["ready"] * 4
    for child in opening:
        child.go()
    assert [child.heard() for child in opening] == ["open"] * 4
    assert [child.end() for child in opening] == [0] * 4


# --- waking ---------------------------------------------------------------------------------------


async def test_a_job_of_another_process_wakes_a_listener_at_once(
    tmp_path: Path, children: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "CHECK_S", 60.0)  # so that only the datagram can do it
    async with opened(tmp_path / "jobs.db") as store:
        listener = store.listen([f"ready:{number}" for number in range(50)])
        child = children("add", tmp_path / "jobs.db", "7")
        assert await asyncio.to_thread(child.heard) == "ready"
        child.go()
        assert await listener.wait(10_000) == {"ready:7"}
        listener.close()
        assert [job.queue for job in await claim(store, "7")] == ["7"]
        child.go()


async def test_without_sockets_the_slow_check_wakes(
    tmp_path: Path, children: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "_socket", lambda: None)
    async with opened(tmp_path / "jobs.db") as store:
        listener = store.listen(["ready:q"])
        child = children("add", tmp_path / "jobs.db", "q")
        assert await asyncio.to_thread(child.heard) == "ready"
        child.go()
        assert await listener.wait(10_000) == {"ready:q"}
        listener.close()
        child.go()


async def test_a_dead_listener_is_forgotten(tmp_path: Path, children: Any) -> None:
    path = tmp_path / "jobs.db"
    boxes = notify.Mailboxes(f"{path}-wake", "default", str(path))
    async with opened(path) as store:
        left = Path(directory(f"{path}-wake")) / f"{boxes._prefix}r.999999-dead"
        dead = notify._socket()
        assert dead is not None
        dead.bind(str(left))
        dead.close()
        await asyncio.sleep(0.001)
        await add(store, new())
        await add(store, new())
        assert not left.exists()
    boxes.close()


def _names_in(folder: str) -> list[str]:
    return os.listdir(folder) if os.path.exists(folder) else []


async def test_sockets_and_threads_are_gone_after_the_last_client(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with opened(path) as first:
        second = first.clone()
        await second.open()
        second.listen(["ready:q"])
        boxes = directory(f"{path}-wake")
        assert len(os.listdir(boxes)) == 1
        await second.close()
        assert len(os.listdir(boxes)) == 1
    assert _names_in(boxes) == []


def test_a_long_path_puts_the_sockets_elsewhere(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 80) / ("e" * 80)
    deep.mkdir(parents=True)

    async def work() -> None:
        async with opened(deep / "jobs.db") as store:
            listener = store.listen(["ready:q"])
            await add(store, new())
            assert await listener.wait(5_000) == {"ready:q"}
            listener.close()

    asyncio.run(work())
    assert len(os.fsencode(directory(f"{deep}/jobs.db-wake"))) < 100


# --- frozen and killed ------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["sqlite.begun", "sqlite.committing"])
async def test_a_process_frozen_inside_a_transaction_makes_others_raise_in_time(
    tmp_path: Path, children: Any, point: str
) -> None:
    path = tmp_path / "jobs.db"
    async with opened(path) as store, opened(path, timeout=0.2) as hasty:
        await add(store, new(id="first"))
        child = children("stop", path, point)
        assert child.heard() == "freezing"
        child.frozen()

        dropped = asyncio.ensure_future(add(hasty, new(id="dropped")))
        began = time.monotonic()
        assert await in_time(asyncio.wait([dropped])) < 2.0
        assert time.monotonic() - began > 0.15
        with pytest.raises(StorageError, match="another process is writing, or is stopped"):
            dropped.result()
        assert (await store.execute(rq.CountJobs(queue="q")))[JobState.WAITING] == 1  # reading goes on

        os.kill(child.process.pid, signal.SIGCONT)
        assert child.heard() == "added"
        await add(store, new(id="later"))
        jobs = (await store.execute(rq.ListJobs(queue="q", newest_first=False))).jobs
        assert [job.id for job in jobs] == ["first", "frozen", "later"]  # what raised was never written


async def test_opening_raises_in_time_while_another_process_is_frozen(tmp_path: Path, children: Any) -> None:
    path = tmp_path / "jobs.db"
    async with opened(path):
        pass
    child = children("stop", path, "sqlite.committing")
    assert child.heard() == "freezing"
    child.frozen()
    late = client(path, timeout=0.1)
    with pytest.raises(StorageError, match="could not be opened"):
        await late.open()
    os.kill(child.process.pid, signal.SIGCONT)
    assert child.heard() == "added"
    await late.open()
    await late.close()
    async with opened(path) as patient:
        assert (await patient.execute(rq.CountJobs(queue="q")))[JobState.WAITING] == 1


@pytest.mark.parametrize("point", ["sqlite.begun", "sqlite.committing", "sqlite.committed"])
async def test_a_process_killed_inside_a_transaction_leaves_all_or_nothing(
    tmp_path: Path, children: Any, point: str
) -> None:
    path = tmp_path / "jobs.db"
    child = children("die", path, point)
    assert await asyncio.to_thread(child.process.wait, 20) == -signal.SIGKILL
    async with opened(path) as store:
        found = await store.execute(rq.GetJobs(refs=[JobRef("q", "before"), JobRef("q", "during")]))
        others = await store.execute(rq.CountJobs(queue="other"))
        done = point == "sqlite.committed"
        assert [job is not None for job in found] == [True, done]
        assert others[JobState.WAITING] == int(done)
        assert len((await store.execute(rq.ReadEvents(queue="q"))).events) == 1 + done
        await add(store, new())


# --- at the same time -------------------------------------------------------------------------------


@pytest.mark.feature("J17")
async def test_processes_that_claim_at_once_never_get_the_same_job(tmp_path: Path, children: Any) -> None:
    path = tmp_path / "jobs.db"
    async with opened(path) as store:
        jobs = [new(id=f"job{number}") for number in range(120)]
        await add(store, *jobs)
        workers = [children("drain", path, f"w{number}") for number in range(3)]
        for child in workers:
            assert await asyncio.to_thread(child.heard) == "ready"
        for child in workers:
            child.go()
        seen: list[str] = []
        for child in workers:
            while (line := await asyncio.to_thread(child.heard)) != "end":
                assert line, "the child met an error"
                seen += line.split()
        assert sorted(seen) == sorted(job.id for job in jobs)
        counts = await store.execute(rq.CountJobs(queue="q"))
        assert counts[JobState.COMPLETED] == 120
        totals = {row.outcome: row.total for row in await store.execute(rq.ReadCounters())}
        assert totals == {"enqueued": 120, "completed": 120}


async def test_writers_in_several_processes_keep_one_line(tmp_path: Path, children: Any) -> None:
    path = tmp_path / "jobs.db"
    async with opened(path, timeout=20) as store:
        writers = [children("add_many", path, prefix) for prefix in "ab"]
        for child in writers:
            assert await asyncio.to_thread(child.heard) == "ready"
        for child in writers:
            child.go()
        for number in range(50):
            await add(store, new(id=f"c{number}", request_id=""))
        for child in writers:
            assert await asyncio.to_thread(child.heard) == "end"
        jobs = (await store.execute(rq.ListJobs(queue="q", limit=1_000, newest_first=False))).jobs
        assert len(jobs) == 150
        assert [job.place for job in jobs] == list(range(1, 151))
        assert sorted(job.enqueued_ms for job in jobs) == [job.enqueued_ms for job in jobs]
        for prefix in "abc":
            assert [job.id for job in jobs if job.id[0] == prefix] == [f"{prefix}{n}" for n in range(50)]
        events = (await store.execute(rq.ReadEvents(queue="q"))).events
        assert [event.id for event in events] == list(range(1, 151))
        assert [event.job_id for event in events] == [job.id for job in jobs]
