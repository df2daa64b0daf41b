"""Helpers of the command line's tests: run commands in this process, and workers in real ones."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from click.testing import CliRunner, Result

from windlass import Job, JobState, Windlass
from windlass.cli.main import tree

R = TypeVar("R")

#: Seconds that anything in these tests may take.
PATIENCE = 25.0

#: An app whose tasks a test can hold and release through files in the current folder.
SHOP = """
import asyncio, logging, os, threading
from pathlib import Path
from windlass import Windlass, current_job

app = Windlass()
log = logging.getLogger("shop")


@app.task(name="greet", queue="mail")
async def greet(name: str = "you") -> str:
    log.info("greeting %s", name)
    return f"hello {name}"


@app.task(name="hold", queue="mail")
async def hold() -> int:
    while not Path("go").exists():
        await asyncio.sleep(0.01)
    return os.getpid()


@app.task(name="stuck", queue="mail")
def stuck() -> None:
    threading.Event().wait(300)


@app.task(name="boom", queue="images", max_attempts=1)
async def boom() -> None:
    await current_job().log("about to fail")
    raise ValueError("no such image")
"""


def eventually(check: Callable[[], R], what: str = "it", *, patience: float = PATIENCE) -> R:
    """The first true answer of ``check``, which is asked again and again."""
    until = time.monotonic() + patience
    while True:
        answer = check()
        if answer:
            return answer
        if time.monotonic() > until:
            raise AssertionError(f"{what} did not happen within {patience:g} s")
        time.sleep(0.02)


class Cli:
    """Runs commands through click's entry, against one store."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._runner = CliRunner(env={"WINDLASS_URL": url, "NO_COLOR": "1"})

    def __call__(self, *args: str, code: int = 0, **more: Any) -> Result:
        """Run a command and check its exit code."""
        result = self._runner.invoke(tree, args, prog_name="windlass", **more)
        detail = f"{result.output}\n{result.exception!r}"
        assert result.exit_code == code, detail
        return result

    def json(self, *args: str, code: int = 0, **more: Any) -> Any:
        """The JSON document that a command prints."""
        return json.loads(self(*args, "--json", code=code, **more).stdout)

    def lines(self, *args: str) -> list[Any]:
        """The JSON lines that a command prints."""
        return [json.loads(line) for line in self(*args).stdout.splitlines()]

    def app(self, work: Callable[[Windlass], Awaitable[R]]) -> R:
        """Do something with an app on the store."""

        async def run() -> R:
            async with Windlass(self.url) as app:
                return await work(app)

        return asyncio.run(run())

    def add(self, queue: str, name: str, data: Any = None, **options: Any) -> str:
        """Add a job; returns its id."""

        async def add(app: Windlass) -> str:
            return (await app.queue(queue).add(name, data, **options)).id

        return self.app(add)

    def job(self, queue: str, job_id: str) -> Job[Any]:
        """A job as the store has it."""

        async def get(app: Windlass) -> Job[Any]:
            job = await app.queue(queue).get_job(job_id)
            assert job is not None
            return job

        return self.app(get)

    def until(self, queue: str, job_id: str, state: JobState) -> Job[Any]:
        """The job once it is in ``state``."""

        def there() -> Job[Any] | None:
            job = self.job(queue, job_id)
            return job if job.state is state else None

        job = eventually(there, f"{job_id} in state {state}")
        assert job is not None
        return job


class WorkerProcess:
    """``python -m windlass worker ...`` in a folder, with its log in a file."""

    def __init__(self, folder: Path, url: str, *args: str) -> None:
        self.folder = folder
        self._log = folder / f"worker-{time.monotonic_ns()}.log"
        env = {key: value for key, value in os.environ.items() if not key.startswith("WINDLASS_")}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "windlass", "worker", *args],
                cwd=folder,
                env={**env, "WINDLASS_URL": url},
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )

    @property
    def log(self) -> str:
        return self._log.read_text()

    def wait_for(self, pattern: str, *, count: int = 1) -> re.Match[str]:
        """Wait until the log matches for the ``count``-th time."""

        def found() -> re.Match[str] | None:
            matches = list(re.finditer(pattern, self.log))
            if len(matches) < count and self.process.poll() is not None:
                matches = list(re.finditer(pattern, self.log))
                assert len(matches) >= count, f"it ended without {pattern!r}:\n{self.log}"
            return matches[count - 1] if len(matches) >= count else None

        try:
            match = eventually(found, f"{pattern!r} in the log")
        except AssertionError as exc:
            raise AssertionError(f"{exc}\n{self.log}") from exc
        assert match is not None
        return match

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def ends(self) -> int:
        """The exit code, once it ended."""
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired as exc:
            raise AssertionError(f"it does not end:\n{self.log}") from exc

    def clean_up(self) -> None:
        """End it, whatever it does."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def is_alive(pid: int) -> bool:
    """Whether a process runs (one that only waits to be buried does not)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
