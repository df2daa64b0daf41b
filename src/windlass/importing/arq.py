"""arq: ids in a sorted set per queue, by the millisecond at which they are due; a record per job.

A record is a pickle of ``{"t", "f", "a", "k", "et"}`` unless the project chose another serialiser; JSON and
MessagePack are read as well. A job stays in its set while it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from windlass.importing.client import SourceClient
from windlass.importing.model import NOT_A_JOB, ForeignJob, Found, Refusal, Shelf, Unreadable
from windlass.importing.plain import load_plain

#: Sorted sets of arq that are no queues.
_NO_QUEUES = frozenset({"abort"})
#: How a pickle of any protocol since 2 begins.
_PICKLE = b"\x80"


class ArqReader:
    """Reads what arq's producers left in Redis: every queue whose key begins with the prefix."""

    source = "arq"

    def __init__(self, client: SourceClient, prefix: str = "") -> None:
        self._client = client
        self._prefix = prefix or "arq:"

    async def shelves(self) -> list[Shelf]:
        found: list[Shelf] = []
        for key in await self._client.scan(f"{self._prefix}*", kind="zset"):
            name = key.decode().removeprefix(self._prefix)
            if name not in _NO_QUEUES:
                found.append(Shelf(name.replace(":", "-"), key, "zset"))
        return found

    async def read(self, shelf: Shelf, entries: Sequence[tuple[bytes, float]]) -> list[Found]:
        ids = [job_id.decode() for job_id, _ in entries]
        records = await self._client.texts([f"arq:job:{job_id}" for job_id in ids])
        running = await self._client.texts([f"arq:in-progress:{job_id}" for job_id in ids])
        return [
            _read(shelf, job_id, score, record, held is not None)
            for (_, score), job_id, record, held in zip(entries, ids, records, running, strict=True)
        ]

    async def left(self) -> dict[str, int]:
        running = len(await self._client.scan("arq:in-progress:*"))
        return {"that run (stop the workers first)": running} if running else {}


def _read(shelf: Shelf, job_id: str, score: float, record: bytes | None, running: bool) -> Found:
    task = ""
    try:
        if running:
            raise Unreadable("a worker of arq runs it")
        if record is None:
            raise Unreadable("its record is gone: arq itself would drop it")
        call = _call(record)
        task = str(call["f"])
        if task.startswith("cron:"):
            raise Unreadable("a cron job of arq made it: make it a schedule here")
        return ForeignJob(
            source="arq",
            id=f"{shelf.queue}-{job_id}",
            queue=shelf.queue,
            task=task,
            args=list(call["a"]),
            kwargs=dict(call["k"]),
            due_ms=int(score),
            keys=[f"arq:job:{job_id}", f"arq:retry:{job_id}"],
        )
    except Unreadable as exc:
        return Refusal(str(exc), task, job_id)
    except NOT_A_JOB as exc:
        return Refusal(f"it is not a job of arq ({type(exc).__name__}: {exc})", task, job_id)


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
