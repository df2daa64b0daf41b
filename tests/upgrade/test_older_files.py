"""Files that earlier releases wrote are opened and worked off by this one.

``schema-N.sql`` is the content of a file as the release with schema version N left it: jobs in every state,
one of them claimed by a worker that is dead, a paused queue, a schedule and a flow where that release had
them.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter
from pathlib import Path

import pytest

from windlass import JobState, StorageError, Windlass, Worker
from windlass.backend import requests as rq
from windlass.backends.sqlite import migrations
from windlass.testing import ManualClock

HERE = Path(__file__).parent
VERSIONS = sorted(int(path.stem.removeprefix("schema-")) for path in HERE.glob("schema-*.sql"))
backend_name = "sqlite"


def _file_of(version: int, folder: Path) -> Path:
    """A database as the release with that schema left it."""
    path = folder / "jobs.db"
    conn = sqlite3.connect(path)
    conn.executescript((HERE / f"schema-{version}.sql").read_text())
    conn.close()
    return path


def _app(path: Path) -> Windlass:
    """An app two minutes after the earlier release wrote the file: what expires with time is still there."""
    with contextlib.closing(sqlite3.connect(path)) as conn:
        (written_ms,) = conn.execute("SELECT clock_ms FROM windlass_default_meta").fetchone()
    app = Windlass(f"sqlite:///{path}", name="upgrade", clock=ManualClock(written_ms / 1000 + 120))

    @app.task(name="ok", queue="old")
    async def ok(n: int = 0) -> int:
        return n

    @app.task(name="later", queue="old")
    async def later() -> str:
        return "at last"

    return app


def test_the_oldest_schema_and_the_newest_are_rehearsed() -> None:
    assert VERSIONS[0] == 1
    assert VERSIONS[-1] >= 5


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_file_of_an_earlier_release_is_worked_off(version: int, tmp_path: Path) -> None:
    path = _file_of(version, tmp_path)
    async with _app(path) as app:
        queue = app.queue("old")
        counts = Counter({state: n for state, n in (await queue.get_job_counts()).items() if n})
        assert counts[JobState.COMPLETED] == 3
        assert counts[JobState.FAILED] == counts[JobState.CANCELLED] == counts[JobState.RETRYING] == 1
        assert counts[JobState.ACTIVE] == 1
        assert await queue.get_result("done-2") == 2
        failed = await queue.get_job("failed-1")
        assert failed is not None
        assert failed.errors[0].error_class == "ValueError"
        recovered = await app.store.execute(rq.Recover())
        assert [ref.id for ref in recovered.recovered] == ["active-1"], "its worker is long dead"
        await queue.promote_jobs()
        await Worker("old", url_or_app=app).drain()
        counts = Counter({state: n for state, n in (await queue.get_job_counts()).items() if n})
        assert set(counts) == {JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED}
        assert await queue.get_result("active-1") == 30
        assert await queue.get_result("waiting-3") == 13
        assert await queue.get_result("retrying-1") == "at last"
        await _books_add_up(app, counts)


async def _books_add_up(app: Windlass, counts: Counter[JobState]) -> None:
    """History and counters go on where the earlier release stopped."""
    page = await app.store.execute(rq.ReadHistory(queue="old"))
    rows = Counter(row.outcome.value for row in page.records)
    events = (await app.store.execute(rq.ReadEvents(queue="old"))).events
    told = Counter(event.type.value for event in events)
    assert told["completed"] == rows["completed"]
    assert told["enqueued"] > 0
    assert rows["completed"] == counts[JobState.COMPLETED]
    totals: Counter[str] = Counter()
    for row in await app.queue("old").get_metrics():
        totals[row.outcome] += row.total
    assert totals.pop("enqueued") == counts.total()
    assert totals == rows


@pytest.mark.parametrize("version", VERSIONS)
async def test_what_was_said_about_queues_outlives_the_upgrade(version: int, tmp_path: Path) -> None:
    async with _app(_file_of(version, tmp_path)) as app:
        assert await app.queue("held").is_paused()
        if version >= 2:
            (schedule,) = await app.queue("old").get_job_schedulers()
            assert schedule.every == 3_600
        if version >= 5:
            assert (await app.queue("old").get_group_limits("g")).concurrency == 1
        # ... and what is new works on the old file.
        job = await app.queue("old").add("ok", {"n": 1}, depends_on=["waiting-0"], group="new")
        assert job.state is JobState.BLOCKED


async def test_a_file_of_a_later_release_is_refused_with_advice_and_left_alone(tmp_path: Path) -> None:
    path = _file_of(VERSIONS[-1], tmp_path)
    conn = sqlite3.connect(path)
    newer = migrations.NEWEST + 1
    conn.execute("INSERT INTO windlass_default_migration VALUES (?, 0, '99.0')", (newer,))
    conn.commit()
    before = list(conn.iterdump())
    with pytest.raises(StorageError, match=r"newer release.*Upgrade windlass"):
        await _app(path).store.open()
    assert list(conn.iterdump()) == before
    conn.close()
