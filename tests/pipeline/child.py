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
#: For a cluster of small workers and a handful of rows.
CLUSTER = {
    "spark.executor.memory": "600m",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "2",
}


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main(url: str, lake: str, mode: str, master: str | None = None) -> None:
    install_from_environment()
    profile: Literal["work", "test"] = "test" if master is None else "work"
    records = MAX_RECORDS if master is None else 1_000
    options = RunOptions(url=url, lake=lake, max_records=records, interval=0.05)
    conf = CLUSTER if master else {}
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
