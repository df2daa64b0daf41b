"""Opening a store: while it is closed, and where it fails."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from windlass import ClosedError, StorageError
from windlass.backend import open_backend
from windlass.backend import requests as rq
from windlass.backend.store import Store
from windlass.core.clock import SystemClock
from windlass.errors import ForkedError


@pytest.fixture(params=["file://", "sqlite:///"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """How a URL begins, and the path that it goes on with."""
    return request.param, tmp_path / "place" / "jobs"


def _store(place: tuple[str, Path]) -> Store:
    return Store(open_backend(f"{place[0]}{place[1]}"), SystemClock())


async def test_a_store_that_was_closed_while_it_opened_stays_closed_until_it_is_opened_again(
    place: tuple[str, Path],
) -> None:
    place[1].parent.mkdir()
    store = _store(place)
    opening = asyncio.create_task(store.execute(rq.CountJobs(queue="q")))
    await asyncio.sleep(0)  # it is on its way now
    await store.close()
    with pytest.raises((ClosedError, StorageError)):
        await opening
    with pytest.raises(ClosedError):
        await store.execute(rq.CountJobs(queue="q"))
    await store.reopen()
    assert await store.execute(rq.CountJobs(queue="q"))
    await store.close()


async def test_a_store_that_two_failed_to_open_is_opened_by_the_next(place: tuple[str, Path]) -> None:
    place[1].parent.write_text("in the way")
    store = _store(place)
    requests = [store.execute(rq.CountJobs(queue="q")) for _ in range(2)]
    assert [type(one) for one in await asyncio.gather(*requests, return_exceptions=True)] == [
        StorageError
    ] * 2
    place[1].parent.unlink()
    place[1].parent.mkdir()
    assert await store.execute(rq.CountJobs(queue="q"))
    await store.close()


async def test_a_store_that_is_opened_while_it_closes_is_still_refused_in_a_fork(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = open_backend(f"sqlite:///{tmp_path / 'jobs'}")
    store = Store(backend, SystemClock())
    await store.open()
    go_on, close, open_ = asyncio.Event(), backend.close, backend.open

    async def close_late() -> None:
        await close()
        await go_on.wait()

    async def open_late() -> None:
        await closing
        await open_()

    monkeypatch.setattr(backend, "close", close_late)
    monkeypatch.setattr(backend, "open", open_late)
    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0)
    opening = asyncio.create_task(store.reopen())
    await asyncio.sleep(0)
    go_on.set()
    await opening
    with monkeypatch.context() as child:
        child.setattr("windlass.backend.store._pid", os.getpid() + 1)
        with pytest.raises(ForkedError):
            await store.execute(rq.CountJobs(queue="q"))
    await store.close()
