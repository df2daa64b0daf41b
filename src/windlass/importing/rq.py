"""RQ: ids in lists (oldest left) and, for scheduled jobs, in sorted sets by second; a hash per job.

A job's call is a tuple (function, instance, args, kwargs), pickled unless the project chose JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from windlass.importing.client import SourceClient
from windlass.importing.model import Entry, ForeignJob, Found, Shelf, Unreadable, refuses, to_text
from windlass.importing.plain import load_plain
from windlass.serde import inflate

#: The first byte of data that zlib compressed.
_COMPRESSED = b"x"


class RqReader:
    """Reads RQ's jobs in Redis, including scheduled ones."""

    source = "rq"

    def __init__(self, client: SourceClient, prefix: str = "") -> None:
        self._client = client
        self._prefix = prefix or "rq:"

    async def shelves(self) -> list[Shelf]:
        start = f"{self._prefix}queue:"
        names = sorted(
            to_text(key).removeprefix(start) for key in await self._client.members(f"{self._prefix}queues")
        )
        waiting = [Shelf(name, f"{start}{name}".encode(), "list") for name in names]
        later = [
            Shelf(name, f"{self._prefix}scheduled:{name}".encode(), "zset", later=True) for name in names
        ]
        return waiting + later

    async def read(self, shelf: Shelf, entries: Sequence[tuple[bytes, float]]) -> list[Found]:
        keys = [f"{self._prefix}job:{to_text(job_id)}" for job_id, _ in entries]
        records = await self._client.hashes(keys)
        return [
            _read(Entry(to_text(job_id)), shelf, score, key, record)
            for (job_id, score), key, record in zip(entries, keys, records, strict=True)
        ]

    async def left(self) -> dict[str, int]:
        found = {"that wait for other jobs (deferred)": 0, "that run (started)": 0}
        for shelf in await self.shelves():
            if shelf.later:
                found["that wait for other jobs (deferred)"] += await self._client.size(
                    f"{self._prefix}deferred:{shelf.queue}", "zset"
                )
                found["that run (started)"] += await self._client.size(
                    f"{self._prefix}wip:{shelf.queue}", "zset"
                )
        return {what: count for what, count in found.items() if count}


@refuses("a job of RQ")
def _read(entry: Entry, shelf: Shelf, score: float, key: str, record: dict[bytes, bytes]) -> ForeignJob:
    if not record:
        raise Unreadable("its record is gone: RQ itself would drop it")
    task, instance, args, kwargs = _call(record[b"data"])
    entry.task = str(task)
    if instance is not None:
        raise Unreadable("it calls a method of a stored object: let RQ run it")
    if record.get(b"dependency_ids"):
        raise Unreadable("it waits for other jobs: let RQ finish them")
    left = record.get(b"retries_left")
    return ForeignJob(
        source="rq",
        id=entry.id,
        queue=shelf.queue,
        task=entry.task,
        args=list(args),
        kwargs=dict(kwargs),
        due_ms=round(score * 1000) if shelf.later else None,
        max_attempts=int(left) + 1 if left else 1,
        backoff=_backoff(record.get(b"retry_intervals")),
        timeout_s=_timeout(record.get(b"timeout")),
        keys=[key, f"{key}:dependents"],
    )


def _call(data: bytes) -> Any:
    """(function, instance, args, kwargs) of a job's data."""
    if data[:1] == _COMPRESSED:  # releases before 0.12 did not compress
        data = inflate(data)
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        found = load_plain(data)
    if not isinstance(found, (list, tuple)) or len(found) != 4:
        raise Unreadable("its data is not a call")
    return found


def _backoff(intervals: bytes | None) -> dict[str, Any] | None:
    """RQ has a list of delays. We use the first as a fixed delay."""
    given = msgspec.json.decode(intervals) if intervals else []
    return {"type": "fixed", "delay": given[0], "jitter": 0} if given and given[0] else None


def _timeout(text: bytes | None) -> float | None:
    seconds = float(text) if text else 0
    return seconds if seconds > 0 else None
