"""A process of "another version", whose decisions differ from ours: ``... stranger DIR``, orders on stdin.

Its rules: jobs get their places in steps of ten, a job that is retried by hand keeps its used attempts, and
every new job costs an event that we never write. It answers each order with a digest of the whole store.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
from pathlib import Path
from typing import Any

from tests.backends.file.support import add, claim, ended, new, opened, settle
from tests.backends.file.twins import state
from windlass.backend import requests as rq
from windlass.backends.file import FileBackend
from windlass.backends.memory import store as memory
from windlass.core import change_rules, transitions
from windlass.core.job import EventType, JobRecord, JobRef, WorkerInfo
from windlass.core.outcome import Outcome


def differ() -> None:
    """Become another version."""
    create, retry = transitions.create, change_rules.retry

    def other_place(self: memory.MemoryStore) -> int:
        self.last_place += 10
        return self.last_place

    def other_create(new: Any, recorder: Any, **more: Any) -> JobRecord:
        job = create(new, recorder, **more)
        recorder.record_event(job, EventType.CHANGED, what="noticed by another version")
        return job

    def other_retry(job: JobRecord, recorder: Any, **more: Any) -> Any:
        attempts = job.attempts
        answer = retry(job, recorder, **more)
        job.attempts = attempts
        return answer

    memory.MemoryStore.fresh_place = other_place  # type: ignore[method-assign]
    transitions.create = other_create
    change_rules.retry = other_retry


def digest(store: FileBackend) -> str:
    """What a process has in memory, after it has read to the tail."""
    session = store._open_store().session
    with session.mutex:
        session.catch_up()
        return hashlib.sha256(repr(state(session.store)).encode()).hexdigest()


async def work(store: FileBackend, turn: int, name: str) -> None:
    """A bit of everything."""
    await add(store, *[new(id=f"{name}-{turn}-{n}", delay_ms=n % 2) for n in range(4)])
    jobs = await claim(store, 3, worker=name)
    for n, job in enumerate(jobs):
        outcome = (Outcome.COMPLETE, Outcome.FAIL, Outcome.RETRY)[(n + turn) % 3]
        await settle(store, ended(job, outcome))
        if outcome is Outcome.FAIL:
            await store.execute(rq.RetryJobs(refs=[JobRef("q", job.id)]))
    await store.execute(rq.Beat(worker=WorkerInfo(id=name, version="99.0")))


async def main(path: Path) -> None:
    differ()
    async with opened(path, synchronous="off") as store:
        for turn, _order in enumerate(iter(sys.stdin.readline, "")):
            await work(store, turn, "stranger")
            sys.stdout.write(digest(store) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
