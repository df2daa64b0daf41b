"""Worker processes of the benchmarks."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks._common import ROOT
from benchmarks._stamps import VARIABLE, StampFile

if TYPE_CHECKING:  # an older tree has it elsewhere
    from windlass.api.interfaces import App

#: The tree whose package the processes run: this one, unless ``scripts/bench against`` sets another.
TREE = "BENCH_TREE"


@contextmanager
def worker(url: str, stamps: StampFile, queues: list[str], *, concurrency: int = 16) -> Iterator[None]:
    """A ``windlass worker`` process, until the block ends."""
    command = ["-m", "windlass", "worker", "benchmarks._windlass_jobs:app", "--log-level", "warning"]
    options = ["--queues", ",".join(queues), "--concurrency", str(concurrency)]
    with _process([*command, *options], stamps, WINDLASS_URL=url):
        yield


@contextmanager
def handler_worker(url: str, stamps: StampFile, queue: str, *, concurrency: int) -> Iterator[None]:
    """A process with a ``Worker`` of the class API, until the block ends."""
    with _process(["-m", "benchmarks._windlass_handler", url, queue, str(concurrency)], stamps):
        yield


@contextmanager
def bare_worker(url: str, stamps: StampFile, queue: str) -> Iterator[None]:
    """A process that claims with a bare FCALL at every hint, until the block ends."""
    with _process(["-m", "benchmarks._bare_worker", url, queue], stamps):
        yield


@contextmanager
def consumer(path: Path, stamps: StampFile, kind: str, workers: int) -> Iterator[None]:
    """A ``huey_consumer`` process, until the block ends."""
    command = ["-m", "huey.bin.huey_consumer", "benchmarks._huey_jobs.huey"]
    options = ["--quiet", "--worker-type", kind, "--workers", str(workers)]
    with _process([*command, *options], stamps, BENCH_HUEY=str(path)):
        yield


def search_path(tree: str) -> str:
    """The environment in which a process finds these benchmarks and the package of ``tree``."""
    return os.pathsep.join([str(ROOT), str(Path(tree) / "src")])


@contextmanager
def _process(arguments: list[str], stamps: StampFile, **variables: str) -> Iterator[None]:
    env = {
        **os.environ,
        VARIABLE: str(stamps.path),
        "PYTHONPATH": search_path(os.environ.get(TREE, str(ROOT))),
        **variables,
    }
    process = subprocess.Popen([sys.executable, *arguments], cwd=ROOT, env=env)
    try:
        yield
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def wait_for_worker(app: App, timeout: float = 30) -> None:
    """Wait until a worker has sent its first heartbeat."""
    async with asyncio.timeout(timeout):
        while not await app.workers():  # noqa: ASYNC110 - the store is what we wait for
            await asyncio.sleep(0.05)
