"""Real processes on one store file, and how to look at what they did.

Nothing here sleeps for a guessed time: ``until`` polls a condition and fails loudly at its deadline.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from windlass import Windlass
from windlass.backend import requests as rq

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from windlass.core.job import AttemptRecord

ROOT = Path(__file__).resolve().parents[2]
#: How long a condition may take on a busy machine.
PATIENCE = 40.0


async def until(condition: Callable[[], Any], what: str, *, timeout: float = PATIENCE) -> Any:
    """Wait until ``condition`` (plain or async) answers something true; returns that."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if asyncio.iscoroutine(value):
            value = await value
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"did not come true within {timeout:g} s: {what}")
        await asyncio.sleep(0.01)


def store_url(backend_name: str, directory: Path) -> str:
    """A store of its own for the test that owns ``directory``."""
    if backend_name == "sqlite":
        return f"sqlite:///{directory / 'jobs.db'}"
    if backend_name == "file":
        return f"file://{directory / 'jobs'}"
    return f"{backend_name}://?namespace={directory.name[:60]}"


class Child:
    """A process of a test: signalled by its id, its output kept in a file, never left behind."""

    def __init__(self, arguments: list[str], log: Path, env: Mapping[str, str]) -> None:
        self.log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]), **env},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def code(self) -> int | None:
        """The exit code; None while it runs."""
        return self._process.poll()

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    @property
    def is_frozen(self) -> bool:
        """Whether the kernel has stopped it."""
        if self.code is not None:
            raise AssertionError(f"the process ended with {self.code}:\n{self.output}")
        return bool(psutil.Process(self.pid).status() == psutil.STATUS_STOPPED)

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def ended(self, *, timeout: float = PATIENCE) -> int:
        """Wait for its end; returns the exit code (minus the signal that killed it)."""
        await until(lambda: self.code is not None, f"the end of process {self.pid}", timeout=timeout)
        assert self.code is not None
        return self.code

    async def frozen(self) -> None:
        """Wait until it is stopped by SIGSTOP."""
        await until(lambda: self.is_frozen, "the process is frozen")

    def reap(self) -> None:
        """Make sure that it is gone."""
        if self.code is None:
            self._process.kill()
        self._process.wait()


class Stage:
    """One store (a file unless ``url`` says else), its processes, and a client of it in the test itself."""

    def __init__(self, directory: Path, url: str = "", **options: object) -> None:
        self.directory = directory
        query = "&".join(f"{name}={value}" for name, value in options.items())
        self.url = url or f"sqlite:///{directory / 'jobs.db'}" + (f"?{query}" if query else "")
        self.app = Windlass(self.url)
        self._children: list[Child] = []

    def path(self, name: str) -> Path:
        """A file for markers and notes."""
        return self.directory / name

    def lines(self, name: str) -> list[str]:
        """The lines that processes wrote to a file so far."""
        path = self.path(name)
        return path.read_text().splitlines() if path.exists() else []

    def worker(self, *, probes: str = "", env: Mapping[str, str] | None = None, **options: Any) -> Child:
        """Start a worker process with the handlers of ``tests.faults.handlers``."""
        options = {"lease": 1, "recover_every": 0.2, "poll": 0.2, "prune_every": 3600, **options}
        return self.spawn("tests.faults.serve", json.dumps(options), probes=probes, env=env)

    def command(self, *options: str, env: Mapping[str, str] | None = None) -> Child:
        """Start ``windlass worker`` on the same handlers, as people do."""
        return self.spawn("windlass", "worker", "tests.faults.handlers:app", *options, env=env)

    def spawn(
        self, module: str, *arguments: str, probes: str = "", env: Mapping[str, str] | None = None
    ) -> Child:
        """Start ``python -m module arguments`` on this store."""
        facts = {
            "WINDLASS_URL": self.url,
            "WINDLASS_PROBES": probes,
            "STAGE_DIRECTORY": str(self.directory),
            **(env or {}),
        }
        log = self.path(f"process-{len(self._children)}.log")
        child = Child(["-m", module, *arguments], log, facts)
        self._children.append(child)
        return child

    def reap(self) -> None:
        for child in self._children:
            child.reap()

    # --- what the store says ------------------------------------------------------------------------

    async def history(self, queue: str = "q") -> list[AttemptRecord]:
        """Every attempt that the history log of a queue holds."""
        return await history_of(self.app, queue)

    async def totals(self, queue: str = "q") -> Counter[str]:
        """The lifetime counters of a queue, by outcome."""
        return await totals_of(self.app, queue)

    async def completed(self, queue: str = "q") -> int:
        return (await self.totals(queue))["completed"]


async def history_of(app: Windlass, queue: str) -> list[AttemptRecord]:
    records: list[AttemptRecord] = []
    after = 0
    while True:
        page = await app.store.execute(rq.ReadHistory(queue=queue, after=after))
        if not page.records:
            return records
        records += page.records
        after = page.last


async def totals_of(app: Windlass, queue: str) -> Counter[str]:
    totals: Counter[str] = Counter()
    for row in await app.queue(queue).get_metrics():
        totals[row.outcome] += row.total
    return totals


async def check_books(app: Windlass, ids: list[str], queue: str = "q") -> Counter[str]:
    """Every job of ``ids`` completed once, nothing else did, and history and counters agree.

    Returns how many attempts ended in each way.
    """
    history = await history_of(app, queue)
    completed = Counter(ended.job_id for ended in history if ended.outcome == "completed")
    assert set(completed) == set(ids), "a job was lost, or one appeared from nowhere"
    assert set(completed.values()) <= {1}, "a job completed twice"
    assert len({ended.run_id for ended in history}) == len(history), "one lease settled twice"
    outcomes = Counter(str(ended.outcome) for ended in history)
    totals = await totals_of(app, queue)
    assert totals.pop("enqueued") == len(ids)
    assert totals == outcomes, "the lifetime counters disagree with the history"
    counts = await app.queue(queue).get_job_counts()
    assert all(count == 0 for state, count in counts.items() if state != "completed"), counts
    return outcomes


@asynccontextmanager
async def staged(directory: Path, url: str = "", **options: object) -> AsyncIterator[Stage]:
    """A stage that is cleared at the end: processes killed by their ids, the client closed."""
    stage = Stage(directory, url, **options)
    try:
        async with stage.app:
            yield stage
            stage.reap()
    finally:
        stage.reap()


async def raises_within(call: Awaitable[Any], error: type[Exception], seconds: float) -> Exception:
    """The error of ``call``, which must come within ``seconds``."""
    async with asyncio.timeout(seconds):
        try:
            await call
        except error as exc:
            return exc
    raise AssertionError(f"no {error.__name__} was raised")
