"""Opening, migrating and closing; and what is said when the file or the disk is not as it should be."""

from __future__ import annotations

import asyncio
import gc
import os
import sqlite3
import threading
from pathlib import Path

import pytest

from tests.backends.sqlite.support import add, client, new, opened
from windlass.backend import open_backend
from windlass.backend import requests as rq
from windlass.backends.sqlite import migrations
from windlass.backends.sqlite.backend import Database
from windlass.backends.sqlite.session import SqliteSession
from windlass.backends.sqlite.statements import load, read
from windlass.core.job import WorkerInfo
from windlass.core.states import JobState
from windlass.errors import ConfigError, StorageError


def tables(path: Path) -> set[str]:
    with sqlite3.connect(path) as conn:
        names = {name for (name,) in conn.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    conn.close()
    return names


# --- URLs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://",
        "sqlite:///",
        "sqlite:///dir/",
        "sqlite://jobs.db",
        "sqlite:///:memory:",
        "sqlite:///a.db?synchronous=off",
        "sqlite:///a.db?timeout=never",
        "sqlite:///a.db?timeout=0",
        "sqlite:///a.db?namespace=-x",
        "sqlite:///a.db?sync=full",
    ],
)
def test_a_url_that_cannot_work_is_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        open_backend(url)


async def test_relative_and_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    relative = open_backend("sqlite:///sub.db")
    absolute = open_backend(f"sqlite:///{tmp_path}/sub.db")
    await relative.open()
    await absolute.open()
    await relative.execute(rq.Add(jobs=[new()]))
    assert (await absolute.execute(rq.CountJobs(queue="q")))[JobState.WAITING] == 1
    await relative.close()
    await absolute.close()
    assert "sub.db" in os.listdir(tmp_path)


async def test_a_percent_sign_and_blanks_in_the_path(tmp_path: Path) -> None:
    store = open_backend(f"sqlite:///{tmp_path}/my%20jobs.db")
    await store.open()
    await store.close()
    assert "my jobs.db" in os.listdir(tmp_path)


# --- migrations -------------------------------------------------------------------------------------


@pytest.mark.feature("L11")
async def test_a_new_file_gets_every_table_and_the_version(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with opened(path):
        pass
    names = {"store", "queue", "job", "payload", "event", "history", "counter", "kept_id", "log", "worker"}
    assert {f"windlass_default_{name}" for name in (*names, "leader", "archiver", "migration")} <= tables(
        path
    )
    with sqlite3.connect(path) as conn:
        versions = conn.execute("SELECT version FROM windlass_default_migration").fetchall()
        (mode,) = conn.execute("PRAGMA journal_mode").fetchone()
        (vacuum,) = conn.execute("PRAGMA auto_vacuum").fetchone()
    conn.close()
    assert versions == [(number,) for number in sorted(migrations.MIGRATIONS)]
    assert (mode, vacuum) == ("wal", 2)


async def test_opening_again_keeps_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with opened(path) as store:
        await add(store, new(id="a"))
    async with opened(path) as store:
        assert [job.id for job in (await store.execute(rq.ListJobs(queue="q"))).jobs] == ["a"]
        await add(store, new(id="b"))
        jobs = (await store.execute(rq.ListJobs(queue="q"))).jobs
        assert [(job.id, job.seq) for job in jobs] == [("b", 2), ("a", 1)]


async def test_an_older_file_is_upgraded_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "jobs.db"
    async with opened(path) as store:
        await add(store, new(id="a"))
    real = read
    coming = migrations.NEWEST + 1
    monkeypatch.setitem(migrations.MIGRATIONS, coming, "coming.sql")
    monkeypatch.setattr(migrations, "NEWEST", coming)
    monkeypatch.setattr(
        migrations,
        "read",
        lambda name: (
            "CREATE TABLE [more] (a);\nINSERT INTO [more] VALUES (1);" if name == "coming.sql" else real(name)
        ),
    )
    async with opened(path) as store:
        assert (await store.execute(rq.CountJobs(queue="q")))[JobState.WAITING] == 1
    assert "windlass_default_more" in tables(path)


async def test_a_failing_upgrade_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "jobs.db"
    async with opened(path):
        pass
    before = tables(path)
    with monkeypatch.context() as patch:
        coming = migrations.NEWEST + 1
        patch.setitem(migrations.MIGRATIONS, coming, "coming.sql")
        patch.setattr(migrations, "NEWEST", coming)
        patch.setattr(migrations, "read", lambda name: "CREATE TABLE [more] (a);\nCREATE TABLE [job] (a);")
        with pytest.raises(StorageError):
            await client(path).open()
    assert tables(path) == before
    async with opened(path) as store:
        await add(store, new())


async def test_a_newer_file_is_refused_with_advice(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with opened(path):
        pass
    with sqlite3.connect(path) as conn:
        conn.execute("INSERT INTO windlass_default_migration VALUES (99, 0, '9.9')")
    conn.close()
    with pytest.raises(StorageError, match=r"newer release.*Upgrade windlass"):
        await client(path).open()
    async with opened(path, namespace="mine") as store:  # another namespace of the same file is no concern
        await add(store, new())


# --- files and disks that fail ----------------------------------------------------------------------


async def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    path.write_text("these are not the bytes you are looking for\n" * 100)
    with pytest.raises(StorageError, match="not an SQLite database"):
        await client(path).open()


async def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"its folder does not exist. Make it first: mkdir -p"):
        await client(tmp_path / "no" / "jobs.db").open()


async def test_a_file_that_may_not_be_written(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs.db") as store:
        await add(store, new(id="a"))
        conn = store._open_store().session.conn
        conn.execute("PRAGMA query_only = ON")
        with pytest.raises(StorageError, match="readonly database; give this user write access"):
            await add(store, new(id="b"))
        conn.execute("PRAGMA query_only = OFF")
        await add(store, new(id="c"))
        jobs = (await store.execute(rq.ListJobs(queue="q"))).jobs
        assert [job.id for job in jobs] == ["c", "a"]


async def test_a_full_disk_is_told_and_gets_over(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs.db") as store:
        await add(store, new(id="a"))
        conn = store._open_store().session.conn
        (pages,) = conn.execute("PRAGMA page_count").fetchone()
        conn.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StorageError, match="disk is full: make room"):
            await add(store, new(id="b", payload=b"x" * 100_000))
        conn.execute("PRAGMA max_page_count = 1000000")
        await add(store, new(id="c", payload=b"x" * 100_000))
        jobs = (await store.execute(rq.ListJobs(queue="q"))).jobs
        assert [(job.id, len(job.payload)) for job in jobs] == [("c", 100_000), ("a", 2)]


async def test_an_open_that_was_given_up_and_fails_later_says_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    held = threading.Event()

    def hangs(session: SqliteSession) -> None:
        held.wait(30)
        raise StorageError("database is locked")

    monkeypatch.setattr(SqliteSession, "open", hangs)
    monkeypatch.setattr(Database, "open_s", 0.05)
    store = client(tmp_path / "jobs.db", timeout=0.05)
    with pytest.raises(StorageError, match="could not be opened within"):
        await store.open()
    held.set()
    await store.close()
    for _ in range(3):
        await asyncio.sleep(0)  # what the thread said arrives
    gc.collect()
    assert "never retrieved" not in caplog.text


async def test_another_program_that_holds_the_database(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with opened(path, timeout=0.05) as store:
        foreign = sqlite3.connect(path, isolation_level=None)
        foreign.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageError, match="another program holds the write lock"):
            await add(store, new(id="a"))
        foreign.execute("ROLLBACK")
        foreign.close()
    async with opened(path, timeout=5) as store:
        await add(store, new(id="b"))
        assert [job.id for job in (await store.execute(rq.ListJobs(queue="q"))).jobs] == ["b"]


# --- life of a client -------------------------------------------------------------------------------


@pytest.mark.feature("L1")
async def test_clients_share_threads_and_the_last_one_ends_them(tmp_path: Path) -> None:
    def names() -> list[str]:
        return sorted(t.name for t in threading.enumerate() if t.name.startswith("windlass-sqlite"))

    first = client(tmp_path / "jobs.db")
    await first.open()
    await first.open()
    second = first.clone()
    await second.open()
    assert names() == ["windlass-sqlite-writer"]
    await first.execute(rq.ListQueues())
    assert names() == ["windlass-sqlite-reader", "windlass-sqlite-writer"]
    await first.close()
    await first.close()
    await add(second, new())
    await second.close()
    assert names() == []
    await first.open()
    assert (await first.execute(rq.CountJobs(queue="q")))[JobState.WAITING] == 1
    await first.close()


async def test_pending_calls_finish_before_the_end(tmp_path: Path) -> None:
    store = client(tmp_path / "jobs.db")
    await store.open()
    calls = [asyncio.create_task(add(store, new())) for _ in range(30)]
    await asyncio.sleep(0)
    await store.close()
    assert len(await asyncio.gather(*calls)) == 30


async def test_a_client_that_is_not_open_says_so(tmp_path: Path) -> None:
    store = client(tmp_path / "jobs.db")
    with pytest.raises(StorageError, match="not open"):
        await add(store, new())
    with pytest.raises(StorageError, match="not open"):
        store.listen(["ready:q"])
    await store.close()


async def test_a_call_that_has_begun_raises_and_says_that_its_outcome_is_unknown(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs.db", timeout=0.04) as store:
        writer = store._open_store().session
        gate = threading.Event()
        real = writer._run_calls

        def slow(*args: object) -> object:
            gate.wait(5)
            return real(*args)  # type: ignore[arg-type]

        writer._run_calls = slow  # type: ignore[method-assign, assignment]
        with pytest.raises(StorageError, match="outcome unknown, repeat with the same id"):
            await add(store, new(id="a"))
        with pytest.raises(StorageError, match="did not begin a call"):
            await add(store, new(id="late"))
        gate.set()
        del writer._run_calls
        await add(store, new(id="b"))
        assert [job.id for job in (await store.execute(rq.ListJobs(queue="q"))).jobs] == ["b", "a"]


# --- the clock --------------------------------------------------------------------------------------


async def test_the_clock_never_goes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "jobs.db"
    later = 2_000_000_000_000
    with monkeypatch.context() as patch:
        patch.setattr("windlass.core.clock.SystemClock.now_ms", lambda self: later)
        async with opened(path) as store:
            (first,) = await add(store, new())
    monkeypatch.setattr("windlass.core.clock.SystemClock.now_ms", lambda self: later - 60_000)
    async with opened(path) as store:
        (second,) = await add(store, new())
        assert (first.enqueued_ms, second.enqueued_ms) == (later, later)
        workers = rq.Beat(worker=WorkerInfo(id="w"))
        await store.execute(workers)
        (worker,) = await store.execute(rq.ListWorkers())
        assert worker.beat_ms == later
        (driven,) = await add(store, new(), now_ms=5_000)  # a test's own time is taken as it is
        assert driven.enqueued_ms == 5_000
        (third,) = await add(store, new())
        assert third.enqueued_ms == later


async def test_a_call_that_finds_nothing_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with opened(path) as store:
        await add(store, new())
        size = os.stat(f"{path}-wal").st_size
        for _ in range(20):
            request = rq.Claim(worker="w", queues=[rq.ClaimQueue("x", 1, 1)], limit=1, claim_id="c")
            assert (await store.execute(request)).jobs == []
            await store.execute(rq.Recover())
            await store.execute(rq.Promote())
        assert os.stat(f"{path}-wal").st_size == size


# --- the statements ---------------------------------------------------------------------------------


async def test_every_statement_is_valid_and_finds_jobs_by_an_index(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with opened(path):
        pass
    conn = sqlite3.connect(path)
    for name, text in load("default").items():
        if name == "payload_text":  # an expression, for conditions of others
            text = f'SELECT {text} FROM "windlass_default_job" WHERE seq = ?'
        marks = {f"?{n}" for n in range(1, 30) if f"?{n}" in text} or ["?"] * text.count("?")
        plan = conn.execute(f"EXPLAIN QUERY PLAN {text}", [0] * len(marks)).fetchall()
        for *_, step in plan:
            assert step != "SCAN windlass_default_job", (name, text)
            assert "AUTOMATIC" not in step, (name, text)
    conn.close()
