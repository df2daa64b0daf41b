"""Short ways to say things in the tests of this folder."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from windlass.backend import open_backend
from windlass.backend import requests as rq
from windlass.backends.valkey import ValkeyBackend
from windlass.core.ids import new_id
from windlass.core.job import JobRecord, NewJob
from windlass.core.outcome import Outcome, Settled, Settlement


@contextlib.asynccontextmanager
async def opened(url: str, namespace: str = "", **options: object) -> AsyncIterator[ValkeyBackend]:
    """An open client; without a namespace, of a fresh one."""
    query = "&".join(f"{name}={value}" for name, value in options.items())
    store = open_backend(f"{url}?namespace={namespace or new_id()}&{query}")
    assert isinstance(store, ValkeyBackend)
    try:
        await store.open()
        yield store
    finally:
        await store.close()


def new(queue: str = "q", job_id: str = "", **fields: Any) -> NewJob:
    """A job to add."""
    job_id = job_id or new_id()
    return NewJob(
        **{"queue": queue, "id": job_id, "task": "t", "payload": b"{}", "request_id": job_id, **fields}
    )


async def add(store: ValkeyBackend, *jobs: NewJob, now_ms: int | None = None) -> list[rq.Added]:
    return await store.execute(rq.Add(jobs=list(jobs), now_ms=now_ms))


async def claim(
    store: ValkeyBackend, *queues: str, limit: int = 1_000, worker: str = "w", **more: Any
) -> list[JobRecord]:
    """Lease up to ``limit`` jobs."""
    wanted = [rq.ClaimQueue(queue, limit, limit) for queue in queues or ("q",)]
    request = rq.Claim(worker=worker, queues=wanted, limit=limit, claim_id=new_id(), **more)
    return (await store.execute(request)).jobs


async def complete(store: ValkeyBackend, *jobs: JobRecord, now_ms: int | None = None) -> list[Settled]:
    ends = [
        Settlement(queue=job.queue, id=job.id, token=job.token or "", outcome=Outcome.COMPLETE, result=b"1")
        for job in jobs
    ]
    return (await store.execute(rq.Settle(items=ends, now_ms=now_ms))).items


def cancel_tasks(prefix: str) -> None:
    """Cancel all tasks of this loop with such a name, as a handler might."""
    found = [task for task in asyncio.all_tasks() if task.get_name().startswith(prefix)]
    assert found
    for task in found:
        task.cancel()
