"""``kill -9`` of the driver, again and again: afterwards the lake is that of an undisturbed run.

Three times at named points, in a folder; ``WINDLASS_TEST_KILLS=10`` adds two more points and five moments drawn
by lot, and does it on an object store too.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.object_store import make_bucket
from tests.pipeline.processes import Process, driver
from tests.pipeline.support import Bench, busy_day
from tests.pipeline.test_exactly import check_engines
from tests.pipeline.test_run import contents, run, totals
from windlass.pipeline.compact import compact

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

backend_name = "sqlite"
#: Where the driver dies, one after the other; None: at a moment drawn by lot.
FEW = [
    "pipeline.bronze=kill",  # only bronze has the batch
    "lake.commit=kill",  # files of the first table are written, none is committed
    "lake.commit=kill@7",  # some tables have the batch
]
MANY = [None, *FEW, None, "lake.committed=kill", None, "lake.committed=kill@9", None, None]
IS_LONG = os.environ.get("WINDLASS_TEST_KILLS") == "10"
DEATHS = MANY if IS_LONG else FEW
SEED = 20261115
#: A batch of a young driver takes about as long.
MOMENTS_S = 4.0


class Drivers:
    """One driver at a time at work; the next one starts its JVM meanwhile."""

    def __init__(self, url: str, lake: str, folder: Path) -> None:
        self._url, self._lake, self._folder = url, lake, folder
        self._left = iter(DEATHS)
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


@pytest.fixture(params=["folder", "s3"] if IS_LONG else ["folder"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty place for a lake."""
    if request.param == "folder":
        yield str(tmp_path / "lake")
    else:
        with make_bucket(request.getfixturevalue("object_store")) as url:
            yield f"{url}/lake"


@pytest.mark.slow
@pytest.mark.timeout(1_200)
@pytest.mark.keeps_threads("Dummy-*", reason="of polars, which live as long as the process")
@pytest.mark.feature("Q2", "Q3", "Q11")
def test_a_driver_killed_again_and_again_leaves_what_an_undisturbed_one_does(
    spark: SparkSession, bench: Bench, lake: str, tmp_path: Path
) -> None:
    lot = random.Random(SEED)
    busy_day(bench, rounds=4)
    drivers = Drivers(bench.url, lake, tmp_path)
    try:
        for n, death in enumerate(DEATHS):
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
    assert totals(lake, "attempts") == bench.counters()
    check_engines(spark, pipeline.lake, bench)
    undisturbed = tmp_path / "undisturbed"
    run(spark, bench, undisturbed)
    want, got = contents(undisturbed), contents(lake)
    for table, rows in want.items():
        assert got[table] == rows, table
    assert compact(pipeline.lake, slack=1) > 0
    assert contents(lake) == got
    assert pipeline.run_batch() is None  # the offsets are the lake's own
