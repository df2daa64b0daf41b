"""A driver in a process of its own, to be killed: ``python child.py URL LAKE GO``.

It starts Spark, waits until the file GO is there, and runs for ever. ``$WINDLASS_PROBES`` says where it dies.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

from windlass.pipeline.run import Pipeline, RunOptions
from windlass.pipeline.session import SessionOptions, session
from windlass.testing.faults import install_from_environment

MAX_RECORDS = 40


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main(url: str, lake: str, go: str) -> None:
    install_from_environment()
    options = RunOptions(url=url, lake=lake, max_records=MAX_RECORDS, interval=0.05)
    with session(SessionOptions(profile="test")) as spark:
        while not Path(go).exists():
            time.sleep(0.05)
        pipeline = Pipeline(spark, options)
        pipeline.open()
        say("open")
        pipeline.run_continuously(threading.Event(), lambda result: say(str(result.records)))


if __name__ == "__main__":
    main(*sys.argv[1:])
