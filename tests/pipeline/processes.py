"""Processes of a test: started in a group of their own, ended by it, never left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHILD = Path(__file__).with_name("child.py")


class Process:
    """A child with its output in a file."""

    def __init__(self, command: list[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        self.log = log
        paths = os.pathsep.join([str(ROOT), str(ROOT / "src")])
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                cwd=log.parent,
                env={**os.environ, "PYTHONPATH": paths, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    @property
    def code(self) -> int | None:
        return self._process.poll()

    def wait(self, timeout: float = 240) -> int:
        return self._process.wait(timeout)

    def until(self, condition: Callable[[str], bool], timeout: float = 120) -> None:
        """Wait until the output satisfies ``condition``, or the process ends."""
        deadline = time.monotonic() + timeout
        while not condition(self.output):
            if self.code is not None or time.monotonic() > deadline:
                raise AssertionError(f"not seen (code {self.code}):\n{self.output[-3000:]}")
            time.sleep(0.05)

    def end(self) -> None:
        """Ask it to stop."""
        self._process.terminate()

    def kill(self) -> None:
        """As a power cut for this one process; its JVM notices by itself."""
        self._process.kill()
        self._process.wait()

    def reap(self) -> None:
        """End the whole group, JVM and Python workers included."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()


def driver(log: Path, *arguments: str, probes: str = "") -> Process:
    """``child.py`` in a process of its own."""
    return Process([sys.executable, str(CHILD), *arguments], log, {"WINDLASS_PROBES": probes})
