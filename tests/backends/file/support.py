"""Short ways to say things in the tests of the file store."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from windlass.backend import Backend, open_backend
from windlass.backend import requests as rq
from windlass.backends.file import FileBackend
from windlass.backends.file.directory import log_name, read_current
from windlass.core.ids import new_id
from windlass.core.job import JobRecord, NewJob
from windlass.core.outcome import Outcome, Settled, Settlement


@contextlib.asynccontextmanager
async def opened(path: Path, **options: object) -> AsyncIterator[FileBackend]:
    """An open client of the directory at ``path``."""
    store = client(path, **options)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def client(path: Path, **options: object) -> FileBackend:
    """A client of the directory at ``path``, not yet open."""
    query = "&".join(f"{name}={value}" for name, value in options.items())
    store = open_backend(f"file://{path}?{query}")
    assert isinstance(store, FileBackend)
    return store


def log_of(path: Path) -> Path:
    """The log that counts now."""
    current = read_current(str(path / "default"))
    assert current is not None
    return path / "default" / log_name(current.generation)


def new(queue: str = "q", *, id: str | None = None, **fields: Any) -> NewJob:
    """A job to add."""
    job_id = id or new_id()
    return NewJob(
        **{"queue": queue, "id": job_id, "task": "t", "payload": b"{}", "request_id": job_id, **fields}
    )


async def add(store: Backend, *jobs: NewJob) -> list[rq.Added]:
    return await store.execute(rq.Add(jobs=list(jobs)))


async def claim(
    store: Backend, limit: int = 10, worker: str = "w", lease_ms: int = 30_000
) -> list[JobRecord]:
    """Lease up to ``limit`` jobs of queue q."""
    wanted = [rq.ClaimQueue("q", limit, limit)]
    request = rq.Claim(worker=worker, queues=wanted, limit=limit, claim_id=new_id(), lease_ms=lease_ms)
    return (await store.execute(request)).jobs


def ended(job: JobRecord, outcome: Outcome = Outcome.COMPLETE, **fields: Any) -> Settlement:
    """The end of the attempt that ``job`` was claimed for."""
    assert job.token is not None
    return Settlement(queue=job.queue, id=job.id, token=job.token, outcome=outcome, **fields)


async def settle(store: Backend, *ends: Settlement) -> list[Settled]:
    return (await store.execute(rq.Settle(items=list(ends)))).items


async def jobs_of(store: Backend, queue: str = "q") -> dict[str, JobRecord]:
    """All jobs of a queue, in the order of their adding."""
    found = await store.execute(rq.ListJobs(queue=queue, limit=100_000, newest_first=False))
    return {job.id: job for job in found.jobs}
