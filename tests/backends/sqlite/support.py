"""Short ways to say things in the tests of the sqlite store."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from windlass.backend import open_backend
from windlass.backend import requests as rq
from windlass.backends.sqlite import SqliteBackend
from windlass.core.ids import new_id
from windlass.core.job import JobRecord, NewJob
from windlass.core.outcome import Outcome, Settled, Settlement


@contextlib.asynccontextmanager
async def opened(path: Path, **options: object) -> AsyncIterator[SqliteBackend]:
    """An open client of the file at ``path``."""
    store = client(path, **options)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def client(path: Path, **options: object) -> SqliteBackend:
    """A client of the file at ``path``, not yet open."""
    query = "&".join(f"{name}={value}" for name, value in options.items())
    store = open_backend(f"sqlite:///{path}?{query}")
    assert isinstance(store, SqliteBackend)
    return store


def new(queue: str = "q", *, id: str | None = None, **fields: Any) -> NewJob:
    """A job to add."""
    job_id = id or new_id()
    return NewJob(
        **{"queue": queue, "id": job_id, "task": "t", "payload": b"{}", "request_id": job_id, **fields}
    )


async def add(store: SqliteBackend, *jobs: NewJob, now_ms: int | None = None) -> list[rq.Added]:
    return await store.execute(rq.Add(jobs=list(jobs), now_ms=now_ms))


async def claim(
    store: SqliteBackend,
    *queues: str,
    limit: int = 10,
    worker: str = "w",
    now_ms: int | None = None,
    **more: Any,
) -> list[JobRecord]:
    """Lease up to ``limit`` jobs."""
    wanted = [rq.ClaimQueue(queue, limit, limit) for queue in queues or ("q",)]
    request = rq.Claim(worker=worker, queues=wanted, limit=limit, claim_id=new_id(), now_ms=now_ms, **more)
    return (await store.execute(request)).jobs


def ended(job: JobRecord, outcome: Outcome = Outcome.COMPLETE, **fields: Any) -> Settlement:
    """The end of the attempt that ``job`` was claimed for."""
    assert job.token is not None
    return Settlement(queue=job.queue, id=job.id, token=job.token, outcome=outcome, **fields)


async def settle(store: SqliteBackend, *ends: Settlement, now_ms: int | None = None) -> list[Settled]:
    return (await store.execute(rq.Settle(items=list(ends), now_ms=now_ms))).items
