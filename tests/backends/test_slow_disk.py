"""A disk that hesitates: the caller's event loop goes on, and every call keeps its timeout."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from windlass import StorageError, Windlass
from windlass.backend.local import flush

#: Long enough to be noticed; reached only when the loop that should end the flush cannot run.
_STUCK_S = 20.0


class SlowDisk:
    """From ``hold`` on, flushes do not return before ``go_on``."""

    def __init__(self, flush: Callable[[int], None]) -> None:
        self._flush = flush
        self._go_on = threading.Event()
        self._go_on.set()
        self.reached = threading.Event()
        self.stuck = False

    def hold(self) -> None:
        self._go_on.clear()

    def go_on(self) -> None:
        self._go_on.set()

    def __call__(self, fd: int) -> None:
        self.reached.set()
        self.stuck = self.stuck or not self._go_on.wait(_STUCK_S)
        self._flush(fd)


@pytest.fixture(params=["sqlite", "file"])
def backend_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def url(backend_name: str, tmp_path: Path) -> str:
    place = f"sqlite:///{tmp_path}/jobs.db" if backend_name == "sqlite" else f"file://{tmp_path}/jobs"
    return f"{place}?timeout=1"


@pytest.fixture
def slow(backend_name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowDisk]:
    slow = SlowDisk(os.fdatasync)
    monkeypatch.setattr(flush, "data_sync", slow)
    yield slow
    slow.go_on()


async def test_the_loop_runs_while_the_disk_hesitates(url: str, slow: SlowDisk) -> None:
    async with Windlass(url) as app:
        queue = app.queue("q")
        await queue.add("first")
        slow.hold()
        # Only the loop ends the flush: if the flush held the loop up, neither would go on.
        asyncio.get_running_loop().call_later(0.05, slow.go_on)
        await queue.add("second")
        assert not slow.stuck


async def test_a_call_raises_at_its_timeout_and_may_be_repeated(url: str, slow: SlowDisk) -> None:
    async with Windlass(url) as app:
        queue, loop = app.queue("q"), asyncio.get_running_loop()
        await queue.add("first")
        slow.reached.clear()
        slow.hold()
        began = loop.time()
        with pytest.raises(StorageError, match="outcome unknown, repeat with the same id"):
            await queue.add("second", job_id="again")
        assert slow.reached.is_set()
        assert 0.9 < loop.time() - began < 1.5
        slow.go_on()
        again = await queue.add("second", job_id="again")
        assert again.outcome in ("queued", "duplicate")
        assert await queue.count() == 2
        assert not slow.stuck
