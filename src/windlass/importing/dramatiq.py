"""Dramatiq on Redis: ids in a list per queue (oldest left), and their messages in a separate hash.

Delayed messages, including retries, are in a separate queue ``NAME.DQ``, with their due time. Messages that
workers hold are in sets, and return to their list when the workers stop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from windlass.importing.client import SourceClient
from windlass.importing.model import Entry, ForeignJob, Found, Shelf, Unreadable, read_json, refuses, to_text

_MESSAGES = ".msgs"
_DELAYED = ".DQ"
_DEAD = ".XQ"
#: Options of messages that belong to a larger unit, which cannot be imported.
_COMPOSED = {
    "pipe_target": "a pipeline",
    "group_completion_uuid": "a group with callbacks",
    "group_completion_callbacks": "a group with callbacks",
}


class DramatiqReader:
    """Reads Dramatiq's messages in Redis."""

    source = "dramatiq"

    def __init__(self, client: SourceClient, prefix: str = "") -> None:
        self._client = client
        self._start = f"{(prefix or 'dramatiq').rstrip(':')}:"

    async def shelves(self) -> list[Shelf]:
        found: list[Shelf] = []
        for name in await self._queues():
            later = name.endswith(_DELAYED)
            queue = name.removesuffix(_DELAYED)
            found.append(Shelf(queue, f"{self._start}{name}".encode(), "list", later=later))
        return sorted(found, key=lambda shelf: shelf.later)

    async def _queues(self) -> list[str]:
        keys = await self._client.scan(f"{self._start}*{_MESSAGES}")
        names = [to_text(key).removeprefix(self._start).removesuffix(_MESSAGES) for key in keys]
        return [name for name in names if not name.endswith(_DEAD)]

    async def read(self, shelf: Shelf, entries: Sequence[tuple[bytes, float]]) -> list[Found]:
        messages = f"{shelf.key.decode()}{_MESSAGES}"
        ids = [to_text(entry) for entry, _ in entries]
        found = await self._client.fields(messages, ids)
        return [_read(Entry(one), shelf, data, messages) for one, data in zip(ids, found, strict=True)]

    async def left(self) -> dict[str, int]:
        found = {"held by workers (stop them, and they return to their queue)": 0, "dead letters": 0}
        for key in await self._client.scan(f"{self._start}__acks__.*"):
            found["held by workers (stop them, and they return to their queue)"] += len(
                await self._client.members(to_text(key))
            )
        for key in await self._client.scan(f"{self._start}*{_DEAD}", kind="zset"):
            found["dead letters"] += await self._client.size(key, "zset")
        return {what: count for what, count in found.items() if count}


@refuses("a message of Dramatiq")
def _read(entry: Entry, shelf: Shelf, data: bytes | None, messages: str) -> ForeignJob:
    if data is None:
        raise Unreadable("its message is gone: Dramatiq itself would drop it")
    message = _message(data)
    entry.task, options = str(message["actor_name"]), message["options"]
    for option, what in _COMPOSED.items():
        if options.get(option):
            raise Unreadable(f"it is part of {what}: let Dramatiq finish it, or write it as a flow")
    most, done = options.get("max_retries"), int(options.get("retries") or 0)
    return ForeignJob(
        source="dramatiq",
        id=str(message["message_id"]),
        queue=shelf.queue,
        task=entry.task,
        args=list(message["args"]),
        kwargs=dict(message["kwargs"]),
        due_ms=int(options["eta"]) if options.get("eta") else None,
        max_attempts=None if most is None else max(int(most) - done, 0) + 1,
        timeout_s=options["time_limit"] / 1000 if options.get("time_limit") else None,
        parts=[("hash", messages, entry.id)],
    )


def _message(data: bytes) -> dict[str, Any]:
    found = read_json(data, "Dramatiq")
    if not isinstance(found, dict) or not isinstance(found.get("options"), dict):
        raise Unreadable("it is not a message")
    return found
