"""A disk that refuses a flush, and files that are deleted or replaced while a process has them open."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.backends.file.support import add, jobs_of, log_of, new, opened
from windlass.backend.local import flush
from windlass.core.outcome import AddOutcome
from windlass.core.probe import Probe, install
from windlass.errors import StorageError, StoreReplacedError


class Disk:
    """Lets flushes fail, and counts how often the log was written again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fail = False
        self.rewrites = 0
        real_sync, real_write = flush.data_sync, flush.write_again

        def sync(fd: int) -> None:
            if self.fail:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            real_sync(fd)

        def write_again(fd: int, start: int) -> None:
            self.rewrites += 1
            real_write(fd, start)

        monkeypatch.setattr(flush, "data_sync", sync)
        monkeypatch.setattr(flush, "write_again", write_again)


async def test_after_a_failed_flush_no_later_one_counts_until_the_log_was_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    async with opened(tmp_path / "store") as store:
        await add(store, new(id="before"))
        disk.fail = True
        with pytest.raises(StorageError, match=r"outcome is unknown: repeat the call with the same id"):
            await add(store, new(id="lost"))
        with pytest.raises(StorageError, match="Input/output error"):
            await add(store, new(id="refused"))
        written = log_of(tmp_path / "store").read_bytes()
        disk.fail = False
        assert disk.rewrites == 1  # the flush behind it failed, too
        (again,) = await add(store, new(id="lost"))
        assert again.outcome is AddOutcome.QUEUED
        assert disk.rewrites == 2
        assert log_of(tmp_path / "store").read_bytes() == written
        await add(store, new(id="later"))
        assert disk.rewrites == 2
        assert list(await jobs_of(store)) == ["before", "lost", "later"]
    async with opened(tmp_path / "store") as store:
        assert list(await jobs_of(store)) == ["before", "lost", "later"]


async def test_what_a_failed_flush_lost_from_the_cache_is_never_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    async with opened(tmp_path / "store") as store:
        await add(store, new(id="before"))
        whole = log_of(tmp_path / "store").stat().st_size
        disk.fail = True
        with pytest.raises(StorageError, match="outcome is unknown"):
            await add(store, new(id="lost"))
        disk.fail = False
        size = log_of(tmp_path / "store").stat().st_size
        with log_of(tmp_path / "store").open("r+b") as file:  # as when the system has let the pages go
            file.seek(whole)
            file.write(bytes(size - whole))
        with pytest.raises(StorageError, match="did not reach the disk"):
            await add(store, new(id="lost"))


@pytest.mark.feature("Z12")
async def test_what_was_acknowledged_outlives_a_crash_that_loses_all_that_was_not_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, flushed, kept = tmp_path / "store", [0], dict[str, int]()
    real_sync = flush.data_sync

    def sync(fd: int) -> None:
        size = os.fstat(fd).st_size
        real_sync(fd)
        flushed.append(size)

    monkeypatch.setattr(flush, "data_sync", sync)
    async with opened(path) as store:
        for id_ in ("first", "second", "third"):
            await add(store, new(id=id_))
            kept[id_] = flushed[-1]
    for number, (id_, size) in enumerate(kept.items(), 1):
        copy = Path(shutil.copytree(path, tmp_path / id_))
        os.truncate(log_of(copy), size)
        async with opened(copy) as store:
            assert list(await jobs_of(store)) == list(kept)[:number]


@pytest.mark.feature("Z12")
async def test_with_synchronous_off_no_change_waits_for_a_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    disk.fail = True
    async with opened(tmp_path / "store", synchronous="off") as store:
        await add(store, new(id="first"))
        assert list(await jobs_of(store)) == ["first"]


def _delete_log(path: Path) -> None:
    log_of(path).unlink()


def _replace_log(path: Path) -> None:
    shutil.copy(log_of(path), path / "default" / "copy")
    os.replace(path / "default" / "copy", log_of(path))


def _delete_all(path: Path) -> None:
    shutil.rmtree(path)


@pytest.mark.parametrize("harm", [_delete_log, _replace_log, _delete_all])
@pytest.mark.parametrize("synchronous", ["full", "off"])
async def test_nothing_is_acknowledged_into_a_log_that_was_deleted_or_replaced(
    tmp_path: Path, synchronous: str, harm: Callable[[Path], None]
) -> None:
    path = tmp_path / "store"
    async with opened(path, synchronous=synchronous) as store:
        await add(store, new(id="a"))
        harm(path)
        with pytest.raises(StorageError):
            await add(store, new(id="b"))
        with pytest.raises(StorageError):
            await jobs_of(store)


@pytest.mark.parametrize("harm", [_delete_log, _delete_all])
async def test_a_log_that_goes_between_the_append_and_the_answer_is_noticed(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    path = tmp_path / "store"
    async with opened(path) as store:
        await add(store, new(id="a"))
        points = Probe()
        points.arm("file.synced", lambda point, facts: harm(path))
        install(points)
        try:
            with pytest.raises(StoreReplacedError, match="was deleted or replaced"):
                await add(store, new(id="b"))
        finally:
            install(None)
