"""Rows that are no jobs and cannot be read are passed over; the doctor names them, its repair keeps them."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

import pytest

from windlass import Windlass, Worker
from windlass.backend import metric_requests as mq
from windlass.backend import requests as rq
from windlass.backend import schedule_requests as sq
from windlass.backend.urls import parse_url
from windlass.backends.sqlite import examine, repair
from windlass.core.clock import SYSTEM_CLOCK
from windlass.core.job import WorkerInfo
from windlass.core.rollups import MetricsRow
from windlass_conformance.damage import loose

if TYPE_CHECKING:
    from pathlib import Path

backend_name = "sqlite"
JUNK = b"\xc1 junk"
#: By table: the column that is overwritten in every row of it.
TABLES = {
    "event": "records",
    "history": "records",
    "worker": "info",
    "schedule": "record",
    "metrics": "record",
    "archiver": "cursors",
}


async def filled(app: Windlass) -> None:
    """Rows in every table, made by the ordinary verbs."""
    queue = app.queue("mail")
    await queue.upsert_job_scheduler("daily", {"every": 3_600}, {"name": "n"})
    for n in range(3):
        await queue.add("n", {"n": n})

    async def handler(job: object) -> None: ...

    async with Worker("mail", handler, url_or_app=app, poll=0.05) as worker:
        await worker.drain()
        await app.store.execute(rq.Archive(name="lake", cursors={"mail": 1}))
    row = MetricsRow(start_ms=SYSTEM_CLOCK.now_ms() // 60_000 * 60_000, task="n")
    [cursor] = await app.store.execute(mq.MetricsProgress(queue="mail"))
    await app.store.execute(mq.AddMetrics(queue="mail", after=cursor.at, upto=cursor.newest, rows=[row]))


async def look(app: Windlass) -> None:
    """Everything that reads these rows."""
    store = app.store
    await store.execute(rq.ReadEvents(queue="mail", limit=1_000))
    page = await store.execute(rq.ReadHistory(queue="mail", limit=1_000))
    assert page.last == page.newest
    await app.workers()
    await store.execute(sq.ListSchedules())
    await store.execute(sq.DueSchedules())
    await store.execute(mq.ReadMetrics(queue="mail", step="minute", since_ms=0, until_ms=2**42))
    await store.execute(rq.ListArchivers())
    await store.execute(rq.Prune())
    await app.queues()
    job = await app.queue("mail").add("n")
    await app.queue("mail").remove(job.id)


def warnings_of(url: str) -> list[str]:
    return [finding.text for finding in examine(parse_url(url), True) if finding.level == "warning"]


@pytest.mark.feature("J24")
@pytest.mark.parametrize("table", TABLES)
async def test_rows_that_cannot_be_read_are_passed_over_and_set_aside(tmp_path: Path, table: str) -> None:
    path = tmp_path / "jobs.db"
    url = f"sqlite:///{path}"
    async with Windlass(url) as app:
        await filled(app)
        if table == "worker":
            await app.store.execute(rq.Beat(worker=WorkerInfo(id="w1")))
    with loose(path, "default", table) as conn:
        changed = conn.execute(f"UPDATE windlass_default_{table} SET {TABLES[table]} = ?", (JUNK,)).rowcount
    assert changed
    async with Windlass(url) as app:
        await look(app)
    named = warnings_of(url)
    assert named and all(table in text for text in named)
    told = [finding.text for finding in repair(parse_url(url))]
    assert len(told) == len(named)
    kept = [json.loads(line) for line in (tmp_path / "jobs.db.damaged").read_text().splitlines()]
    assert {base64.b64decode(one["base64"]) for one in kept} == {JUNK}
    assert not warnings_of(url)
    async with Windlass(url) as app:
        await look(app)
