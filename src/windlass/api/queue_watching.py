"""Waiting for jobs of a queue, and following their events and live output."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from windlass.api.added_job import AddedJob
from windlass.api.event_feed import EventFeed, read_events
from windlass.api.event_values import EventValues
from windlass.api.queue_context import QueueContext
from windlass.backend import requests as rq
from windlass.core.ids import check_task_name
from windlass.core.job import EVENT_DATA_BYTES, EVENTS_KEPT, Event, JobRecord, JobRef
from windlass.core.option_values import WAIT_S, check_after, check_int, seconds_to_ms
from windlass.core.options import JobOptions
from windlass.errors import WindlassError
from windlass.jobs.live_output import StreamChunk, read_stream
from windlass.jobs.results import Waiters
from windlass.serde import JSON, encode_payload

if TYPE_CHECKING:
    from windlass.api.interfaces import App


class WatchVerbs(QueueContext):
    """The part of ``Queue`` that waits for jobs and follows their events and live output."""

    def __init__(self, name: str, app: App, defaults: JobOptions) -> None:
        super().__init__(name, app, defaults)
        self._feed: EventFeed | None = None
        self._waiters: WeakKeyDictionary[asyncio.AbstractEventLoop, Waiters] = WeakKeyDictionary()

    async def wait_for(self, ref: JobRef, timeout: float | timedelta | None = WAIT_S) -> JobRecord:
        """Wait until a job has finished and return its record."""
        timeout_ms = None if timeout is None else seconds_to_ms(timeout, "timeout")
        return await self._waiters_here().finished(ref, timeout_ms)

    async def stop_waiting(self, error: WindlassError) -> None:
        """Raise ``error`` in all pending waits of this queue, and stop its callbacks."""
        if self._feed is not None:
            await self._feed.stop()
        here = asyncio.get_running_loop()
        for loop, waiters in list(self._waiters.items()):
            if loop is here:
                await waiters.close(error)
            else:
                with suppress(RuntimeError):  # that loop has ended, and so have its waits
                    loop.call_soon_threadsafe(waiters.end, error)
        self._waiters.clear()

    def _waiters_here(self) -> Waiters:
        loop = asyncio.get_running_loop()
        waiters = self._waiters.get(loop)
        if waiters is None:
            waiters = self._waiters[loop] = Waiters(self.store, self.name)
        return waiters

    def events(self, after: int | None = None, *, values: bool = True) -> AsyncGenerator[Event, None]:
        """Iterate over the queue's events as they happen.

        ``after`` an event id replays from there (0: all that are kept). With ``values``, ``completed`` events
        include the job's ``return_value`` while it is kept, which costs a read.
        """
        if after is not None:
            check_after(after)
        fill = EventValues(self.store, self.app.codecs, self.name).fill if values else None
        return read_events(self.store, self.name, after, self._closing, fill)

    def on(self, event: str, callback: Callable[[Any], Any], *, job_id: str | None = None) -> None:
        """Call ``callback(event)`` at every event of that name in this queue, or only of one job.

        Events of all processes are received. Callbacks of ``added`` receive the ``Job``. Needs a running
        event loop and ends with ``close``. ``QueueEvents`` does the same without a queue.
        """
        if self._feed is None:
            values = EventValues(self.store, self.app.codecs, self.name)
            self._feed = EventFeed(self.store, self.name, values)
        hand = self._job_of if event == "added" else None
        self._feed.on(event, callback, job_id=job_id, hand=hand)

    async def publish_event(self, name: str, data: Any = None, *, job_id: str | None = None) -> None:
        """Publish a custom event in this queue, for callbacks of ``on("custom:name", callback)``.

        ``data`` is any JSON value of at most 10,000 bytes. The event is ordered, kept and replayed like
        others, and has no other effect. If it is sent twice (after a lost reply), it is stored twice.
        """
        text = encode_payload(JSON, data, EVENT_DATA_BYTES).decode()
        about = "" if job_id is None else self._ref(job_id).id
        request = rq.PublishEvent(queue=self.name, name=check_task_name(name), data=text, job_id=about)
        await self.store.execute(request)

    async def trim_events(self, keep: int) -> int:
        """Delete all events of this queue except the newest ``keep``. Returns how many were deleted.

        A reader that has not read them receives a ``gap``, as when the log exceeds its limit.
        """
        check_int("keep", keep, 0, EVENTS_KEPT)
        return await self.store.execute(rq.TrimEvents(queue=self.name, keep=keep))

    def read_stream(
        self, job_id: str, after: int = 0, *, skip_gap: bool = False
    ) -> AsyncGenerator[StreamChunk, None]:
        """Iterate over the live output of a job (``job.stream``) until the job has ended.

        ``after`` the ``index`` of a chunk continues from there. Raises ``HistoryTrimmedError`` when chunks in
        between are no longer kept, unless ``skip_gap``. Retries while the store is unreachable.
        """
        check_after(after)
        return read_stream(
            self.store, self.app.codecs, self._ref(job_id), after, skip_gap=skip_gap, closing=self._closing
        )

    async def _job_of(self, event: Event) -> AddedJob:
        """Return the job of an event. If its record is gone, the job has only the fields of the event."""
        record = await self.store.get(JobRef(self.name, event.job_id))
        if record is None:
            record = JobRecord(queue=self.name, id=event.job_id, task=event.task, payload=b"null")
        return AddedJob(self._as_queue, record, event)
