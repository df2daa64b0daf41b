"""A database file that is deleted or replaced while a process has it open."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.backends.sqlite.support import add, claim, new, opened
from windlass.backend import requests as rq
from windlass.core.states import JobState
from windlass.errors import StoreReplacedError


def _delete(path: Path) -> None:
    path.unlink()


def _replace(path: Path) -> None:
    shutil.copy(path, f"{path}.copy")
    os.replace(f"{path}.copy", path)


def _delete_log(path: Path) -> None:
    path.with_name(path.name + "-wal").unlink()


def _delete_index(path: Path) -> None:
    path.with_name(path.name + "-shm").unlink()


def _move_directory(path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))


def _replace_directory(path: Path) -> None:
    _move_directory(path)
    shutil.copytree(path.parent.with_name("elsewhere"), path.parent)


@pytest.mark.parametrize(
    "harm", [_delete, _replace, _delete_log, _delete_index, _move_directory, _replace_directory]
)
@pytest.mark.parametrize("synchronous", ["full", "normal"])
async def test_nothing_is_acknowledged_into_a_file_that_was_deleted_or_replaced(
    tmp_path: Path, synchronous: str, harm: Callable[[Path], None]
) -> None:
    (tmp_path / "home").mkdir()
    path = tmp_path / "home" / "jobs.db"
    async with opened(path, synchronous=synchronous) as store:
        await add(store, new(id="a"))
        await store.execute(rq.CountJobs(queue="q"))
        harm(path)
        with pytest.raises(
            StoreReplacedError, match="was deleted or replaced while this process had it open"
        ):
            await add(store, new(id="b"))
        with pytest.raises(StoreReplacedError):
            await claim(store)
        with pytest.raises(StoreReplacedError):
            await store.execute(rq.CountJobs(queue="q"))


async def test_a_store_that_was_replaced_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with opened(path) as store:
        await add(store, new(id="a"))
        for name in (path.name, path.name + "-wal", path.name + "-shm"):
            path.with_name(name).unlink()
        with pytest.raises(StoreReplacedError):
            await add(store, new(id="b"))
    async with opened(path) as store:
        await add(store, new(id="b"))
        assert (await store.execute(rq.CountJobs(queue="q")))[JobState.WAITING] == 1


async def test_files_that_come_and_go_beside_the_database_do_no_harm(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs.db") as store:
        for n in range(20):
            (tmp_path / f"{n}.txt").touch()
            await add(store, new())
            (tmp_path / f"{n}.txt").unlink()
            await add(store, new())
        assert (await store.execute(rq.CountJobs(queue="q")))[JobState.WAITING] == 40
