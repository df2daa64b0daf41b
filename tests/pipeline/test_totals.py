"""Real workers, some of them killed, on every store: the lake's totals are the store's lifetime counters."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.pipeline import shop
from tests.pipeline.processes import Process
from tests.pipeline.support import BACKENDS, Bench, store_url
from tests.pipeline.test_run import run, totals
from windlass.pipeline.sqlquery import connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from windlass import Windlass

LAYERS = ("bronze_attempts", "attempts", "minute", "hour", "day")


async def fill(app: Windlass, turn: int) -> None:
    """Jobs of every kind; the same ids in every turn."""
    mail, pdf = app.queue("mail"), app.queue("pdf")
    async with app:
        for queue, task, count in ((mail, "send", 40), (pdf, "render", 12), (pdf, "shy", 6)):
            ids = [f"{task}-{n}" for n in range(count)]
            if turn:
                for job_id in ids:
                    await queue.remove(job_id)
            jobs = [{"name": task, "data": [n], "job_id": ids[n]} for n in range(count)]
            assert {job.outcome for job in await queue.add_bulk(jobs)} == {"queued"}
        if not turn:
            await mail.add("deadly", max_stalls=shop.KILLS)
        for n in range(5):
            await mail.cancel(f"send-{n}")


def work_off(url: str, folder: Path) -> int:
    """Start workers until one of them finds nothing left; returns how many were killed."""
    deaths = 0
    while True:
        worker = Process([sys.executable, shop.__file__, url], folder / f"worker-{deaths}.log")
        try:
            code = worker.wait(60)
        finally:
            worker.reap()
        if code == 0:
            return deaths
        assert code == -9, worker.output[-3000:]
        deaths += 1


@pytest.mark.feature("Q2", "Q3", "Q11")
@pytest.mark.parametrize("backend_name", BACKENDS)
def test_totals_equal_the_counters_after_killed_workers(
    backend_name: str, spark: SparkSession, tmp_path: Path
) -> None:
    url, lake = store_url(backend_name, tmp_path), tmp_path / "lake"
    deaths = 0
    for turn in range(2):
        asyncio.run(fill(shop.build(url), turn))
        deaths += work_off(url, tmp_path)
    # On a broker the connection is the lease: a worker killed before its start was told counts no delivery.
    assert deaths == shop.KILLS or (backend_name == "amqp" and deaths > shop.KILLS)
    with Bench(url) as bench:
        run(spark, bench, lake)
        want = bench.counters()
    outcomes = {outcome for _, _, outcome in want}
    assert outcomes >= {"completed", "failed", "retrying", "cancelled", "snoozed", "stalled"}
    for table in LAYERS:
        assert totals(lake, table) == want, table
    with connect(str(lake)) as connection:
        ((cancelled,),) = connection.execute(
            "SELECT count(*) FROM attempts WHERE attempt = 0 AND outcome = 'cancelled'"
        ).fetchall()
        ((twice,),) = connection.execute(
            "SELECT count(*) FROM jobs WHERE queue = 'mail' AND job_id = 'send-9'"
        ).fetchall()
    assert cancelled == 2 * 5  # while they waited
    assert twice == 2  # one id, two jobs
