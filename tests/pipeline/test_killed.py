"""``kill -9`` of the driver and of Spark's Python workers: afterwards the lake is that of an undisturbed run.

In the suite the driver dies four times at named points on SQLite and once on each other store; workers die
five times. ``WINDLASS_TEST_KILLS=10`` runs the whole matrix, every store into a folder and into an object
store: the driver dies ten times, at six points and at four moments drawn by lot, and workers five times.
``-k amqp-s3`` runs one cell. Each adds a line to ``.reports/kills.jsonl`` that says what was found.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.pipeline import deadly, shop
from tests.pipeline.object_store import make_bucket
from tests.pipeline.processes import ROOT, Process, driver
from tests.pipeline.support import BACKENDS, Bench, busy_day
from tests.pipeline.test_exactly import check_engines
from tests.pipeline.test_run import contents, run, totals
from tests.pipeline.test_totals import LAYERS, fill, work_off
from windlass.pipeline.compact import compact
from windlass.pipeline.lake import Lake
from windlass.pipeline.sqlquery import connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Where the driver dies, one after the other; None: at a moment drawn by lot.
FEW = [
    "pipeline.bronze=kill",  # only bronze has the batch
    "lake.commit=kill",  # files of the first table are written, none is committed
    "lake.commit=kill@7",  # some tables have the batch
]
#: All records are in the lake, and the snapshot of jobs is not: no later driver commits a batch.
LAST = "pipeline.seen=kill"
#: Named points come first: a driver on a fast machine may process all records before a random moment.
MANY = [*FEW, "lake.committed=kill", "lake.committed=kill@9", None, None, None, LAST, None]
IS_LONG = os.environ.get("WINDLASS_TEST_KILLS") == "10"
SEED = 20261115
#: A batch of a young driver takes about as long.
MOMENTS_S = 4.0
#: Every store with every kind of place for a lake.
MATRIX = [(store, kind) for store in BACKENDS for kind in ("folder", "s3")]
DRIVER_CELLS = MATRIX if IS_LONG else [*zip(BACKENDS, ("folder", "folder", "s3", "s3"), strict=True)]
WORKER_CELLS = MATRIX if IS_LONG else [("sqlite", "folder"), ("file", "s3")]
#: One line for each cell that was run.
REPORT = ROOT / ".reports" / "kills.jsonl"


def deaths_on(backend_name: str) -> Sequence[str | None]:
    if IS_LONG:
        return MANY
    return [*FEW, LAST] if backend_name == "sqlite" else FEW[-1:]


def fill_store(bench: Bench, backend_name: str, rounds: int, folder: Path) -> None:
    """A bit of everything. On a broker real workers do it: a lease is their connection."""
    if backend_name != "amqp":
        busy_day(bench, rounds=rounds)
        return
    for turn in range(rounds):
        asyncio.run(fill(shop.build(bench.url), turn))
        work_off(bench.url, folder)


def check_lake(spark: SparkSession, bench: Bench, lake: str, folder: Path) -> None:
    """Totals are the store's counters, and rows those of a run that was left alone."""
    want = bench.counters()
    assert sum(want.values()) > 0
    for table in LAYERS:
        assert totals(lake, table) == want, table
    undisturbed = folder / "undisturbed"
    run(spark, bench, undisturbed)
    got = contents(lake)
    for table, rows in contents(undisturbed).items():
        assert got[table] == rows, table


class Drivers:
    """One driver at a time at work; the next one starts its JVM meanwhile."""

    def __init__(self, url: str, lake: str, folder: Path, deaths: Sequence[str | None]) -> None:
        self._url, self._lake, self._folder = url, lake, folder
        self._left = iter(deaths)
        self._all: list[Process] = []
        self._waiting = self._start()

    def next(self) -> Process:
        """Let the one that waits begin."""
        child, self._waiting = self._waiting, self._start()
        assert child is not None
        (child.log.parent / "go").touch()
        return child

    def _start(self) -> Process | None:
        for death in self._left:
            room = self._folder / f"room-{len(self._all)}"
            room.mkdir()
            child = driver(room / "driver.log", self._url, self._lake, str(room / "go"), probes=death or "")
            self._all.append(child)
            return child
        return None

    def stop(self) -> None:
        for child in self._all:
            child.reap()


@pytest.fixture
def lake(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty place for a lake."""
    if kind == "folder":
        yield str(tmp_path / "lake")
    else:
        with make_bucket(request.getfixturevalue("object_store")) as url:
            yield f"{url}/lake"


def record(cell: str, kills: str, lake: str, bench: Bench) -> None:
    """Note what the lake of a cell holds, all of it checked by now."""
    tables = ("bronze_attempts", "attempts", "jobs", "minute")
    with connect(lake) as connection:
        counts = [connection.execute(f"SELECT count(*) FROM {table}").fetchall()[0][0] for table in tables]
    outcomes: Counter[str] = Counter()
    for (_, _, outcome), count in bench.counters().items():
        outcomes[outcome] += count
    found = {"rows": dict(zip(tables, counts, strict=True)), "counters": dict(sorted(outcomes.items()))}
    REPORT.parent.mkdir(exist_ok=True)
    with REPORT.open("a", encoding="utf-8") as report:
        report.write(json.dumps({"date": str(date.today()), "cell": cell, "kills": kills, **found}) + "\n")


@pytest.mark.slow
@pytest.mark.timeout(1_200)
@pytest.mark.keeps_threads("Dummy-*", reason="of polars, which live as long as the process")
@pytest.mark.feature("Q2", "Q3", "Q11")
@pytest.mark.parametrize(("backend_name", "kind"), DRIVER_CELLS)
def test_a_driver_killed_again_and_again_leaves_what_an_undisturbed_one_does(
    backend_name: str, kind: str, spark: SparkSession, bench: Bench, lake: str, tmp_path: Path
) -> None:
    lot, deaths = random.Random(SEED), deaths_on(backend_name)
    fill_store(bench, backend_name, 4, tmp_path)
    drivers = Drivers(bench.url, lake, tmp_path, deaths)
    try:
        for n, death in enumerate(deaths):
            child = drivers.next()
            if death is None:
                child.until(lambda output: "open" in output)
                time.sleep(lot.uniform(0, MOMENTS_S))
                child.kill()
            assert child.wait(600) == -9, (n, child.output[-3000:])
            child.reap()
            # Whatever Spark left outside the lake, a checkpoint say, is not needed by the next life.
            shutil.rmtree(child.log.parent)
    finally:
        drivers.stop()
    pipeline = run(spark, bench, lake, max_records=40)
    check_lake(spark, bench, lake, tmp_path)
    check_engines(spark, pipeline.lake, bench)
    got = contents(lake)
    assert compact(pipeline.lake, slack=1) > 0
    assert contents(lake) == got
    assert pipeline.run_batch() is None  # the offsets are the lake's own
    record(f"{backend_name}-{kind}", f"driver {len(deaths)}", lake, bench)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.keeps_threads("Dummy-*", reason="of polars, which live as long as the process")
@pytest.mark.feature("Q2", "Q3", "Q11")
@pytest.mark.parametrize(("backend_name", "kind"), WORKER_CELLS)
def test_workers_that_die_at_named_points_leave_nothing_twice(
    backend_name: str, kind: str, spark: SparkSession, bench: Bench, lake: str, tmp_path: Path
) -> None:
    """Five deaths of Spark's Python workers, with files written and not yet known to the driver."""
    fill_store(bench, backend_name, 2, tmp_path)
    marks = tmp_path / "marks"
    marks.mkdir()
    command = [sys.executable, "-m", "windlass", "pipeline", "run", "--url", bench.url, "--lake", lake]
    command += ["--master", "local[1,9]", "--max-records", "60"]  # the deaths may all hit one task
    command += ["--conf", f"spark.python.daemon.module={deadly.__name__}"]
    env = {deadly.VARIABLE: f"{marks} task.read*2 task.written*3", "WINDLASS_SPARK_PROFILE": "test"}
    child = Process(command, tmp_path / "driver.log", env)
    try:
        assert child.wait(500) == 0, child.output[-4000:]
    finally:
        child.reap()
    assert len(list(marks.iterdir())) == 5
    check_lake(spark, bench, lake, tmp_path)
    check_engines(spark, Lake(lake).open(), bench)
    record(f"{backend_name}-{kind}", "worker 5", lake, bench)
