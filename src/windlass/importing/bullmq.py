"""BullMQ: ids in ``wait`` (oldest right), ``prioritized`` and ``delayed`` (scores), a hash per job.

The data is JSON, so a job of a Node program is imported unchanged: an object becomes keyword arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from windlass.importing.client import SourceClient
from windlass.importing.model import Entry, ForeignJob, Found, Shelf, Unreadable, refuses, to_text

#: The score of a delayed job is its time in milliseconds times this, plus a counter.
_SCORE = 4096


class BullReader:
    """Reads BullMQ's jobs in Redis."""

    source = "bullmq"

    def __init__(self, client: SourceClient, prefix: str = "") -> None:
        self._client = client
        self._prefix = prefix or "bull"

    async def shelves(self) -> list[Shelf]:
        found: list[Shelf] = []
        for name in await self._queues():
            base = f"{self._prefix}:{name}"
            found += [
                Shelf(name, f"{base}:wait".encode(), "list", "right"),
                Shelf(name, f"{base}:paused".encode(), "list", "right"),
                Shelf(name, f"{base}:prioritized".encode(), "zset"),
                Shelf(name, f"{base}:delayed".encode(), "zset", later=True),
            ]
        return found

    async def _queues(self) -> list[str]:
        start = f"{self._prefix}:"
        metas = await self._client.scan(f"{start}*:meta")
        return sorted(to_text(key).removeprefix(start).removesuffix(":meta") for key in metas)

    async def read(self, shelf: Shelf, entries: Sequence[tuple[bytes, float]]) -> list[Found]:
        keys = [f"{self._prefix}:{shelf.queue}:{to_text(job_id)}" for job_id, _ in entries]
        records = await self._client.hashes(keys)
        return [
            _read(Entry(to_text(job_id)), shelf, score, key, record)
            for (job_id, score), key, record in zip(entries, keys, records, strict=True)
        ]

    async def left(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for name in await self._queues():
            base = f"{self._prefix}:{name}"
            for what, key, kind in (
                ("that run (active)", "active", "list"),
                ("that wait for children", "waiting-children", "zset"),
                ("schedulers (make them schedules here)", "repeat", "zset"),
            ):
                found[what] = found.get(what, 0) + await self._client.size(f"{base}:{key}", kind)
        return {what: count for what, count in found.items() if count}


@refuses("a job of BullMQ")
def _read(entry: Entry, shelf: Shelf, score: float, key: str, record: dict[bytes, bytes]) -> ForeignJob:
    entry.task = record.get(b"name", b"").decode(errors="replace")
    if not record:
        raise Unreadable("its record is gone, or it is a marker")
    if record.get(b"parentKey") or record.get(b"parent"):
        raise Unreadable("it is part of a flow: let BullMQ finish it, or write it as a flow here")
    if record.get(b"rjk") or entry.id.startswith("repeat:"):
        raise Unreadable("a scheduler made it: make it a schedule here")
    options: dict[str, Any] = msgspec.json.decode(record.get(b"opts", b"{}"))
    made = int(record.get(b"atm", record.get(b"attemptsMade", b"0")))
    return ForeignJob(
        source="bullmq",
        id=f"{shelf.queue}-{entry.id}",
        queue=shelf.queue,
        task=entry.task,
        data=msgspec.json.decode(record.get(b"data", b"null")),
        plain=True,
        due_ms=int(score // _SCORE) if shelf.later else None,
        priority=-int(record.get(b"priority", b"0") or 0),
        max_attempts=max(int(options.get("attempts") or 1) - made, 1),
        backoff=_backoff(options.get("backoff")),
        keys=[key, f"{key}:logs"],
    )


def _backoff(given: Any) -> dict[str, Any] | None:
    if isinstance(given, (int, float)) and given:
        return {"type": "fixed", "delay": given / 1000, "jitter": 0}
    if isinstance(given, dict) and given.get("type") in ("fixed", "exponential") and given.get("delay"):
        return {"type": given["type"], "delay": given["delay"] / 1000, "jitter": given.get("jitter") or 0}
    return None
