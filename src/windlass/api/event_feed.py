"""A queue's events as an async iterator or as callbacks, with replay.

Events are kept in the store. Every change of state has exactly one event, in order, with an id that never
repeats. A reader that continues from its last id misses no event that is still kept (10,000 per queue), and
receives a ``gap`` if it missed any. No part of Windlass depends on events for correctness.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

from windlass.api.event_values import VALUED, EventValues
from windlass.backend import requests as rq
from windlass.backend.closing import Closing
from windlass.backend.store import Store
from windlass.core.job import Event, EventType
from windlass.core.lasting_task import LastingTask
from windlass.core.option_values import check_after, check_known
from windlass.errors import ClosedError, StorageError

log: Final = logging.getLogger("windlass.events")


class Match(NamedTuple):
    """Matches events of one type, or only those whose data has ``key`` = ``value`` (None: no such key)."""

    type: EventType
    key: str = ""
    value: str | None = None

    def fits(self, event: Event) -> bool:
        """Whether the data of ``event``, which has this type, matches."""
        return not self.key or event.data.get(self.key) == self.value


_SNOOZES = tuple(
    Match(kind, "reason", reason)
    for kind in (EventType.SCHEDULED, EventType.RELEASED)
    for reason in ("snoozed", "rate_limited")
)
#: Names of these events in other job systems. ``added`` also matches jobs that are added for later, or whose
#: delay is changed.
ALIASES: dict[str, tuple[Match, ...]] = {
    "added": (Match(EventType.ENQUEUED, "reason"), Match(EventType.SCHEDULED, "reason")),
    "waiting": (Match(EventType.ENQUEUED), Match(EventType.PROMOTED)),
    "queued": (Match(EventType.ENQUEUED),),
    "delayed": (Match(EventType.SCHEDULED), Match(EventType.RETRYING)),
    "active": (Match(EventType.STARTED),),
    "processing": (Match(EventType.STARTED),),
    "failing": (Match(EventType.RETRYING),),
    "retries-exhausted": (Match(EventType.FAILED, "reason", "attempts"),),
    "expired": (Match(EventType.FAILED, "reason", "expired"),),
    "duplicated": (Match(EventType.DEDUPLICATED),),
    "revoked": (Match(EventType.CANCELLED),),
    "requeued": (Match(EventType.RELEASED),),
    "interrupted": (Match(EventType.RELEASED, "reason", "shutdown"),),
    "snoozed": _SNOOZES,
    "priority-changed": (Match(EventType.CHANGED, "what", "priority"),),
    "group-rate-limited": (Match(EventType.PARKED),),
    "cleaned": (Match(EventType.REMOVED),),
    "job_snoozed": _SNOOZES,
    "job_interrupted": (Match(EventType.RELEASED, "reason", "shutdown"),),
    "queue_paused": (Match(EventType.PAUSED),),
    "queue_resumed": (Match(EventType.RESUMED),),
}

#: The prefix of the names of custom events.
CUSTOM: Final = "custom:"
#: Read the log at least this often, even without a hint; also the pause after an error.
_RECHECK_MS = 1_000

Callback = Callable[[Any], Any]
Fill = Callable[[list[Event]], Awaitable[list[Event]]]


class _Registered(NamedTuple):
    """A callback and the events that it is registered for."""

    callback: Callback
    #: None for every event.
    matches: tuple[Match, ...] | None
    job_id: str | None
    #: Converts the event to the callback's argument; None passes the event itself.
    hand: Callable[[Event], Awaitable[Any]] | None

    def wants(self, event: Event) -> bool:
        return self.job_id in (None, event.job_id) and (
            self.matches is None or any(event.type is m.type and m.fits(event) for m in self.matches)
        )

    def wants_values(self) -> bool:
        return self.matches is None or any(match.type in VALUED for match in self.matches)


class EventCursor:
    """The position of a reader in a queue's event log. It detects missing events.

    Events are missing when the log was trimmed past the position, or when the store lost its data and the log
    began again. To detect the latter, each read includes the last event that was read before. If another
    event has its id, and all events of the log are newer, it is a new log.
    """

    def __init__(self, store: Store, queue: str, after: int) -> None:
        self._store = store
        self._queue = queue
        self._after = after
        self._last: Event | None = None

    async def read(self) -> list[Event]:
        """Return new events. If events before them are missing, the first is a ``gap``."""
        after, again = self._after, self._last is not None
        page = await self._page(after - 1 if again else after)
        lost = page.last_id < after
        if again and page.events and page.events[0].id == after and page.events[0] != self._last:
            lost = await self._is_new_log()
        if lost:
            after, page = 0, await self._page(0)
        fresh = [event for event in page.events if event.id > after]
        if lost or (after and fresh and fresh[0].id > after + 1):
            fresh.insert(0, self._gap(page.oldest_id, "lost" if lost else "trimmed"))
        if fresh:
            newest = fresh[-1]
            self._after, self._last = newest.id, None if newest.type is EventType.GAP else newest
        return fresh

    async def _page(self, after: int, limit: int = 1_000) -> rq.EventPage:
        return await self._store.execute(rq.ReadEvents(queue=self._queue, after=after, limit=limit))

    async def _is_new_log(self) -> bool:
        """Whether all events of the log are newer than the last event that was read."""
        assert self._last is not None
        oldest = (await self._page(0, 1)).events
        return bool(oldest) and oldest[0].at_ms >= self._last.at_ms

    def _gap(self, oldest: int, reason: str) -> Event:
        data: dict[str, str | int | None] = {"oldest": oldest, "reason": reason}
        return Event(oldest - 1, self._store.clock.now_ms(), EventType.GAP, data=data)


async def read_events(
    store: Store, queue: str, after: int | None, closing: Closing, fill: Fill | None = None
) -> AsyncGenerator[Event, None]:
    """Iterate over events as they happen, until ``closing``.

    ``after`` an event id replays from there (0: all that are kept). ``fill`` adds values to the events. When
    events are missing (the reader was too slow, or the store lost its data), a ``gap`` comes first.
    """
    closing.check()
    listener = await store.listen([f"event:{queue}"])
    closing.watch(listener)
    try:
        if after is None:
            after = (await store.execute(rq.ReadEvents(queue=queue, limit=1))).last_id
        cursor = EventCursor(store, queue, after)
        while True:
            events = await cursor.read()
            for event in events if fill is None or not events else await fill(events):
                yield event
            if not events:
                await listener.wait(_RECHECK_MS, store.clock)
            closing.check()
    finally:
        listener.close()


def _matches(event: str) -> tuple[Match, ...] | None:
    """Return the matches for the name of an event; None for all events."""
    if event.startswith(CUSTOM):
        return (Match(EventType.CUSTOM, "name", event.removeprefix(CUSTOM)),)
    check_known([event], [*EventType, *ALIASES, "*"], "event")
    return None if event == "*" else ALIASES.get(event) or (Match(EventType(event)),)


class EventFeed:
    """Calls callbacks for the events of one queue, on one event loop. Coroutines are awaited in order."""

    def __init__(self, store: Store, queue: str, values: EventValues, after: int | None = None) -> None:
        self._store = store
        self._values = values
        self._queue = queue
        if after is not None:
            check_after(after)
        #: The id of the last event that was delivered. Pass it as ``after`` to continue from here.
        self.last_id = after
        self._callbacks: list[_Registered] = []
        self._task: LastingTask | None = None
        self._ready = asyncio.Event()
        self._closing = Closing(f"the reader of events of queue {queue!r}", "make another QueueEvents")

    def on(
        self,
        event: str,
        callback: Callback,
        *,
        job_id: str | None = None,
        hand: Callable[[Event], Awaitable[Any]] | None = None,
    ) -> None:
        """Call ``callback(event)`` for every event of that name, or of an alias; ``*`` means all.

        ``custom:name`` is a custom event (``queue.publish_event``), and ``custom`` any of them. ``job_id``
        limits this to one job. If ``hand`` is given, the callback receives its result instead of the
        event.
        """
        self._callbacks.append(_Registered(callback, _matches(event), job_id, hand))
        with suppress(RuntimeError):  # no loop yet: the application calls start()
            self.start()

    def off(self, callback: Callback) -> None:
        """Remove ``callback`` for all events."""
        self._callbacks = [entry for entry in self._callbacks if entry.callback is not callback]

    async def _calls(self, event: Event) -> list[tuple[Callback, Any]]:
        """Return the callbacks for ``event`` with their arguments.

        If an argument cannot be read, no callback is called and the event is read again later.
        """
        wanting = [entry for entry in self._callbacks if entry.wants(event)]
        try:
            return [(e.callback, event if e.hand is None else await e.hand(event)) for e in wanting]
        except StorageError:
            self.last_id = event.id - 1  # read it again
            raise

    async def _fill_for_callbacks(self, events: list[Event]) -> list[Event]:
        """Add values to ``events`` if a callback needs them."""
        wanted = any(entry.wants_values() for entry in self._callbacks)
        return await self._values.fill(events) if wanted else events

    def start(self) -> None:
        """Start to listen on the running event loop. ``on`` calls this."""
        if self._task is None:
            asyncio.get_running_loop()  # raises before a coroutine is made
            self._task = LastingTask(f"events-{self._queue}", self._run, self._store.clock)

    async def wait_until_ready(self) -> None:
        """Return when all events from now on will be received."""
        self._closing.check()
        self.start()
        assert self._task is not None
        over = self._task.over
        while not self._ready.is_set() and not over.done():
            ready = asyncio.ensure_future(self._ready.wait())
            either: list[asyncio.Future[Any]] = [ready, over]
            try:
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            finally:
                ready.cancel()
        if not self._ready.is_set():  # the task ended before it was ready
            self._closing.check()
            raise self._store.closed_error()

    async def __aiter__(self) -> AsyncGenerator[Event, None]:
        async for event in self._read(self._values.fill):
            yield event

    async def _read(self, fill: Fill) -> AsyncGenerator[Event, None]:
        async for event in read_events(self._store, self._queue, self.last_id, self._closing, fill):
            self.last_id = event.id
            yield event

    async def stop(self) -> None:
        """Stop listening. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            await task.stop()

    async def _run(self) -> None:
        """Read events and call the callbacks. After an error it continues from the last event."""
        while True:
            try:
                if self.last_id is None:
                    request = rq.ReadEvents(queue=self._queue, limit=1)
                    self.last_id = (await self._store.execute(request)).last_id
                self._ready.set()
                async for event in self._read(self._fill_for_callbacks):
                    for callback, subject in await self._calls(event):
                        await _call(callback, subject, event.type)
            except ClosedError as exc:
                log.info("the callbacks for events of queue %s end: %s", self._queue, exc)
                return
            except StorageError as exc:
                log.warning("events of queue %s are unreachable, retrying: %s", self._queue, exc)
            except Exception:
                log.exception("unexpected error while reading the events of queue %s, retrying", self._queue)
            await self._store.clock.wait(asyncio.Event(), _RECHECK_MS)


async def _call(callback: Callback, subject: Any, what: EventType) -> None:
    try:
        answer = callback(subject)
        if inspect.isawaitable(answer):
            await answer
    except (Exception, asyncio.CancelledError) as exc:
        task = asyncio.current_task()
        if isinstance(exc, asyncio.CancelledError) and task is not None and task.cancelling():
            raise  # not something that the callback awaited, but this task
        log.exception("an event callback failed on %s", what)
