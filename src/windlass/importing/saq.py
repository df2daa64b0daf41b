"""SAQ on Redis: ids in a list per queue (oldest left), a record per job, a sorted set of unfinished jobs.

The scores in the set are due times in seconds. Jobs that wait or run have score 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from windlass.importing.client import SourceClient
from windlass.importing.model import Entry, ForeignJob, Found, Shelf, Unreadable, read_json, refuses, to_text

_DEFAULT_TIMEOUT_S = 10


class SaqReader:
    """Reads SAQ's jobs in Redis."""

    source = "saq"

    def __init__(self, client: SourceClient, prefix: str = "") -> None:
        self._client = client
        self._start = f"{(prefix or 'saq').rstrip(':')}:"

    async def shelves(self) -> list[Shelf]:
        names = await self._queues()
        waiting = [Shelf(name, f"{self._start}{name}:queued".encode(), "list") for name in names]
        later = [
            Shelf(name, f"{self._start}{name}:incomplete".encode(), "zset", later=True, least=1)
            for name in names
        ]
        return waiting + later

    async def _queues(self) -> list[str]:
        keys = await self._client.scan(f"{self._start}*:incomplete", kind="zset")
        return [to_text(key).removeprefix(self._start).removesuffix(":incomplete") for key in keys]

    async def read(self, shelf: Shelf, entries: Sequence[tuple[bytes, float]]) -> list[Found]:
        ids = [to_text(entry) for entry, _ in entries]
        records = await self._client.texts(ids)
        set_key = f"{self._start}{shelf.queue}:incomplete"
        return [
            _read(Entry(job_id), shelf, score, record, set_key)
            for (_, score), job_id, record in zip(entries, ids, records, strict=True)
        ]

    async def left(self) -> dict[str, int]:
        running = [
            await self._client.size(f"{self._start}{name}:active", "list") for name in await self._queues()
        ]
        return {"that run (active)": sum(running)} if sum(running) else {}


@refuses("a job of SAQ")
def _read(entry: Entry, shelf: Shelf, score: float, record: bytes | None, set_key: str) -> ForeignJob:
    if record is None:
        raise Unreadable("its record is gone: SAQ itself would drop it")
    job = _job(record)
    entry.task, key = str(job["function"]), str(job["key"])
    if key.startswith("cron:"):
        raise Unreadable("a cron job of SAQ made it: make it a schedule here")
    done = int(job.get("attempts") or 0)
    return ForeignJob(
        source="saq",
        id=f"{shelf.queue}-{key}",
        queue=shelf.queue,
        task=entry.task,
        kwargs=dict(job.get("kwargs") or {}),
        due_ms=round(score * 1000) if shelf.later else None,
        max_attempts=max(int(job.get("retries", 1)) - done, 1),
        timeout_s=job.get("timeout", _DEFAULT_TIMEOUT_S) or None,
        backoff=_backoff(job),
        keys=[entry.id],
        parts=[] if shelf.later else [("zset", set_key, entry.id)],
    )


def _job(record: bytes) -> dict[str, Any]:
    found = read_json(record, "SAQ")
    if not isinstance(found, dict):
        raise Unreadable("it is not a job")
    return found


def _backoff(job: dict[str, Any]) -> dict[str, Any] | None:
    delay, grows = job.get("retry_delay") or 0, job.get("retry_backoff")
    if not delay:
        return None
    if not grows:
        return {"type": "fixed", "delay": delay, "jitter": 0}
    cap = {} if grows is True else {"cap": max(float(grows), delay)}
    return {"type": "exponential", "delay": delay, "jitter": 1, **cap}
