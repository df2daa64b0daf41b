"""A driver in a process of its own, to be killed: ``python child.py URL LAKE once|continuous``.

``$WINDLASS_PROBES`` says where it dies.
"""

from __future__ import annotations

import sys
import threading

from windlass.pipeline.run import Pipeline, RunOptions
from windlass.pipeline.session import SessionOptions, session
from windlass.testing.faults import install_from_environment

MAX_RECORDS = 40


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main(url: str, lake: str, mode: str) -> None:
    install_from_environment()
    options = RunOptions(url=url, lake=lake, max_records=MAX_RECORDS, interval=0.05)
    with session(SessionOptions(profile="test")) as spark:
        pipeline = Pipeline(spark, options)
        pipeline.open()
        say("open")
        if mode == "continuous":
            pipeline.run_continuously(threading.Event(), lambda result: say(str(result.records)))
        else:
            pipeline.run_once()
            say("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
