"""Completing a job together with what its handler wrote, in the application's own transaction."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from windlass import (
    ConfigError,
    Job,
    JobState,
    LeaseLostError,
    Queue,
    UnsupportedByBackendError,
    Windlass,
    Worker,
    current_job,
)
from windlass.backend import requests as rq
from windlass.core.ids import new_id
from windlass.core.job import JobRecord
from windlass.testing import ManualClock

pytestmark = pytest.mark.feature("A42")


def application(path: Path) -> contextlib.closing[sqlite3.Connection]:
    """The application's own connection, with a table of its own."""
    conn = sqlite3.connect(path)
    conn.execute("CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY)")
    conn.commit()
    return contextlib.closing(conn)


def orders(path: Path) -> int:
    with application(path) as conn:
        return int(conn.execute("SELECT count(*) FROM orders").fetchone()[0])


async def history(queue: Queue) -> list[str]:
    page = await queue.store.execute(rq.ReadHistory(queue=queue.name, after=0, limit=100))
    return [str(entry.outcome) for entry in page.records]


async def test_the_effect_and_the_completion_commit_together(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    async with Windlass(f"sqlite:///{path}") as app:

        @app.task(queue="shop")
        def book(order: str) -> str:
            with application(path) as conn, conn:
                conn.execute("INSERT INTO orders VALUES (?)", (order,))
                current_job().complete_in_transaction(conn, f"booked {order}")
            return "does not count"

        job = await book.enqueue("o1")
        await Worker("shop", url_or_app=app).drain()
        assert await job.result() == "booked o1"
        assert orders(path) == 1
        assert await history(app.queue("shop")) == ["completed"]
        rows = await app.store.execute(rq.ReadCounters(queue="shop"))
        assert {row.outcome: row.total for row in rows} == {"enqueued": 1, "completed": 1}


async def test_what_is_rolled_back_is_not_completed_either(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    async with Windlass(f"sqlite:///{path}") as app:

        @app.task(queue="shop", max_attempts=1)
        def book(order: str) -> None:
            with application(path) as conn, conn:
                conn.execute("INSERT INTO orders VALUES (?)", (order,))
                current_job().complete_in_transaction(conn)
                raise RuntimeError("the card was refused")

        job = await book.enqueue("o1")
        await Worker("shop", url_or_app=app).drain()
        assert await job.get_state() is JobState.FAILED
        assert orders(path) == 0
        assert await history(app.queue("shop")) == ["failed"]


async def test_an_error_after_the_commit_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    async with Windlass(f"sqlite:///{path}") as app:

        @app.task(queue="shop")
        def book(order: str) -> None:
            with application(path) as conn, conn:
                conn.execute("INSERT INTO orders VALUES (?)", (order,))
                current_job().complete_in_transaction(conn)
            raise RuntimeError("too late")

        job = await book.enqueue("o1")
        await Worker("shop", url_or_app=app).drain()
        assert await job.get_state() is JobState.COMPLETED
        assert orders(path) == 1
        assert await history(app.queue("shop")) == ["completed"]


async def test_who_lost_the_lease_cannot_complete_in_a_transaction(tmp_path: Path) -> None:
    path, clock = tmp_path / "shop.db", ManualClock()
    async with Windlass(f"sqlite:///{path}", clock=clock) as app:
        queue = app.queue("shop")
        await queue.add("book", "o1")
        (first,) = await claim(queue)
        await clock.advance(60)
        await app.store.execute(rq.Recover())
        (second,) = await claim(queue)
        assert second.deliveries == 2
        with application(path) as conn:
            conn.execute("INSERT INTO orders VALUES ('o1')")
            with pytest.raises(LeaseLostError):
                Job(queue, first, held=True).complete_in_transaction(conn)
            conn.rollback()
            conn.execute("INSERT INTO orders VALUES ('o1')")
            Job(queue, second, held=True).complete_in_transaction(conn)
            conn.commit()
        assert (await queue.get_job_counts())[JobState.COMPLETED] == 1
        assert orders(path) == 1


async def claim(queue: Queue) -> list[JobRecord]:
    request = rq.Claim(worker="w", queues=[rq.ClaimQueue(queue.name, 1, 1)], limit=1, claim_id=new_id())
    return (await queue.store.execute(request)).jobs


async def test_only_the_handler_completes_and_only_where_the_store_is_a_database(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    async with Windlass(f"sqlite:///{path}") as app:
        job = await app.queue("shop").add("book")
        with application(path) as conn, pytest.raises(ConfigError, match="own handler"):
            job.complete_in_transaction(conn)
    async with Windlass("memory://") as app:
        job = await app.queue("shop").add("book")
        with application(path) as conn, pytest.raises(UnsupportedByBackendError):
            job.complete_in_transaction(conn)
