"""``QueueEvents``: a queue's events as callbacks or as an async iterator, with replay.

Events live in the store: every change of state has exactly one, in order, with an id that never repeats.
A reader that remembers the last id misses nothing that is still kept (10,000 per queue). Nothing in
Windlass depends on them for correctness.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from windlass.core.job import Event, EventType
from windlass.core.options import check_known
from windlass.queue import Queue

if TYPE_CHECKING:
    from windlass.app import Windlass

log = logging.getLogger("windlass.events")

#: BullMQ's names for our events.
ALIASES = {
    "added": "enqueued",
    "waiting": "enqueued",
    "delayed": "scheduled",
    "active": "started",
    "queued": "enqueued",
    "processing": "started",
    "failing": "retrying",
    "duplicated": "deduplicated",
    "revoked": "cancelled",
}

Callback = Callable[[Event], Any]


class QueueEvents:
    """Listens to one queue. ``on`` callbacks run on the event loop; coroutines are awaited in order."""

    def __init__(
        self, name: str, url_or_app: str | Windlass | None = None, *, after: int | None = None
    ) -> None:
        self.queue = Queue(name, url_or_app)
        #: The id of the last event that was handed out; give it as ``after`` to go on from here.
        self.last_id = after
        self._callbacks: dict[str, list[Callback]] = {}
        self._task: asyncio.Task[None] | None = None

    def on(self, event: str, callback: Callback) -> None:
        """Call ``callback(event)`` for every event of that name; ``*`` means all."""
        name = ALIASES.get(event, event)
        check_known([name], [*EventType, "*"], "event")
        self._callbacks.setdefault(name, []).append(callback)
        if self._task is None:
            with suppress(RuntimeError):  # no loop yet: start() is called by hand
                self.start()

    def start(self) -> None:
        """Begin to listen on the running event loop. ``on`` does it by itself."""
        if self._task is None:
            loop = asyncio.get_running_loop()
            self._task = loop.create_task(self._run(), name=f"windlass-events-{self.queue.name}")

    async def __aiter__(self) -> AsyncIterator[Event]:
        async for event in self.queue.events(self.last_id):
            self.last_id = event.id
            yield event

    async def close(self) -> None:
        """Stop listening. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        await self.queue.close()

    async def __aenter__(self) -> QueueEvents:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def _run(self) -> None:
        async for event in self:
            for name in (event.type.value, "*"):
                for callback in list(self._callbacks.get(name, ())):
                    await _call(callback, event)


async def _call(callback: Callback, event: Event) -> None:
    try:
        answer = callback(event)
        if inspect.isawaitable(answer):
            await answer
    except Exception:
        log.exception("an event callback failed on %s", event.type)
