"""The CPU time and memory of this process, its JVM and their Python workers."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil


def family() -> list[psutil.Process]:
    """This process, its JVM and their Python workers."""
    me = psutil.Process()
    return [me, *me.children(recursive=True)]


def cpu_seconds() -> float:
    """CPU time of these processes, including those that have ended."""
    total = 0.0
    for process in family():
        try:
            total += sum(process.cpu_times()[:4])
        except psutil.Error:
            continue  # it has ended, and its parent includes its time
    return total


class PeakMemory:
    """The largest resident size of all processes together and of the largest one, sampled twice a second."""

    def __init__(self) -> None:
        self.together = self.largest = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.5):
            sizes = []
            for process in family():
                try:
                    sizes.append(process.memory_info().rss)
                except psutil.Error:
                    continue
            self.together = max(self.together, sum(sizes))
            self.largest = max(self.largest, *sizes)

    def __str__(self) -> str:
        jvm, all_of_them = self.largest >> 20, self.together >> 20
        return f"JVM {jvm:,} MiB, with the driver and all Python workers {all_of_them:,} MiB"


@dataclass
class Spent:
    """What a block took, in seconds."""

    wall: float = 0
    cpu: float = 0


@contextmanager
def timed(what: str, records: int) -> Iterator[Spent]:
    """Print how long a block took, and how many records that is a second."""
    started, cpu = time.perf_counter(), cpu_seconds()
    yield (spent := Spent())
    spent.wall, spent.cpu = time.perf_counter() - started, cpu_seconds() - cpu
    seconds, cpu = spent.wall, spent.cpu
    print(
        f"  {what:34}{seconds:8.1f} s {records / seconds:>10,.0f}/s   CPU {cpu:7.1f} s, "
        f"{1e6 * cpu / records:5.1f} us each, {os.cpu_count()} free cores {records * 2 / cpu:>9,.0f}/s"
        f"   load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
