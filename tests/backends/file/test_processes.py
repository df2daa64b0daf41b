"""Several processes on one directory: they follow one log, wake each other, and survive each other's end."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.backends.file.stranger import digest, work
from tests.backends.file.support import add, jobs_of, new, opened
from tests.faults.kit import Stage, check_books, raises_within, staged, until
from windlass import StorageError
from windlass.backend.local import notify

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

backend_name = "file"
pytestmark = [pytest.mark.feature("L9")]


def url(directory: Path, **options: object) -> str:
    query = "&".join(f"{name}={value}" for name, value in options.items())
    return f"file://{directory / 'store'}?{query}"


# --- work -----------------------------------------------------------------------------------------------


@pytest.mark.timeout(180)
@pytest.mark.feature("J3", "J7")
async def test_three_processes_do_20000_jobs_once_each(tmp_path: Path) -> None:
    """Two workers and a producer that adds one chunk after the other while they work."""
    count = 20_000
    async with staged(tmp_path, url(tmp_path, timeout=30)) as stage:
        workers = [stage.worker(lease=30, concurrency=50) for _ in range(2)]
        producer = stage.spawn("tests.faults.produce", str(count), env={"STAGE_TASK": "noop"})
        assert await producer.ended(timeout=100) == 0, producer.output
        await until(lambda: _completed(stage, count), "all is done", timeout=100)
        outcomes = await check_books(stage.app, [f"chosen-{n}" for n in range(count)])
        assert outcomes == {"completed": count}
        ran = {ended.worker for ended in await stage.history()}
        assert len(ran) == 2, "both had their share"
        for worker in workers:
            worker.signal(signal.SIGTERM)
            assert await worker.ended() == 0, worker.output


async def _completed(stage: Stage, count: int) -> bool:
    return await stage.completed() >= count


async def test_another_process_is_followed_step_by_step(tmp_path: Path) -> None:
    async with opened(tmp_path / "store") as one, opened(tmp_path / "store", timeout=6) as other:
        for turn in range(20):
            await work(one if turn % 2 else other, turn, "w")
            assert digest(one) == digest(other)


# --- versions -------------------------------------------------------------------------------------------


@pytest.fixture
def stranger(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.backends.file.stranger", str(tmp_path / "store")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


@pytest.mark.timeout(60)
async def test_a_process_of_another_version_and_ours_see_the_same_store(
    tmp_path: Path, stranger: subprocess.Popen[str]
) -> None:
    """Its decisions differ from ours; what it wrote down counts, and so does what we do."""
    assert stranger.stdin is not None
    assert stranger.stdout is not None
    async with opened(tmp_path / "store", synchronous="off") as store:
        for turn in range(15):
            stranger.stdin.write("go on\n")
            stranger.stdin.flush()
            told = (await asyncio.to_thread(stranger.stdout.readline)).strip()
            assert told == digest(store), f"after turn {turn} of the other version"
            await work(store, turn, "we")
        jobs = await jobs_of(store)
        assert {job_id.partition("-")[0] for job_id in jobs} == {"stranger", "we"}
        before = digest(store)
    async with opened(tmp_path / "store", synchronous="off") as store:
        assert digest(store) == before, "a restart reads the same"


# --- waking ---------------------------------------------------------------------------------------------


async def test_a_job_of_another_process_wakes_a_listener_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "CHECK_S", 60.0)  # so that only the datagram can do it
    async with staged(tmp_path, url(tmp_path)) as stage:
        listener = await stage.app.store.listen(["ready:q"])
        producer = stage.spawn("tests.faults.produce", "1")
        assert await listener.wait(20_000) == {"ready:q"}
        listener.close()
        assert await producer.ended() == 0


async def test_without_sockets_the_slow_check_wakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "_socket", lambda: None)
    async with staged(tmp_path, url(tmp_path)) as stage:
        listener = await stage.app.store.listen(["ready:q"])
        producer = stage.spawn("tests.faults.produce", "1")
        assert await listener.wait(20_000) == {"ready:q"}
        listener.close()
        assert await producer.ended() == 0


# --- frozen and killed ----------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["file.locked", "file.decided", "file.appended"])
async def test_a_freeze_inside_the_lock_makes_others_raise_and_resume(tmp_path: Path, point: str) -> None:
    async with staged(tmp_path, url(tmp_path, timeout=1)) as stage:
        queue = stage.app.queue("q")
        jobs = await queue.add_bulk({"name": "tell", "data": {"n": n}} for n in range(50))
        victim = stage.worker(probes=f"{point}=stop@3", lease=30)
        await victim.frozen()

        error = await raises_within(queue.add("tell", {"n": 50}), StorageError, 10)
        assert "stopped in the middle of a step" in str(error)
        assert "Nothing was changed" in str(error)
        async with asyncio.timeout(5):  # reads never wait for the lock
            counts = await queue.get_job_counts()
            assert sum(counts.values()) == 50
            assert await queue.get_job(jobs[0].id) is not None

        victim.signal(signal.SIGCONT)
        jobs.append(await queue.add("tell", {"n": 51}))
        await until(lambda: _completed(stage, 51), "all is settled")
        outcomes = await check_books(stage.app, [job.id for job in jobs])
        assert outcomes == {"completed": 51}, "nothing lost or run twice, the refused add undone"


async def test_a_store_opens_while_another_process_is_frozen_inside_the_lock(tmp_path: Path) -> None:
    async with staged(tmp_path, url(tmp_path)) as stage:
        await stage.app.queue("q").add("tell", {"n": 1})
        victim = stage.worker(probes="file.locked=stop")
        await victim.frozen()
        async with opened(tmp_path / "store", timeout=0.5) as late:
            assert len(await jobs_of(late)) == 1
            with pytest.raises(StorageError, match="another process is writing"):
                await add(late, new())


@pytest.mark.feature("J3")
async def test_a_frozen_process_is_killed_and_its_lock_dies_with_it(tmp_path: Path) -> None:
    async with staged(tmp_path, url(tmp_path, timeout=1)) as stage:
        queue = stage.app.queue("q")
        jobs = await queue.add_bulk({"name": "noop", "data": {"n": n}} for n in range(50))
        victim = stage.worker(probes="file.decided=stop@3")
        await victim.frozen()
        await raises_within(queue.add("noop", {"n": 50}), StorageError, 10)
        victim.signal(signal.SIGKILL)
        assert await victim.ended() == -signal.SIGKILL
        jobs.append(await queue.add("noop", {"n": 51}))
        other = stage.worker(burst=True)
        assert await other.ended() == 0
        await check_books(stage.app, [job.id for job in jobs])


@pytest.mark.feature("J3", "J7", "J8")
@pytest.mark.parametrize(
    "point",
    ["worker.claimed", "file.locked", "file.decided", "file.appended", "file.syncing", "file.synced"],
)
async def test_a_worker_killed_at_a_point_loses_nothing(tmp_path: Path, point: str) -> None:
    async with staged(tmp_path, url(tmp_path)) as stage:
        added = await stage.app.queue("q").add_bulk({"name": "noop", "data": {"n": n}} for n in range(60))
        victim = stage.worker(probes=f"{point}=kill@2")
        assert await victim.ended() == -signal.SIGKILL
        heir = stage.worker(burst=True)
        assert await heir.ended() == 0
        outcomes = await check_books(stage.app, [job.id for job in added])
        assert set(outcomes) <= {"completed", "stalled"}
