"""A standalone cluster on this machine: one master, two workers, executors in other processes."""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipeline.processes import Process, driver
from tests.pipeline.support import Bench, busy_day
from tests.pipeline.test_run import totals
from windlass.pipeline.files import LocalFiles
from windlass.pipeline.lake import Lake, stray_files

backend_name = "sqlite"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def cluster(spark_cache: Path, tmp_path: Path) -> Iterator[str]:
    """The URL of a running master with two workers."""
    import pyspark

    launcher = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    env = {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1",
    }
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    started: list[Process] = []

    def start(name: str, *arguments: str) -> Process:
        process = Process([launcher, *arguments], tmp_path / f"{name}.log", env)
        started.append(process)
        return process

    try:
        master = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port)]
        first = start("master", *master, "--webui-port", str(free_port()))
        first.until(lambda output: "New state: ALIVE" in output)
        for name in ("worker-1", "worker-2"):
            worker = ["org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "-c", "1", "-m", "900m"]
            start(name, *worker, "--webui-port", str(free_port()), "-d", str(tmp_path / name), url)
        first.until(lambda output: output.count("Registering worker") == 2)
        yield url
    finally:
        for process in started:
            process.reap()


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.feature("Q11")
def test_the_pipeline_runs_on_a_standalone_cluster(cluster: str, bench: Bench, tmp_path: Path) -> None:
    busy_day(bench, rounds=1)
    lake = tmp_path / "lake"
    child = driver(tmp_path / "driver.log", bench.url, str(lake), "once", cluster)
    try:
        assert child.wait() == 0, child.output[-4000:]
    finally:
        child.reap()
    for table in ("bronze_attempts", "attempts", "day"):
        assert totals(lake, table) == bench.counters(), table
    opened = Lake(LocalFiles(lake))
    opened.load()
    assert stray_files(opened) == ([], [])
    logs = "".join(log.read_text() for name in ("worker-1", "worker-2") for log in [tmp_path / f"{name}.log"])
    assert len(re.findall(r"Asked to launch executor", logs)) >= 2
