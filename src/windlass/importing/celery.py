"""Celery on Redis: messages in lists, one per queue and priority step, oldest at the right end.

``_kombu.binding.QUEUE`` names the queues. A task with an ETA waits in the same list until a worker reads it.
Messages that workers hold are in ``unacked``, and return to the list when the workers stop.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from windlass.importing.client import SourceClient
from windlass.importing.model import Entry, ForeignJob, Found, Shelf, Unreadable, refuses, to_text
from windlass.importing.plain import load_plain
from windlass.serde import inflate

_BINDING = "_kombu.binding."
#: Separates a queue's name from its priority step. Step 0 runs first and has no suffix.
_SEPARATOR = "\x06\x16"
_STEPS = (0, 3, 6, 9)


class CeleryReader:
    """Reads Celery's messages in Redis."""

    source = "celery"

    def __init__(self, client: SourceClient, prefix: str = "") -> None:
        self._client = client
        self._prefix = prefix

    async def shelves(self) -> list[Shelf]:
        found: list[Shelf] = []
        for queue in await self._queues():
            for step in _STEPS:
                name = queue if step == 0 else f"{queue}{_SEPARATOR}{step}"
                found.append(Shelf(queue, f"{self._prefix}{name}".encode(), "list", "right"))
        return found

    async def _queues(self) -> list[str]:
        start = f"{self._prefix}{_BINDING}"
        bound = [to_text(key).removeprefix(start) for key in await self._client.scan(f"{start}*")]
        # Private queues of workers and clients, for remote control and replies.
        return sorted(
            name for name in bound if not name.endswith(".pidbox") and not name.startswith("celeryev")
        )

    async def read(self, shelf: Shelf, entries: Sequence[tuple[bytes, float]]) -> list[Found]:
        return [_read(Entry(""), shelf.queue, raw) for raw, _ in entries]

    async def left(self) -> dict[str, int]:
        held = await self._client.hash_size(f"{self._prefix}unacked")
        return {"held by workers (stop them, and they return to their queue)": held} if held else {}


@refuses("a message of Celery's protocol 2")
def _read(entry: Entry, queue: str, raw: bytes) -> ForeignJob:
    """Convert one message."""
    message = msgspec.json.decode(raw)
    headers, properties = message["headers"], message["properties"]
    entry.task, entry.id = str(headers["task"]), str(headers["id"])
    args, kwargs, embed = _body(message, headers, properties)
    _check_embed(embed, headers)
    return ForeignJob(
        source="celery",
        id=entry.id,
        queue=queue,
        task=entry.task,
        args=list(args),
        kwargs=dict(kwargs),
        due_ms=_instant(headers.get("eta")),
        expires_ms=_instant(headers.get("expires")),
        priority=-int(properties.get("priority") or 0),
        timeout_s=_timeout(headers.get("timelimit")),
    )


def _body(message: dict[str, Any], headers: dict[str, Any], properties: dict[str, Any]) -> Any:
    body = message["body"]
    data = base64.b64decode(body) if properties.get("body_encoding") == "base64" else body.encode()
    compression = headers.get("compression")
    if compression in ("application/x-gzip", "gzip", "zlib"):
        data = inflate(data)
    elif compression:
        raise Unreadable(f"it is compressed with {compression}: let Celery run it")
    match message.get("content-type"):
        case "application/json":
            return _revive(msgspec.json.decode(data))
        case "application/x-python-serialize":
            return load_plain(data)
        case "application/x-msgpack":
            return msgspec.msgpack.decode(data)
        case other:
            raise Unreadable(f"its content type is {other}: let Celery run it")


def _revive(value: Any) -> Any:
    """Convert kombu's ``{"__type__": ..., "__value__": ...}`` (dates, UUIDs, decimals) to text."""
    if isinstance(value, dict):
        if value.keys() == {"__type__", "__value__"}:
            inner = value["__value__"]
            return inner["hex"] if isinstance(inner, dict) and "hex" in inner else inner
        return {key: _revive(inner) for key, inner in value.items()}
    return [_revive(inner) for inner in value] if isinstance(value, list) else value


def _check_embed(embed: dict[str, Any], headers: dict[str, Any]) -> None:
    parts = [name for name in ("callbacks", "errbacks", "chain", "chord") if embed.get(name)]
    if parts or headers.get("group"):
        what = ", ".join(parts or ["group"])
        raise Unreadable(f"it is part of a canvas ({what}): let Celery finish it, or write it as a flow")


def _instant(text: Any) -> int | None:
    if text is None:
        return None
    moment = datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return round(aware.timestamp() * 1000)


def _timeout(limits: Any) -> float | None:
    hard, soft = limits or (None, None)
    given = [float(limit) for limit in (soft, hard) if limit]
    return given[0] if given else None
