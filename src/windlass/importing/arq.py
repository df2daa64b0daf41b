"""arq: ids in a sorted set per queue, by due time in milliseconds, and a record per job.

A record is a pickle of ``{"t", "f", "a", "k", "et"}`` unless the project uses another serialiser; JSON and
MessagePack are supported too. A job stays in its set while it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from windlass.importing.client import SourceClient
from windlass.importing.model import Entry, ForeignJob, Found, Shelf, Unreadable, refuses, to_text
from windlass.importing.plain import load_plain

#: Sorted sets of arq that are not queues.
_NO_QUEUES = frozenset({"abort"})
#: The first byte of a pickle of protocol 2 or later.
_PICKLE = b"\x80"


class ArqReader:
    """Reads arq's jobs in Redis: every queue whose key begins with the prefix."""

    source = "arq"

    def __init__(self, client: SourceClient, prefix: str = "") -> None:
        self._client = client
        self._prefix = prefix or "arq:"

    async def shelves(self) -> list[Shelf]:
        found: list[Shelf] = []
        for key in await self._client.scan(f"{self._prefix}*", kind="zset"):
            name = to_text(key).removeprefix(self._prefix)
            if name not in _NO_QUEUES:
                found.append(Shelf(name.replace(":", "-"), key, "zset"))
        return found

    async def read(self, shelf: Shelf, entries: Sequence[tuple[bytes, float]]) -> list[Found]:
        ids = [to_text(job_id) for job_id, _ in entries]
        records = await self._client.texts([f"arq:job:{job_id}" for job_id in ids])
        running = await self._client.texts([f"arq:in-progress:{job_id}" for job_id in ids])
        return [
            _read(Entry(job_id), shelf, score, record, held is not None)
            for (_, score), job_id, record, held in zip(entries, ids, records, running, strict=True)
        ]

    async def left(self) -> dict[str, int]:
        running = len(await self._client.scan("arq:in-progress:*"))
        return {"that run (stop the workers first)": running} if running else {}


@refuses("a job of arq")
def _read(entry: Entry, shelf: Shelf, score: float, record: bytes | None, running: bool) -> ForeignJob:
    if running:
        raise Unreadable("a worker of arq runs it")
    if record is None:
        raise Unreadable("its record is gone: arq itself would drop it")
    call = _call(record)
    entry.task = str(call["f"])
    if entry.task.startswith("cron:"):
        raise Unreadable("a cron job of arq made it: make it a schedule here")
    return ForeignJob(
        source="arq",
        id=f"{shelf.queue}-{entry.id}",
        queue=shelf.queue,
        task=entry.task,
        args=list(call["a"]),
        kwargs=dict(call["k"]),
        due_ms=int(score),
        keys=[f"arq:job:{entry.id}", f"arq:retry:{entry.id}"],
    )


def _call(record: bytes) -> dict[str, Any]:
    found: Any
    if record[:1] == _PICKLE and record[-1:] == b".":
        found = load_plain(record)
    elif record[:1] == b"{":
        found = msgspec.json.decode(record)
    else:
        found = msgspec.msgpack.decode(record)
    if not isinstance(found, dict) or not {"f", "a", "k"} <= found.keys():
        raise Unreadable("its record is not a call")
    return found
