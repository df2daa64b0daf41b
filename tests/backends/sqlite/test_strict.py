"""Tables are STRICT: those of earlier releases become so while the store is in use, and nothing is lost."""

from __future__ import annotations

import asyncio
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.backends.sqlite.support import add, claim, client, ended, new, opened, settle
from windlass import Unique, Windlass, Worker
from windlass.backend import metric_requests as mq
from windlass.backend import requests as rq
from windlass.backend.urls import parse_url
from windlass.backends.sqlite import SqliteBackend, examine, migrations, repair, sweep
from windlass.backends.sqlite.connection import connect
from windlass.core.bad_records import BAD_RECORD
from windlass.core.clock import SYSTEM_CLOCK
from windlass.core.job import JobRef, WorkerInfo
from windlass.core.outcome import Outcome
from windlass.core.rollups import MetricsRow
from windlass.core.states import JobState
from windlass.errors import StorageError
from windlass.testing.faults import probing
from windlass_conformance.damage import loose

backend_name = "sqlite"
#: A file of the release before, as SQL.
OLD_FILE = Path(__file__).parents[2] / "upgrade" / "schema-5.sql"
#: What the release before asked first in each transaction.
OLD_META = """
SELECT max(last_place, coalesce(newest, 0)),
    CASE WHEN newest > last_place
        THEN (SELECT enqueued_ms FROM windlass_default_job WHERE seq = newest) ELSE clock_ms END,
    serial
FROM windlass_default_meta, (SELECT max(seq) AS newest FROM windlass_default_job)
"""
#: What tables of that release did not have yet.
NEW_COLUMNS = [
    ("unique_key", "not_taken"),
    ("job", "queue_time"),
    ("limits", "refit"),
    ("edge", "child_run"),
    *(("log", column) for column in ("at_ms", "level", "attempt", "run")),
]
#: By type of a column: a value of another one.
WRONG = {"INTEGER": "x'c1'", "TEXT": "x'c1'", "BLOB": "'text'"}

#: What the end of a job writes beside the job.
TOUCHED = {"job", "payload", "event", "history", "counter", "queue", "edge", "outbox", "unique_key", "grp"}


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None)) as conn:
        yield conn


def strict_tables(path: Path) -> dict[str, bool]:
    """Our tables, and whether each is STRICT."""
    with reading(path) as conn:
        found = conn.execute("SELECT name, strict FROM pragma_table_list WHERE type = 'table'").fetchall()
    return {name: bool(strict) for name, strict in found if name.startswith("windlass_")}


def rows_of(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Everything in the tables and columns that both releases have, by table."""
    names = sorted(set(sweep.TABLES) - {"migration"})
    found: dict[str, list[tuple[Any, ...]]] = {}
    with reading(path) as conn:
        for name in names:
            columns = conn.execute("SELECT name FROM pragma_table_info(?)", (f"windlass_default_{name}",))
            both = ", ".join(f'"{column}"' for (column,) in columns if (name, column) not in NEW_COLUMNS)
            found[name] = conn.execute(f"SELECT {both} FROM windlass_default_{name}").fetchall()
    return found


def make_old(path: Path) -> None:
    """Bring a file into the form that the release before gave it."""
    with reading(path) as conn:
        conn.execute("BEGIN")
        conn.executescript(
            """
            DROP VIEW windlass_default_meta;
            CREATE TABLE windlass_default_meta (one INTEGER PRIMARY KEY, last_place INTEGER NOT NULL,
                clock_ms INTEGER NOT NULL, serial INTEGER NOT NULL);
            INSERT INTO windlass_default_meta SELECT * FROM windlass_default_store;
            DELETE FROM windlass_default_migration WHERE version > 5;
            """
        )
        for name, column in NEW_COLUMNS:
            conn.execute(f"ALTER TABLE windlass_default_{name} DROP COLUMN {column}")
        later = (
            "SELECT type, name FROM sqlite_master WHERE sql IS NOT NULL AND NOT instr(?, name) ORDER BY type"
        )
        for kind, name in conn.execute(later, (OLD_FILE.read_text(),)).fetchall():
            conn.execute(f"DROP {kind} {name}")
        conn.execute("PRAGMA writable_schema = ON")
        for name, text in conn.execute(
            "SELECT name, sql FROM sqlite_master WHERE sql LIKE '%STRICT'"
        ).fetchall():
            parameters = (re.sub(r",? STRICT$", "", text), name)
            conn.execute("UPDATE sqlite_master SET sql = ? WHERE name = ?", parameters)
        conn.execute("PRAGMA writable_schema = RESET")
        assert conn.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert not any(strict_tables(path).values())


async def fill(path: Path) -> None:
    """Rows in every table, and jobs in every state."""
    async with Windlass(f"sqlite:///{path}") as app:
        queue = app.queue("mail")
        await queue.set_group_limits("g", concurrency=1)
        await queue.set_global_concurrency(50)
        await queue.upsert_job_scheduler("daily", {"every": 3_600}, {"name": "n"})
        for number in range(3):
            await queue.add("n", {"n": number}, job_id=f"done-{number}")

        async def handler(job: Any) -> int:
            await job.log("a line")
            await job.stream("chunk")
            return 1

        worker = Worker("mail", handler, url_or_app=app)
        await worker.drain()
        await queue.add("n", job_id="waiting")
        await queue.add("n", {"big": "x" * 5_000}, job_id="big")
        await queue.add("n", job_id="later", delay=3_600)
        child = await queue.add("n", job_id="child", delay=3_600)
        await queue.add("n", job_id="blocked", depends_on=[child])
        await queue.add("n", job_id="keyed", unique=Unique("key", ttl=3_600), delay=3_600)
        for number in range(2):
            await queue.add("n", job_id=f"grouped-{number}", group="g")
        cancelled = await queue.add("n", job_id="cancelled")
        await cancelled.cancel()
        await queue.add("n", job_id="kept-id", keep_id=3_600)
        await queue.remove("kept-id")
        await app.queue("held").pause()
        await app.queue("held").add("n", job_id="held")
    await _fill_below(path)


async def _fill_below(path: Path) -> None:
    async with opened(path) as store:
        await add(store, new("other", id="active"), new("other", id="retrying"), new("other", id="failed"))
        # The lease must outlive every test: the file is made once, and ``until_swept`` recovers leases.
        jobs = {job.id: job for job in await claim(store, "other", lease_ms=3_600_000)}
        await settle(
            store,
            ended(jobs["retrying"], Outcome.RETRY, delay_ms=3_600_000),
            ended(jobs["failed"], Outcome.FAIL),
        )
        for number in range(80):  # so many that the counts are added up
            await add(store, new("counted", id=f"c{number}"))
        await store.execute(rq.Archive(name="lake", cursors={"mail": 1}))
        await store.execute(rq.Beat(worker=WorkerInfo(id="w1")))
        await store.execute(rq.Elect(role="prune", holder="w1", ttl_ms=60_000))
        await store.execute(mq.AddMark(id="m", label="deployed"))
        row = MetricsRow(start_ms=SYSTEM_CLOCK.now_ms() // 60_000 * 60_000, task="n")
        [cursor] = await store.execute(mq.MetricsProgress(queue="mail"))
        await store.execute(mq.AddMetrics(queue="mail", after=cursor.at, upto=cursor.newest, rows=[row]))


async def until_swept(store: SqliteBackend) -> None:
    """Every group of calls is followed by one batch."""
    database = store._store
    assert database is not None
    for _ in range(1_000):
        if not database.session.sweep_due:
            return
        await store.execute(rq.Recover())
    raise AssertionError("the sweep does not end")


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file of this release, with rows in every table."""
    path = tmp_path_factory.mktemp("filled") / "jobs.db"
    asyncio.run(fill(path))
    return path.read_bytes()


@pytest.fixture
def old(tmp_path: Path, filled: bytes) -> Path:
    """A file of the release before, with rows in every table."""
    path = tmp_path / "jobs.db"
    path.write_bytes(filled)
    make_old(path)
    return path


# --- a file that is whole ---------------------------------------------------------------------------


async def test_every_table_of_a_new_store_is_strict(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with probing() as probe:
        async with opened(path):
            pass
        assert probe.count("sqlite.swept") == 0, "there is nothing to change"
    found = strict_tables(path)
    assert set(found) >= {f"windlass_default_{name}" for name in (*sweep.TABLES, "store", "aside", "sweep")}
    assert all(found.values())


def test_the_old_file_has_rows_in_every_table(old: Path) -> None:
    assert {name for name, rows in rows_of(old).items() if not rows} == {
        "outbox"
    }  # every end was told at once


async def test_a_file_of_the_release_before_becomes_strict_and_loses_nothing(old: Path) -> None:
    before = rows_of(old)
    async with opened(old) as store:
        await until_swept(store)
        listed = (await store.execute(rq.ListJobs(queue="mail", limit=100))).jobs
    assert all(strict_tables(old).values())
    after = rows_of(old)
    assert after == before
    assert {job.state for job in listed} >= {JobState.WAITING, JobState.SCHEDULED, JobState.BLOCKED}
    with reading(old) as conn:
        assert conn.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert conn.execute("SELECT count(*) FROM windlass_default_aside").fetchone() == (0,)


async def test_jobs_are_added_and_run_while_tables_are_looked_through(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "BATCH", 1)  # so that there is much to do
    async with opened(old) as store:
        for number in range(20):
            await add(store, new("fresh", id=f"fresh-{number}"))
        for job in await claim(store, "fresh", limit=20):
            await settle(store, ended(job))
        counts = await store.execute(rq.CountJobs(queue="fresh"))
        assert counts[JobState.COMPLETED] == 20
        await until_swept(store)
    assert all(strict_tables(old).values())


async def test_a_busy_store_is_looked_through_as_well(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "BATCH", 5)
    async with opened(old) as store:
        with probing() as probe:
            for number in range(10):
                await add(store, new("fresh", id=f"fresh-{number}"))
            assert probe.count("sqlite.swept") >= 9  # the last may still be under way


# --- processes --------------------------------------------------------------------------------------


async def test_a_process_that_waits_too_long_for_an_upgrade_is_told_what_to_do_and_comes_in_later(
    old: Path,
) -> None:
    """The first transaction of an upgrade has no bound: it makes an index of all jobs that may expire."""
    upgrading = sqlite3.connect(old, isolation_level=None)
    upgrading.execute("BEGIN IMMEDIATE")
    waiting = client(old, timeout=0.1)
    with pytest.raises(StorageError, match=r"another pro(cess|gram).*raise \?timeout="):
        await waiting.open()
    await waiting.close()
    upgrading.execute("ROLLBACK")
    upgrading.close()
    async with opened(old) as store:
        await until_swept(store)


async def test_a_process_of_the_release_before_is_told_to_restart(old: Path) -> None:
    with reading(old) as before:
        before.execute("BEGIN IMMEDIATE")
        assert before.execute(OLD_META).fetchone() is not None
        before.execute("COMMIT")
        async with opened(old) as store:
            rows = rows_of(old)
            for begin in ("BEGIN IMMEDIATE", "BEGIN"):  # its writer, and its reader
                before.execute(begin)
                with pytest.raises(sqlite3.OperationalError, match="restart this process with that release"):
                    before.execute(OLD_META).fetchone()
                before.execute("ROLLBACK")
            await until_swept(store)
            assert rows_of(old) == rows, "nothing was written"
            await add(store, new("fresh"))


def child(path: Path, killed_at: str = "") -> subprocess.Popen[bytes]:
    """A process that opens the file and works until all tables are STRICT, or to a point."""
    command = [sys.executable, "-m", "tests.backends.sqlite.children", "sweep", str(path), killed_at]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@pytest.mark.parametrize(
    "point", ["sqlite.migrated=kill", *(f"sqlite.swept=kill@{n}" for n in (1, 2, 4, 23))]
)
async def test_a_process_killed_at_any_step_leaves_the_rest_to_the_next(old: Path, point: str) -> None:
    before = rows_of(old)
    killed = child(old, point)
    killed.communicate(b"\n", timeout=30)
    assert killed.returncode == -signal.SIGKILL
    assert not all(strict_tables(old).values())
    async with opened(old) as store:
        await until_swept(store)
    assert all(strict_tables(old).values())
    assert rows_of(old) == before


def test_processes_that_open_an_old_file_at_once_share_the_work(old: Path) -> None:
    before = rows_of(old)
    children = [child(old) for _ in range(3)]
    for one in children:
        assert one.stdout is not None
        assert one.stdout.readline() == b"ready\n"
    said = [one.communicate(b"\n", timeout=30)[0] for one in children]
    assert said == [b"done\n"] * 3
    assert all(strict_tables(old).values())
    assert rows_of(old) == before
    with reading(old) as conn:
        versions = conn.execute("SELECT version FROM windlass_default_migration").fetchall()
    assert versions == [(number,) for number in sorted(migrations.MIGRATIONS)]


# --- a file that is damaged -------------------------------------------------------------------------


def damage_all(path: Path, name: str) -> int:
    """Make one row of a table unfit in each of its columns, as far as its rows go; returns how many."""
    full = f"windlass_default_{name}"
    with reading(path) as conn:
        columns = conn.execute("SELECT name, type, pk FROM pragma_table_info(?)", (full,)).fetchall()
        keys = [f'"{column}"' for column, _, pk in sorted(columns, key=lambda row: row[2]) if pk]
        odd = [
            (column, kind)
            for column, kind, pk in columns
            if not (pk and kind == "INTEGER" and len(keys) == 1)
        ]
        rows = conn.execute(f"SELECT {', '.join(keys)} FROM {full}").fetchall()
        where = " AND ".join(f"{key} IS ?" for key in keys)
        for (column, kind), row in zip(odd, rows, strict=False):
            conn.execute(f'UPDATE {full} SET "{column}" = {WRONG[kind]} WHERE {where}', row)
        return min(len(odd), len(rows))


@pytest.mark.feature("J24")
@pytest.mark.parametrize("name", sorted(set(sweep.TABLES) - {"migration"}))
async def test_rows_of_wrong_types_are_set_aside_and_the_rest_goes_on(old: Path, name: str) -> None:
    before = rows_of(old)
    spoiled = damage_all(old, name)
    async with opened(old) as store:
        await until_swept(store)
        await add(store, new("fresh", id="fresh"))
        (job,) = await claim(store, "fresh")
        await settle(store, ended(job))
        assert (await store.execute(rq.CountJobs(queue="fresh")))[JobState.COMPLETED] == 1
    assert all(strict_tables(old).values())
    with reading(old) as conn:
        assert conn.execute("PRAGMA integrity_check").fetchall() == [("ok",)], "also of types"
        (aside,) = conn.execute("SELECT count(*) FROM windlass_default_aside").fetchone()
        (bad,) = conn.execute(
            "SELECT count(*) FROM windlass_default_job WHERE state = 'failed' AND reason = ?", (BAD_RECORD,)
        ).fetchone()
    assert aside + bad >= spoiled, "nothing was dropped in silence"
    after = rows_of(old)
    for other in before:
        if other != name and other not in TOUCHED:
            assert after[other] == before[other], other


async def test_a_job_of_wrong_types_ends_as_bad_record_with_its_bytes(old: Path) -> None:
    with reading(old) as conn:
        conn.execute("UPDATE windlass_default_job SET misses = 'x', pad = 'y' WHERE id = 'later'")
        conn.execute("UPDATE windlass_default_job SET id = x'6c6f7374' WHERE id = 'waiting'")
        conn.execute("UPDATE windlass_default_job SET id = CAST('big' AS BLOB) WHERE id = 'grouped-0'")
        conn.execute("UPDATE windlass_default_job SET pad = 'y' WHERE id = 'keyed'")
        (failed,) = conn.execute(  # not through a store: an open one may have swept before it answers
            "SELECT count(*) FROM windlass_default_job WHERE queue = 'mail' AND state = 'failed'"
        ).fetchone()
    async with opened(old) as store:
        await until_swept(store)
        jobs = {job.id: job for job in (await store.execute(rq.ListJobs(queue="mail", limit=100))).jobs}
        (seq,) = [job.seq for job in jobs.values() if job.id.startswith("big~")]
        for job_id in ("later", "lost", f"big~{seq}"):
            job = jobs[job_id]
            assert (job.state, job.reason) == (JobState.FAILED, BAD_RECORD)
            assert msgspec.msgpack.decode(job.payload)["seq"] == job.seq
        assert msgspec.msgpack.decode(jobs["later"].payload)["misses"] == "x"
        assert jobs["big"].state is JobState.WAITING
        assert jobs["keyed"].state is JobState.SCHEDULED, "room that nothing reads is no reason to end it"
        assert jobs["grouped-1"].state is JobState.WAITING, "its group has room"
        now = await store.execute(rq.CountJobs(queue="mail"))
        assert now[JobState.FAILED] == failed + 3
        listed = [job.state for job in jobs.values()]
        assert {state: listed.count(state) for state in now} == dict(now)


async def test_a_job_whose_edge_cannot_be_read_does_not_wait_for_ever(old: Path) -> None:
    with reading(old) as conn:
        conn.execute("UPDATE windlass_default_edge SET status = x'00'")
    async with opened(old) as store:
        await until_swept(store)
        (job,) = await store.execute(rq.GetJobs(refs=[JobRef("mail", "blocked")]))
        assert job is not None and (job.state, job.reason) == (JobState.FAILED, BAD_RECORD)
        assert "edge" in job.errors[-1].message


async def test_a_queue_row_of_wrong_types_keeps_its_jobs(old: Path) -> None:
    with reading(old) as conn:
        conn.execute("UPDATE windlass_default_queue SET paused = 'x' WHERE name = 'held'")
    async with opened(old) as store:
        await until_swept(store)
        jobs = (await store.execute(rq.ListJobs(queue="held"))).jobs
        assert [job.id for job in jobs] == ["held"]


async def test_many_rows_of_wrong_types_take_several_short_steps(old: Path) -> None:
    many = 3 * sweep.MISFITS
    with reading(old) as conn:
        conn.executemany(
            "INSERT INTO windlass_default_mark VALUES (?, 'late', '')", [(f"m{n}",) for n in range(many)]
        )
    async with opened(old) as store:
        await until_swept(store)
    with reading(old) as conn:
        count = conn.execute("SELECT count(*) FROM windlass_default_aside WHERE name = 'mark'").fetchone()
    assert count == (many,)


async def test_rows_set_aside_are_bounded(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "ASIDE_KEPT", 5)
    with reading(old) as conn:
        conn.executemany(
            "INSERT INTO windlass_default_mark VALUES (?, 'late', '')", [(f"m{n}",) for n in range(9)]
        )
    async with opened(old) as store:
        await until_swept(store)
    with reading(old) as conn:
        found = conn.execute("SELECT count(*), max(num) FROM windlass_default_aside").fetchone()
    assert found == (5, 9)  # the number of the newest tells how many there were


async def test_a_sqlite_that_refuses_new_definitions_leaves_tables_as_they_are(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(action: int, first: str | None, *_: object) -> int:
        asked = action == sqlite3.SQLITE_PRAGMA and first == "writable_schema"
        return sqlite3.SQLITE_IGNORE if asked else sqlite3.SQLITE_OK

    def guarded(*args: Any, **options: Any) -> sqlite3.Connection:
        conn = connect(*args, **options)
        conn.set_authorizer(refuse)
        return conn

    monkeypatch.setattr("windlass.backends.sqlite.session.connect", guarded)
    with reading(old) as conn:
        conn.execute("UPDATE windlass_default_job SET misses = 'x' WHERE id = 'later'")
    async with opened(old) as store:
        await until_swept(store)
        (job,) = await store.execute(rq.GetJobs(refs=[JobRef("mail", "later")]))
        assert job is not None and job.reason == BAD_RECORD, "what does not fit is set aside all the same"
        await add(store, new("fresh"))
    assert not strict_tables(old)["windlass_default_job"]
    told = [finding.text for finding in examine(parse_url(f"sqlite:///{old}"), False)]
    assert any("this SQLite refuses" in text for text in told)


# --- tables that are strict -------------------------------------------------------------------------


async def test_a_program_that_writes_a_wrong_type_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with opened(path) as store:
        await add(store, new(id="a"))
        with reading(path) as conn, pytest.raises(sqlite3.IntegrityError, match="cannot store TEXT value"):
            conn.execute("UPDATE windlass_default_job SET priority = 'abc'")


@pytest.mark.feature("J24")
async def test_a_row_that_no_statement_can_write_is_found_and_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with opened(path) as store:
        await add(store, *[new(id=f"j{n}") for n in range(5)])
        with loose(path, "default", "job") as conn:
            conn.execute("UPDATE windlass_default_job SET misses = 'x' WHERE id = 'j2'")
        with pytest.raises(StorageError, match=r"cannot store TEXT value.*set aside: repeat"):
            await claim(store)
        await until_swept(store)
        assert [job.id for job in await claim(store)] == ["j0", "j1", "j3", "j4"]
        (bad,) = await store.execute(rq.GetJobs(refs=[JobRef("q", "j2")]))
        assert bad is not None and (bad.state, bad.reason) == (JobState.FAILED, BAD_RECORD)


@pytest.mark.feature("J24")
@pytest.mark.parametrize("patrol", [1, 2, 5_000])
async def test_a_job_in_no_state_that_there_is_ends_at_a_scan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patrol: int
) -> None:
    monkeypatch.setattr("windlass.backends.sqlite.loading_more.PATROL", patrol)
    path = tmp_path / "jobs.db"
    async with opened(path) as store:
        await add(store, *[new(id=f"j{n}") for n in range(5)])
        with reading(path) as conn:
            conn.execute("UPDATE windlass_default_job SET state = 'lost' WHERE id = 'j3'")
        failed = [ref.id for _ in range(6) for ref in (await store.execute(rq.Recover())).failed]
        assert failed == ["j3"]
        (bad,) = await store.execute(rq.GetJobs(refs=[JobRef("q", "j3")]))
        assert bad is not None and (bad.state, bad.reason) == (JobState.FAILED, BAD_RECORD)
        assert msgspec.msgpack.decode(bad.payload)["state"] == "lost"
        counts = await store.execute(rq.CountJobs(queue="q"))
        assert (counts[JobState.WAITING], counts[JobState.FAILED]) == (4, 1)


# --- the doctor -------------------------------------------------------------------------------------


async def test_the_doctor_tells_how_far_the_tables_are_and_what_was_set_aside(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = parse_url(f"sqlite:///{old}")

    def told() -> str:
        return " ".join(f"{finding.text} {finding.advice}" for finding in examine(url, False))

    assert "the tables have version 5" in told()
    with reading(old) as conn:
        conn.execute("UPDATE windlass_default_mark SET at_ms = 'x'")
        migrations.migrate(conn, "default", 0)
    assert "tables are being looked through before they become STRICT (now queue: 0%)" in told()
    with reading(old) as conn:
        conn.execute("DELETE FROM windlass_default_sweep WHERE name <> 'job'")
        half = "SELECT max(seq) / 2 FROM windlass_default_job"
        upto = msgspec.msgpack.encode(list(conn.execute(half).fetchone()))
        conn.execute("UPDATE windlass_default_sweep SET upto = ?", (upto,))
    assert re.search(r"now job: (49|50|51)%", told())
    with reading(old) as conn:
        conn.execute("DELETE FROM windlass_default_sweep")
        sweep.begin(conn, "default")
    async with opened(old) as store:
        await until_swept(store)
    assert "all tables are STRICT" in told()
    assert "set aside, by table: mark 1" in told()
    moved = [finding.text for finding in repair(url)]
    assert len(moved) == 1 and "table mark" in moved[0]
    assert '"table": "mark"' in await asyncio.to_thread(Path(f"{old}.damaged").read_text)
    assert "set aside" not in told()


async def test_a_repair_ends_jobs_that_are_in_no_state(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    url = parse_url(f"sqlite:///{path}")
    async with opened(path) as store:
        await add(store, new(id="a"))
    with reading(path) as conn:
        conn.execute("UPDATE windlass_default_job SET state = 'lost'")
    assert any("job a has an unknown state" in finding.text for finding in examine(url, True))
    assert ["job a" in finding.text for finding in repair(url)] == [True]
    async with opened(path) as store:
        counts = await store.execute(rq.CountJobs(queue="q"))
        assert (counts[JobState.WAITING], counts[JobState.FAILED]) == (0, 1)
