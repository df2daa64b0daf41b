"""Adding jobs inside the application's own transaction on the same file."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.sqlite.support import add, claim, new, opened
from windlass.backend import requests as rq
from windlass.backend.local import notify
from windlass.backends.sqlite import add_in_transaction
from windlass.core.job import JobRef
from windlass.core.outcome import AddOutcome
from windlass.core.states import JobState
from windlass.errors import ConfigError, StorageError

pytestmark = pytest.mark.feature("A34")


@contextlib.contextmanager
def application(path: Path, **options: object) -> Iterator[sqlite3.Connection]:
    """The application's own connection, with a table of its own."""
    conn = sqlite3.connect(path, **options)  # type: ignore[call-overload]
    conn.execute("CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY)")
    conn.commit()
    try:
        yield conn
    finally:
        conn.close()


async def test_the_job_is_there_when_the_application_commits(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    async with opened(path) as store:
        with application(path) as conn:
            conn.execute("INSERT INTO orders VALUES ('o1')")
            (added,) = store.add_in_transaction(conn, [new(id="a")])
            assert added.outcome is AddOutcome.QUEUED
            assert added.state is JobState.WAITING
            assert (await store.execute(rq.CountJobs(queue="q")))[JobState.WAITING] == 0
            conn.commit()
            assert conn.execute("SELECT count(*) FROM orders").fetchone() == (1,)
        (job,) = await claim(store)
        assert job.id == "a"
        assert job.enqueued_ms == added.enqueued_ms


async def test_nothing_was_ever_there_when_it_rolls_back(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    async with opened(path) as store:
        with application(path) as conn:
            conn.execute("INSERT INTO orders VALUES ('o1')")
            store.add_in_transaction(conn, [new("fresh", id="a")])
            conn.rollback()
            assert conn.execute("SELECT count(*) FROM orders").fetchone() == (0,)
        assert await store.execute(rq.ListQueues()) == []
        assert await store.execute(rq.ReadCounters()) == []
        await add(store, new("fresh", id="b"))
        assert [job.seq for job in await claim(store, "fresh")] == [1]


async def test_jobs_of_both_kinds_stand_in_one_line_with_one_log(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    async with opened(path) as store:
        await add(store, new(id="a"))
        with application(path) as conn, conn:
            store.add_in_transaction(conn, [new(id="b"), new(id="c", delay_ms=60_000)])
            add_in_transaction(conn, [new(id="d", payload=b"x" * 50_000)])
        await add(store, new(id="e"))
        jobs = (await store.execute(rq.ListJobs(queue="q", newest_first=False))).jobs
        assert [(job.id, job.place, len(job.payload)) for job in jobs] == [
            ("a", 1, 2),
            ("b", 2, 2),
            ("c", 3, 2),
            ("d", 4, 50_000),
            ("e", 5, 2),
        ]
        events = (await store.execute(rq.ReadEvents(queue="q"))).events
        assert [(event.id, event.job_id) for event in events] == [*zip(range(1, 6), "abcde", strict=True)]
        counts = await store.execute(rq.CountJobs(queue="q"))
        assert (counts[JobState.WAITING], counts[JobState.SCHEDULED]) == (4, 1)
        (counter,) = await store.execute(rq.ReadCounters())
        assert counter.total == 5


async def test_an_id_that_is_taken_answers_as_always(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    async with opened(path) as store:
        await add(store, new(id="a", request_id="r1"))
        with application(path) as conn, conn:
            again, duplicate = store.add_in_transaction(
                conn, [new(id="a", request_id="r1"), new(id="a", request_id="r2")]
            )
        assert again.outcome is AddOutcome.QUEUED
        assert duplicate.outcome is AddOutcome.DUPLICATE
        assert duplicate.record is not None
        assert (await store.execute(rq.CountJobs(queue="q")))[JobState.WAITING] == 1


async def test_a_bad_job_leaves_the_rest_of_the_transaction_alone(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    async with opened(path) as store:
        with application(path) as conn:
            conn.execute("INSERT INTO orders VALUES ('o1')")
            with pytest.raises(ConfigError):
                store.add_in_transaction(conn, [new(id="a"), new(id="b", priority=2**70)])
            store.add_in_transaction(conn, [new(id="c")])
            conn.commit()
            assert conn.execute("SELECT count(*) FROM orders").fetchone() == (1,)
        found = await store.execute(rq.GetJobs(refs=[JobRef("q", job_id) for job_id in "abc"]))
        assert [job is not None for job in found] == [False, False, True]


async def test_the_connection_may_have_factories_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    async with opened(path) as store:
        with application(path) as conn:
            conn.row_factory = sqlite3.Row
            conn.text_factory = bytes
            with conn:
                store.add_in_transaction(conn, [new(id="a")])
                store.add_in_transaction(conn, [new(id="a", request_id="other")])
            assert conn.text_factory is bytes
            assert conn.execute("SELECT 'x' AS x").fetchone()["x"] == b"x"
        (job,) = await claim(store)
        assert job.id == "a"


async def test_a_transaction_is_begun_as_the_module_would(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    async with opened(path) as store:
        with application(path) as conn:
            store.add_in_transaction(conn, [new(id="a")])
            assert conn.in_transaction
            conn.commit()
        with application(path, isolation_level=None) as conn:
            with pytest.raises(ConfigError, match="BEGIN IMMEDIATE first"):
                store.add_in_transaction(conn, [new(id="b")])
            conn.execute("BEGIN IMMEDIATE")
            store.add_in_transaction(conn, [new(id="b")])
            conn.execute("COMMIT")
        assert [job.id for job in await claim(store)] == ["a", "b"]


class Autocommit(sqlite3.Connection):
    """As from ``sqlite3.connect(autocommit=True)``, since Python 3.12: ``commit`` does nothing."""

    autocommit = True

    def commit(self) -> None:
        pass


async def test_no_transaction_is_begun_that_commit_would_not_end(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    async with opened(path) as store:
        conn = sqlite3.connect(path, factory=Autocommit)
        with contextlib.closing(conn):
            with pytest.raises(ConfigError, match="BEGIN IMMEDIATE first"):
                store.add_in_transaction(conn, [new(id="a")])
            assert not conn.in_transaction
            conn.execute("BEGIN IMMEDIATE")
            store.add_in_transaction(conn, [new(id="a")])
            conn.execute("COMMIT")
        assert [job.id for job in await claim(store)] == ["a"]


async def test_another_file_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path / "app.db") as store:
        with application(tmp_path / "other.db") as conn:
            with pytest.raises(ConfigError, match=r"app\.db"):
                store.add_in_transaction(conn, [new()])
            with pytest.raises(StorageError, match="no tables of namespace"):
                add_in_transaction(conn, [new()])
            with pytest.raises(ConfigError, match=r"sqlite3\.Connection"):
                store.add_in_transaction("app.db", [new()])  # type: ignore[arg-type]


async def test_tables_of_a_newer_release_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    async with opened(path) as store:
        with application(path) as conn, conn:
            conn.execute("INSERT INTO windlass_default_migration VALUES (99, 0, '9.9')")
            with pytest.raises(StorageError, match="newer release"):
                store.add_in_transaction(conn, [new()])


async def test_a_transaction_that_read_before_others_wrote_is_refused_with_advice(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    async with opened(path) as store:
        with application(path, isolation_level=None, timeout=0.05) as conn:
            conn.execute("BEGIN")
            conn.execute("SELECT * FROM orders").fetchall()
            await add(store, new(id="meanwhile"))
            with pytest.raises(StorageError, match="another program holds the database"):
                store.add_in_transaction(conn, [new(id="a")])
            conn.execute("ROLLBACK")


async def test_workers_notice_within_a_moment_or_at_once_when_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "app.db"
    async with opened(path) as store:
        listener = store.listen(["ready:q"])
        with application(path) as conn:
            with conn:
                store.add_in_transaction(conn, [new(id="a")])
            assert await listener.wait(5_000) == {"ready:q"}  # by the slow check
            with conn:
                store.add_in_transaction(conn, [new(id="b")])
            store.notify()
            assert await listener.wait(0) == {"ready:q"}
        listener.close()


async def test_the_clock_and_the_namespace_are_the_stores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "app.db"
    later = 2_000_000_000_000
    with monkeypatch.context() as patch:
        patch.setattr("windlass.core.clock.SystemClock.now_ms", lambda self: later)
        async with opened(path, namespace="mine") as store:
            await add(store, new(id="a"))
            with application(path) as conn, conn:
                (added,) = store.add_in_transaction(conn, [new(id="b")])
    assert added.enqueued_ms >= later
    async with opened(path, namespace="mine") as store, opened(path) as other:
        assert [job.id for job in await claim(store)] == ["a", "b"]
        assert await claim(other) == []


def test_the_slow_check_is_short() -> None:
    assert notify.CHECK_S <= 0.25
