"""A queue's events as an async iterator or as callbacks, with replay.

Events live in the store: every change of state has exactly one, in order, with an id that never repeats.
A reader that remembers the last id misses nothing that is still kept (10,000 per queue). Nothing in
Windlass depends on them for correctness.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Any

from windlass.backend import requests as rq
from windlass.backend.store import Store
from windlass.core.job import Event, EventType
from windlass.core.options import check_known
from windlass.errors import StorageError

log = logging.getLogger("windlass.events")

#: Names of other systems for our events.
ALIASES = {
    "added": "enqueued",
    "waiting": "enqueued",
    "queued": "enqueued",
    "delayed": "scheduled",
    "active": "started",
    "processing": "started",
    "failing": "retrying",
    "duplicated": "deduplicated",
    "revoked": "cancelled",
}

#: Look at the log at least this often, hints or not; after an error too.
_RECHECK_MS = 1_000

Callback = Callable[[Event], Any]


async def read_events(store: Store, queue: str, after: int | None = None) -> AsyncGenerator[Event, None]:
    """Events as they happen; ``after`` an event id replays from there (0: all kept)."""
    listener = await store.listen([f"event:{queue}"])
    try:
        if after is None:
            after = (await store.execute(rq.ReadEvents(queue=queue, limit=1))).last_id
        while True:
            page = await store.execute(rq.ReadEvents(queue=queue, after=after))
            for event in page.events:
                after = event.id
                yield event
            if not page.events:
                await listener.wait(_RECHECK_MS, store.clock)
    finally:
        listener.close()


class EventFeed:
    """Callbacks for the events of one queue, run on one event loop; coroutines are awaited in order."""

    def __init__(self, store: Store, queue: str, after: int | None = None) -> None:
        self._store = store
        self._queue = queue
        #: The id of the last event that was handed out; give it as ``after`` to go on from here.
        self.last_id = after
        self._callbacks: dict[str, list[Callback]] = {}
        self._task: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()

    def on(self, event: str, callback: Callback) -> None:
        """Call ``callback(event)`` for every event of that name (or another system's); ``*`` means all."""
        name = ALIASES.get(event, event)
        check_known([name], [*EventType, "*"], "event")
        self._callbacks.setdefault(name, []).append(callback)
        with suppress(RuntimeError):  # no loop yet: start() is called by hand
            self.start()

    def start(self) -> None:
        """Begin to listen on the running event loop. ``on`` does it by itself."""
        if self._task is None:
            loop = asyncio.get_running_loop()
            self._task = loop.create_task(self._run(), name=f"windlass-events-{self._queue}")

    async def wait_until_ready(self) -> None:
        """Return when everything that happens from now on will be heard."""
        self.start()
        await self._ready.wait()

    async def __aiter__(self) -> AsyncGenerator[Event, None]:
        async for event in read_events(self._store, self._queue, self.last_id):
            self.last_id = event.id
            yield event

    async def stop(self) -> None:
        """Stop listening. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        """Hand out events; an unreachable store is asked again, from the last event on."""
        while True:
            try:
                if self.last_id is None:
                    request = rq.ReadEvents(queue=self._queue, limit=1)
                    self.last_id = (await self._store.execute(request)).last_id
                self._ready.set()
                async for event in self:
                    for name in (event.type.value, "*"):
                        for callback in list(self._callbacks.get(name, ())):
                            await _call(callback, event)
            except StorageError as exc:
                log.warning("events of queue %s are out of reach, trying again: %s", self._queue, exc)
                await self._store.clock.wait(asyncio.Event(), _RECHECK_MS)


async def _call(callback: Callback, event: Event) -> None:
    try:
        answer = callback(event)
        if inspect.isawaitable(answer):
            await answer
    except Exception:
        log.exception("an event callback failed on %s", event.type)
