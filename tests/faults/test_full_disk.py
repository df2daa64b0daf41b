"""A disk that takes no more: ``add`` says so, nothing stored is harmed, work goes on when there is room."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.faults.kit import check_books, staged, until
from windlass import StorageError, Windlass, Worker
from windlass.backends.sqlite.connection import connect

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable
    from pathlib import Path

backend_name = "sqlite"


class Disk:
    """The writer's connection, whose database may be kept from growing: SQLITE_FULL, as on a full disk."""

    def __init__(self, connect: Callable[..., sqlite3.Connection]) -> None:
        self._connect = connect
        self._connections: list[sqlite3.Connection] = []

    def connect(self, *args: Any, **options: Any) -> sqlite3.Connection:
        conn = self._connect(*args, **options)
        self._connections.append(conn)
        return conn

    def fill(self) -> None:
        """Leave no room beyond what the database has now."""
        for conn in self._connections:
            conn.execute("PRAGMA max_page_count = 1")  # SQLite raises it to the present size

    def make_room(self) -> None:
        for conn in self._connections:
            conn.execute("PRAGMA max_page_count = 1000000")


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk(connect)
    monkeypatch.setattr("windlass.backends.sqlite.session.connect", disk.connect)
    return disk


async def test_a_full_disk_refuses_adds_and_harms_nothing(tmp_path: Path, disk: Disk) -> None:
    async with Windlass(f"sqlite:///{tmp_path / 'jobs.db'}") as app:
        queue = app.queue("q")
        ids = [job.id for job in await queue.add_bulk([{"name": "t", "data": {"n": n}} for n in range(200)])]
        disk.fill()
        stored: list[str] = []
        with pytest.raises(StorageError, match="full"):
            while True:  # what fits into half-empty pages is still taken
                stored += [(await queue.add("t", {"text": "x" * 1_500})).id]
        with pytest.raises(StorageError, match="make room"):
            await queue.add_bulk([{"name": "t", "data": {"text": "x" * 1_500}}] * 500)
        assert await queue.count() == len(ids) + len(stored), "reads work; refused adds left nothing behind"
        job = await queue.get_job(ids[0])
        assert job is not None
        assert job.data == {"n": 0}

        disk.make_room()
        later = await queue.add("t", {"text": "x" * 1_500})
        await Worker("q", _handle, url_or_app=app, burst=True).run()
        await check_books(app, [*ids, *stored, later.id])


async def test_a_worker_on_a_full_disk_goes_on_when_there_is_room(tmp_path: Path, disk: Disk) -> None:
    async with Windlass(f"sqlite:///{tmp_path / 'jobs.db'}") as app:
        queue = app.queue("q")
        jobs = await queue.add_bulk([{"name": "t", "data": {"n": n}} for n in range(200)])
        worker = Worker("q", _large_result, url_or_app=app, concurrency=4)
        errors: list[Exception] = []
        worker.on("error", errors.append)
        disk.fill()
        await worker.start()
        await until(lambda: errors, "the worker has met the full disk")
        assert isinstance(errors[0], StorageError)
        disk.make_room()
        await until(lambda: _done(app, len(jobs)), "all is settled")
        await worker.close()
        outcomes = await check_books(app, [job.id for job in jobs])
        assert outcomes["stalled"] == 0


async def _handle(job: Any) -> None:
    """Nothing to do."""


async def _large_result(job: Any) -> str:
    return "x" * 20_000


async def _done(app: Windlass, count: int) -> bool:
    rows = await app.queue("q").get_metrics()
    return sum(row.total for row in rows if row.outcome == "completed") >= count


async def test_a_process_that_cannot_write_to_the_disk_harms_nobody_else(tmp_path: Path) -> None:
    """The kernel refuses its writes (a file size limit): its calls fail, those of others do not."""
    async with staged(tmp_path) as stage:
        queue = stage.app.queue("q")
        jobs = await queue.add_bulk([{"name": "noop", "data": {"n": n}} for n in range(300)])
        cramped = stage.spawn("tests.faults.cramped", str(_largest(tmp_path) + 200_000))
        assert await cramped.ended() == 0
        *stored, last = stage.lines("cramped")
        assert stored
        assert last == "StorageError"
        heir = stage.worker(burst=True)
        assert await heir.ended() == 0
        await check_books(stage.app, [*(job.id for job in jobs), *stored])


def _largest(directory: Path) -> int:
    """The size of the largest file of the database."""
    return max(path.stat().st_size for path in directory.glob("jobs.db*"))
