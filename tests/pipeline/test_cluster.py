"""A standalone cluster on this machine: one master, three workers, executors in other processes."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.pipeline import shop, sink_rows
from tests.pipeline.object_store import make_bucket, settings
from tests.pipeline.processes import Process
from tests.pipeline.support import Bench, busy_day, store_url
from tests.pipeline.test_run import totals
from tools.services.valkey import free_port
from windlass.backend import requests as rq
from windlass.pipeline.session import package_zip

#: How many rows the sink's test writes; its full count is 1,000,000.
ROWS = int(os.environ.get("WINDLASS_TEST_SINK_ROWS", "20000"))
#: In how many batches a store is read while executors die.
BATCHES = 3
#: For workers with little memory and few rows.
SMALL = {
    "spark.executor.memory": "600m",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}


def launcher(name: str) -> str:
    import pyspark

    return str(Path(pyspark.__file__).parent / "bin" / name)


#: The workers by their addresses: Spark runs a copy of a slow task on another host only.
WORKERS = {"worker-1": "127.0.0.1", "worker-2": "127.0.0.2", "worker-3": "127.0.0.3"}


def _command(process: psutil.Process) -> str:
    """The command line of a process; nothing for one that has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


class Cluster:
    """One master and three workers; ``url`` is the master's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"spark://127.0.0.1:{self.port}"
        self._started: list[Process] = []

    def start(self) -> None:
        master = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(self.port)]
        first = self._run("master", *master)
        first.until(lambda output: "New state: ALIVE" in output)
        for name, host in WORKERS.items():
            worker = ["org.apache.spark.deploy.worker.Worker", "--host", host, "-c", "1", "-m", "900m"]
            self._run(name, *worker, "-d", str(self.folder / name), self.url, host=host)
        first.until(lambda output: output.count("Registering worker") == len(WORKERS))

    def stop(self) -> None:
        for process in self._started:
            process.reap()

    def executors(self) -> list[int]:
        """How many executors each worker has started so far."""
        logs = [(self.folder / f"{name}.log").read_text() for name in WORKERS]
        return [len(re.findall("Asked to launch executor", log)) for log in logs]

    def kill_executor(self) -> bool:
        """Kill the oldest executor at work, as the loss of its machine would; False when there is none."""
        daemons = [psutil.Process(process.pid) for process in self._started]
        found = [
            child
            for daemon in daemons
            for child in daemon.children(recursive=True)
            if "CoarseGrainedExecutorBackend" in _command(child)
        ]
        if found:
            min(found, key=lambda child: child.create_time()).kill()
        return bool(found)

    def _run(self, name: str, *arguments: str, host: str = "127.0.0.1") -> Process:
        env = {
            "SPARK_LOCAL_IP": host,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1",
            "PYTHONPATH": "",  # executors have what the driver sends them
        }
        command = [launcher("spark-class"), *arguments, "--webui-port", "0"]
        if name.startswith("worker"):  # options go before the master's address
            command = [*command[:-3], *command[-2:], command[-3]]
        process = Process(command, self.folder / f"{name}.log", env)
        self._started.append(process)
        return process


@pytest.fixture(scope="module")
def cluster(spark_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A running cluster."""
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.feature("Q11")
@pytest.mark.parametrize("backend_name", ["valkey"])
def test_the_pipeline_runs_on_a_standalone_cluster(
    backend_name: str, cluster: Cluster, bench: Bench, tmp_path: Path
) -> None:
    busy_day(bench, rounds=1)
    lake, before = tmp_path / "lake", cluster.executors()
    command = [sys.executable, "-m", "windlass", "pipeline", "run", "--url", bench.url, "--lake", str(lake)]
    command += ["--master", cluster.url, "--json"]
    command += [word for name, value in SMALL.items() for word in ("--conf", f"{name}={value}")]
    driver = Process(command, tmp_path / "driver.log")
    try:
        assert driver.wait() == 0, driver.output[-4000:]
    finally:
        driver.reap()
    for table in ("bronze_attempts", "attempts", "day"):
        assert totals(lake, table) == bench.counters(), table
    assert all(now > then for now, then in zip(cluster.executors(), before, strict=True))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.feature("Q2", "Q11")
@pytest.mark.parametrize("backend_name", ["valkey"])
def test_a_lake_on_an_object_store_outlives_an_executor_in_every_batch(
    backend_name: str, cluster: Cluster, bench: Bench, object_store: str, tmp_path: Path
) -> None:
    """With speculation on: copies of slow tasks write files that no commit names."""
    busy_day(bench, rounds=1)
    records = sum(bench.counters().values())
    each = -(-records // BATCHES)
    with make_bucket(object_store) as bucket:
        lake = f"{bucket}/lake"
        command = [sys.executable, "-m", "windlass", "pipeline", "run", "--url", bench.url, "--lake", lake]
        command += ["--continuous", "--json", "--max-records", str(each), "--master", cluster.url]
        conf = {**SMALL, "spark.speculation": "true", "spark.speculation.interval": "50ms"}
        command += [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
        driver = Process(command, tmp_path / "driver.log", settings(object_store))
        try:
            for done in range(BATCHES):
                driver.until(said(done), timeout=300)
                while not cluster.kill_executor():
                    time.sleep(0.05)
            driver.until(said(BATCHES), timeout=300)
        finally:
            driver.end()
            driver.wait(60)
            driver.reap()
        for table in ("bronze_attempts", "attempts", "minute", "day"):
            assert totals(lake, table) == bench.counters(), table


@pytest.mark.slow
@pytest.mark.timeout(max(400, ROWS // 300))
@pytest.mark.feature("Q11")
@pytest.mark.parametrize("backend_name", [os.environ.get("WINDLASS_TEST_SINK_STORE", "sqlite")])
def test_rows_are_jobs_once_although_tasks_fail_and_run_twice(
    backend_name: str, cluster: Cluster, tmp_path: Path
) -> None:
    """With spark-submit and the packaged code, while a worker drains the queue under default retention."""
    url, sold, marks = store_url(backend_name, tmp_path), tmp_path / "sold", tmp_path / "marks"
    marks.mkdir()
    with Bench(url) as bench:
        started = time.monotonic()
        worker = Process([sys.executable, shop.__file__, url, str(sold)], tmp_path / "worker.log")
        try:
            submit(cluster, tmp_path, url, str(ROWS), str(marks))
            written = time.monotonic()
            worker.until(lambda _: completed(bench) >= ROWS, timeout=max(120, ROWS / 400))
            drained = time.monotonic()
            worker.end()
            assert worker.wait(60) == 0, worker.output[-3000:]
        finally:
            worker.reap()
        counts = {row.outcome: row.total for row in bench.ask_now(rq.ReadCounters()) if row.task == "sold"}
    assert counts == {"enqueued": ROWS, "completed": ROWS}
    ran = sorted(map(int, sold.read_text().split()))
    assert ran == list(range(ROWS))
    seen = {path.name for path in marks.iterdir()}
    assert {f"task-{task}-1" for task in range(0, sink_rows.TASKS, 2)} <= seen  # failed and tried again
    assert "side-by-side" in seen  # a task and its copy, both with rows to deliver
    assert "packaged" in seen and "not-packaged" not in seen
    if ROWS >= 1_000_000:
        figures = {"rows": ROWS, "written_s": written - started, "drained_s": drained - started}
        sys.stdout.write(json.dumps({name: round(value, 1) for name, value in figures.items()}) + "\n")


def said(batches: int) -> Callable[[str], bool]:
    """Whether a run has said that so many batches are done."""
    return lambda output: output.count('"attempts"') >= batches


def submit(cluster: Cluster, folder: Path, *arguments: str) -> None:
    """Run ``sink_rows.py`` on the cluster, with the package as a zip."""
    conf = {
        name: SMALL[name] for name in ("spark.executor.extraJavaOptions", "spark.driver.extraJavaOptions")
    }
    command = [launcher("spark-submit"), "--master", cluster.url, "--py-files", str(package_zip(folder))]
    command += [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    env = {"PYTHONPATH": "", "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    driver = Process([*command, sink_rows.__file__, *arguments], folder / "driver.log", env)
    try:
        assert driver.wait(max(240, ROWS / 400)) == 0, driver.output[-4000:]
    finally:
        driver.reap()


def completed(bench: Bench) -> int:
    return sum(row.total for row in bench.ask_now(rq.ReadCounters()) if row.outcome == "completed")
