"""A worker process of the class API: ``python -m benchmarks._windlass_handler URL QUEUE CONCURRENCY``.

It does what the tasks of ``benchmarks._windlass_jobs`` do, with one handler for every job.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from benchmarks._common import run
from benchmarks._stamps import StampWriter
from windlass import Job, Worker

stamps = StampWriter()


async def handle(job: Job[Any]) -> Any:
    """The job's name says what to do."""
    if job.name == "late":
        stamps.write(time.monotonic_ns() - job.data["asked_ns"])
        return None
    if job.name == "noop":
        stamps.now()
        return None
    return job.data["number"]


async def work(url: str, queue: str, concurrency: int) -> None:
    await Worker(queue, handle, url_or_app=url, concurrency=concurrency).run(handle_signals=True)


if __name__ == "__main__":
    run(work(sys.argv[1], sys.argv[2], int(sys.argv[3])))
