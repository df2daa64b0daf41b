"""Python workers of Spark that die at named points, each death once.

Spark starts them through ``spark.python.daemon.module``. ``$WINDLASS_DEATHS`` says where: a folder for
marks, then ``point*count`` words. A worker that reaches a point leaves a mark for the death and dies; when
all deaths of a point are marked, its workers live.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from windlass.core.probe import Action, Probe, install

VARIABLE = "WINDLASS_DEATHS"


def die_once_each(folder: Path, deaths: int) -> Action:
    def die(point: str, facts: dict[str, Any]) -> None:
        for number in range(deaths):
            try:
                (folder / f"{point}-{number}").touch(exist_ok=False)
            except FileExistsError:
                continue
            os.kill(os.getpid(), signal.SIGKILL)

    return die


def prepare() -> None:
    text = os.environ.get(VARIABLE)
    if text:
        folder, *words = text.split()
        probe = Probe()
        for word in words:
            point, _, count = word.partition("*")
            probe.arm(point, die_once_each(Path(folder), int(count)), times=10_000)
        install(probe)


if __name__ == "__main__":
    from pyspark.daemon import manager

    prepare()
    manager()
