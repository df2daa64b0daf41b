"""One Spark session for all tests of the pipeline, tuned to start quickly.

Tests that use it are marked as needing a service (Java), so ``scripts/test --fast`` leaves them out.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from windlass.pipeline.session import CACHE_VARIABLE, SessionOptions, session, train_class_archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.pipeline.support import Bench

#: Fixtures that start a JVM.
_HEAVY = {"spark", "spark_cache"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs Java, and give it time: a JVM on a busy machine is slow to start."""
    for item in items:
        if _HEAVY & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.service("java"))
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def spark_cache() -> Path:
    """Where class-data archives are: made once per machine, they halve every start of a JVM."""
    folder = Path(
        os.environ.get(CACHE_VARIABLE) or Path(tempfile.gettempdir()) / f"windlass-spark-{os.getuid()}"
    )
    os.environ[CACHE_VARIABLE] = str(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:  # one process makes them, the others wait for it
        fcntl.flock(lock, fcntl.LOCK_EX)
        train_class_archive()
    return folder


@pytest.fixture(scope="session")
def spark(spark_cache: Path) -> Iterator[SparkSession]:
    """The session of the whole run."""
    # Tasks may fail four times, as they may on a cluster.
    options = SessionOptions(master="local[1,4]", profile="test", conf={"spark.log.level": "OFF"})
    with session(options) as spark:
        yield spark


@pytest.fixture(scope="session")
def object_store() -> Iterator[str]:
    """An S3 server on loopback, in a process of its own; the environment says how to reach it."""
    from tests.pipeline.object_store import serve

    with serve() as endpoint:
        yield endpoint


@pytest.fixture
def bucket(object_store: str) -> Iterator[str]:
    """The URL of an empty bucket, with the environment that everything needs which reads it."""
    from tests.pipeline.object_store import make_bucket

    with make_bucket(object_store) as url:
        yield url


@pytest.fixture
def backend_name() -> str:
    """The store of a test that is not run on several."""
    return "sqlite"


@pytest.fixture
def bench(backend_name: str, tmp_path: Path) -> Iterator[Bench]:
    """A store whose clock the test drives."""
    from tests.pipeline.support import Bench, store_url

    with Bench(store_url(backend_name, tmp_path)) as bench:
        yield bench
