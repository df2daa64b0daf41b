"""The same task on huey's SqliteHuey, with its defaults: ``huey_consumer benchmarks._huey_jobs.huey``."""

from __future__ import annotations

import os

from huey import SqliteHuey

from benchmarks._stamps import StampWriter

huey = SqliteHuey(filename=os.environ.get("BENCH_HUEY", "huey.db"))
stamps = StampWriter()


@huey.task()  # type: ignore[untyped-decorator]
def noop(text: str) -> None:
    """Record that the job started."""
    stamps.now()
