"""When what was committed is brought to the disk, and what happens when the disk refuses."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.backends.sqlite.support import add, claim, ended, new, opened, settle
from windlass.backend import requests as rq
from windlass.backend.local import flush
from windlass.backends.sqlite import wal
from windlass.core.outcome import AddOutcome, Settled
from windlass.errors import StorageError


class Flushes:
    """Counts what is asked of the disk, and lets it fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0
        self.fail = False
        real_sync = flush.data_sync

        def sync(fd: int) -> None:
            self.now += 1
            if self.fail:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            real_sync(fd)

        monkeypatch.setattr(flush, "data_sync", sync)


@pytest.fixture
def flushes(monkeypatch: pytest.MonkeyPatch) -> Flushes:
    return Flushes(monkeypatch)


@pytest.mark.feature("Z12")
@pytest.mark.parametrize("backend_name", ["sqlite"])
async def test_an_add_is_flushed_before_it_is_answered(
    backend_name: str, tmp_path: Path, flushes: Flushes
) -> None:
    async with opened(tmp_path / "jobs.db") as store:
        for expected in range(1, 4):
            flushes.now = 0
            await add(store, *[new() for _ in range(expected)])
            assert flushes.now == 1


async def test_calls_that_wait_together_share_a_flush(tmp_path: Path, flushes: Flushes) -> None:
    async with opened(tmp_path / "jobs.db") as store:
        await add(store, new())
        flushes.now = 0
        await asyncio.gather(*[add(store, new()) for _ in range(20)])
        assert 1 <= flushes.now <= 2


@pytest.mark.feature("Z12")
@pytest.mark.parametrize("backend_name", ["sqlite"])
async def test_normal_asks_for_no_flush(backend_name: str, tmp_path: Path, flushes: Flushes) -> None:
    async with opened(tmp_path / "jobs.db", synchronous="normal") as store:
        await add(store, new())
        await claim(store)
        await store.execute(rq.ReadHistory(queue="q"))
    assert flushes.now == 0


async def test_claims_and_settlements_are_flushed_before_they_are_answered(
    tmp_path: Path, flushes: Flushes
) -> None:
    async with opened(tmp_path / "jobs.db") as store:
        await add(store, new(), new())
        flushes.now = 0
        (job,) = await claim(store, limit=1)
        assert flushes.now == 1
        wanted = rq.Claim(worker="w", queues=[rq.ClaimQueue("q", 1, 1)], limit=1, claim_id="next")
        answer = await store.execute(rq.Settle(items=[ended(job)], claim=wanted))
        assert answer.claimed is not None
        assert flushes.now == 2
        await settle(store, *map(ended, answer.claimed.jobs))
        assert flushes.now == 3


async def test_history_is_flushed_before_it_can_be_copied(tmp_path: Path, flushes: Flushes) -> None:
    async with opened(tmp_path / "jobs.db") as store:
        await add(store, new())
        await settle(store, *map(ended, await claim(store)))
        flushes.now = 0
        page = await store.execute(rq.ReadHistory(queue="q"))
        assert len(page.records) == 1
        assert flushes.now == 1
        await store.execute(rq.CountJobs(queue="q"))
        assert flushes.now == 1


async def test_a_disk_that_refuses_is_told_and_the_call_may_be_repeated(
    tmp_path: Path, flushes: Flushes
) -> None:
    async with opened(tmp_path / "jobs.db") as store:
        await add(store, new())
        job = new(id="again")
        flushes.fail = True
        with pytest.raises(StorageError, match=r"Input/output error.*repeat the call with the same id"):
            await add(store, job)
        flushes.fail = False
        assert [added.outcome for added in await add(store, job)] == [AddOutcome.QUEUED]
        held = await claim(store)
        assert len(held) == 2
        assert await settle(store, *map(ended, held)) == [Settled.OK] * 2


async def test_after_a_failed_flush_no_later_one_counts_until_the_log_was_written_again(
    tmp_path: Path, flushes: Flushes, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    real = flush.write_again

    def write_again(fd: int, start: int = 0) -> None:
        if refuse:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        written.append(os.fstat(fd).st_size)
        real(fd, start)

    monkeypatch.setattr(flush, "write_again", write_again)
    refuse = True
    async with opened(tmp_path / "jobs.db") as store:
        await add(store, new(id="before"))
        before = os.stat(f"{tmp_path}/jobs.db-wal").st_size
        flushes.fail = True
        with pytest.raises(StorageError, match="outcome is unknown"):
            await add(store, new(id="lost"))
        flushes.fail = False  # from here on the disk says that all is well
        with pytest.raises(StorageError, match="Input/output error"):
            await add(store, new(id="refused"))
        with pytest.raises(StorageError, match="an earlier flush failed"):
            await store.execute(rq.ReadHistory(queue="q"))
        refuse = False
        (again,) = await add(store, new(id="lost"))
        assert again.outcome is AddOutcome.QUEUED
        assert len(written) == 1
        assert written[0] > before
        await add(store, new(id="later"))
        await store.execute(rq.ReadHistory(queue="q"))
        assert len(written) == 1
        jobs = (await store.execute(rq.ListJobs(queue="q", newest_first=False))).jobs
        assert [job.id for job in jobs] == ["before", "lost", "later"]


class Lost:
    """A log from which the system lets go what a failed flush should have written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.whole = self._size()

    def _size(self) -> int:
        return os.stat(f"{self.path}-wal").st_size

    def let_go(self) -> None:
        with open(f"{self.path}-wal", "r+b") as file:
            file.seek(self.whole)
            file.write(bytes(self._size() - self.whole))

    def after_a_power_cut(self, folder: Path) -> Path:
        """The files as a machine finds them that lost its memory."""
        folder.mkdir()
        for end in ("", "-wal"):
            shutil.copy(f"{self.path}{end}", folder / f"jobs.db{end}")
        return folder / "jobs.db"


@pytest.mark.feature("Z12")
@pytest.mark.parametrize("backend_name", ["sqlite"])
async def test_nothing_is_acknowledged_behind_frames_that_a_failed_flush_lost(
    backend_name: str, tmp_path: Path, flushes: Flushes
) -> None:
    async with opened(tmp_path / "jobs.db") as store, opened(tmp_path / "jobs.db", timeout=4) as other:
        await add(store, new(id="before"))
        lost = Lost(tmp_path / "jobs.db")
        flushes.fail = True
        with pytest.raises(StorageError, match="outcome is unknown"):
            await add(store, new("fresh", id="lost"))
        flushes.fail = False
        await asyncio.to_thread(lost.let_go)
        with pytest.raises(StorageError, match=r"is lost and was taken back: repeat the call"):
            await add(store, new(id="refused"))
        for client in (store, other):
            await add(client, new("later"), new(id=f"after-{client is store}"))
        found = await asyncio.to_thread(lost.after_a_power_cut, tmp_path / "copy")
        async with opened(found) as copy:
            for client in (store, other, copy):
                jobs = (await client.execute(rq.ListJobs(queue="q", newest_first=False))).jobs
                assert [job.id for job in jobs] == ["before", "after-True", "after-False"]
                assert len((await client.execute(rq.ListJobs(queue="later"))).jobs) == 2
                assert (await client.execute(rq.ListJobs(queue="fresh"))).jobs == []
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as conn:
        assert conn.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


async def test_what_a_failed_flush_lost_is_not_copied_into_the_file_at_the_end(
    tmp_path: Path, flushes: Flushes
) -> None:
    async with opened(tmp_path / "jobs.db") as store:
        await add(store, new(id="before"))
        lost = Lost(tmp_path / "jobs.db")
        flushes.fail = True
        with pytest.raises(StorageError, match="outcome is unknown"):
            await add(store, *[new(payload=b"x" * 1_500) for _ in range(50)])
        flushes.fail = False
        await asyncio.to_thread(lost.let_go)
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as conn:
        assert conn.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert conn.execute("SELECT id FROM windlass_default_job").fetchall() == [("before",)]


@pytest.mark.parametrize("writes", [0, 1, 30])
async def test_a_log_that_is_whole_is_found_to_be(tmp_path: Path, writes: int) -> None:
    path = tmp_path / "jobs.db"
    async with opened(path) as store:
        for _ in range(writes):
            await add(store, new())
        fd = os.open(f"{path}-wal", os.O_RDWR)
        assert wal.is_whole(fd, str(path))
        size = os.fstat(fd).st_size
        if writes:
            for at in (20, size // 2, size - 1):
                byte = os.pread(fd, 1, at)
                os.pwrite(fd, bytes([byte[0] ^ 1]), at)
                assert not wal.is_whole(fd, str(path))
                os.pwrite(fd, byte, at)
        assert wal.is_whole(fd, str(path))
        os.close(fd)
