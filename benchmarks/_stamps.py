"""When jobs started, written by any number of processes to one file: eight bytes each, appended in one write.

``time.monotonic_ns`` is one clock for all processes of a Linux machine.
"""

from __future__ import annotations

import os
import time
from array import array
from pathlib import Path

VARIABLE = "BENCH_STAMPS"


class StampWriter:
    """Appends numbers to the file that ``$BENCH_STAMPS`` names."""

    def __init__(self) -> None:
        self._fd = os.open(os.environ.get(VARIABLE, os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, value: int) -> None:
        os.write(self._fd, value.to_bytes(8, "little", signed=True))

    def now(self) -> None:
        """Record that a job starts."""
        self.write(time.monotonic_ns())


class StampFile:
    """Reads the numbers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def count(self) -> int:
        return self.path.stat().st_size // 8

    def values(self) -> list[int]:
        numbers = array("q")
        numbers.frombytes(self.path.read_bytes())
        return numbers.tolist()

    def wait(self, count: int, *, timeout: float = 300) -> None:
        """Wait until the file has this many numbers. Polls only ten times a second, to add little load."""
        deadline = time.monotonic() + timeout
        while self.count() < count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.count()} of {count} jobs started within {timeout:g} s")
            time.sleep(0.1)

    def rate(self, count: int) -> float:
        """Starts per second between the first and the ``count``-th."""
        stamps = sorted(self.values())[:count]
        return (len(stamps) - 1) / ((stamps[-1] - stamps[0]) / 1e9)
