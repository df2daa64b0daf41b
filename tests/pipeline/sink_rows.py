"""For ``spark-submit``: ``sink_rows.py URL ROWS FOLDER``: rows become jobs while tasks fail and run twice.

Every second task fails once, in the middle. Task 1 waits in the middle until Spark has started a copy of it
on the other executor; then both go on. What happened is left in FOLDER as empty files.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import windlass
from windlass.pipeline.session import SessionOptions, session

if TYPE_CHECKING:
    import pyarrow as pa

TASKS = 8
LAGGARD = 1
CONF = {
    "spark.executor.memory": "600m",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.25",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.interval": "100ms",
}
Batches = Iterator["pa.RecordBatch"]


def disturbed(folder: str, patience_s: float) -> Callable[[Batches], Batches]:
    """What each task does to its rows: hand them on, with an accident after the first batch."""

    def apply(batches: Batches) -> Batches:
        import time
        from pathlib import Path

        from pyspark import TaskContext

        import windlass

        context = TaskContext.get()
        assert context is not None
        task, attempt = context.partitionId(), context.attemptNumber()
        Path(folder, f"task-{task}-{attempt}").touch()
        Path(folder, "packaged" if ".zip" in windlass.__file__ else "not-packaged").touch()
        for number, batch in enumerate(batches):
            yield batch
            if number or attempt:
                continue
            if task % 2 == 0:
                raise RuntimeError("this task fails once")
            if task == LAGGARD:
                deadline = time.monotonic() + patience_s
                while not Path(folder, f"task-{task}-1").exists():
                    assert time.monotonic() < deadline, "no copy of this task was started"
                    time.sleep(0.05)
                Path(folder, "side-by-side").touch()

    return apply


def main(url: str, rows: str, folder: str) -> None:
    assert ".zip" in windlass.__file__, windlass.__file__
    with session(SessionOptions(conf=CONF)) as spark:
        change = disturbed(folder, patience_s=120 + int(rows) / 500)  # a copy comes when others are done
        frame = spark.range(0, int(rows), numPartitions=TASKS).mapInArrow(change, "id long")
        options = {"url": url, "queue": "mail", "task": "sold", "keys": "id"}
        frame.write.format("windlass").options(**options).mode("append").save()


if __name__ == "__main__":
    main(*sys.argv[1:])
