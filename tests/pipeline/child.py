"""A driver in a process of its own, to be killed: ``python child.py URL LAKE once|continuous [MASTER]``.

``$WINDLASS_PROBES`` says where it dies.
"""

from __future__ import annotations

import sys
import threading
from typing import Literal

from windlass.pipeline.run import Pipeline, RunOptions
from windlass.pipeline.session import SessionOptions, session
from windlass.testing.faults import install_from_environment

MAX_RECORDS = 40


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main(url: str, lake: str, mode: str, master: str | None = None) -> None:
    install_from_environment()
    profile: Literal["work", "test"] = "test" if master is None else "work"
    records = MAX_RECORDS if master is None else 1_000
    options = RunOptions(url=url, lake=lake, max_records=records, interval=0.05)
    conf = {"spark.executor.memory": "600m", "spark.sql.shuffle.partitions": "2"} if master else {}
    with session(SessionOptions(master=master, profile=profile, conf=conf)) as spark:
        pipeline = Pipeline(spark, options)
        pipeline.open()
        if mode == "continuous":
            pipeline.run_continuously(threading.Event(), lambda result: say(str(result.records)))
        else:
            pipeline.run_once()
            say("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
