"""The timeline of one job, from the event log and the history of its queue.

Both logs are ordered by time and read by position, so a binary search finds any time. If the part between a
job's first and last event is short, all of it is read. Otherwise only the times that the job's record names
are. The answer says if it is not complete for this reason, or because the log was trimmed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, NamedTuple, TypeVar

from windlass.backend import requests as rq
from windlass.backend.store import Store
from windlass.core.job import AttemptRecord, Event, JobRecord
from windlass.core.queue_time import QueueTime
from windlass.core.states import FINISHED
from windlass.dashboard.masking import Mask
from windlass.dashboard.shapes.jobs import AttemptEntry, EventEntry, QueueTimeEntry, Timeline
from windlass.errors import HistoryTrimmedError

#: Entries of a log that are read at once. The same number is read around each time of a long timeline, since
#: a batch settles many jobs at the same time.
_STRETCH = 1_000
#: The binary search stops at this many entries: stores keep logs in chunks, and a read unpacks a whole one.
_NEAR = 500
#: Maximum number of times that are searched for.
_MOMENTS = 16

E = TypeVar("E")


class TimelineEntry(NamedTuple, Generic[E]):
    """One entry of a log."""

    position: int
    at_ms: int
    job_id: str
    item: E


Read = Callable[[int, int], Awaitable[list[TimelineEntry[E]]]]


class TimelineLog(Generic[E]):
    """A log that is read by position: ``read(after, limit)``."""

    def __init__(self, read: Read[E], oldest: int, newest: int) -> None:
        self._read = read
        self._oldest = oldest
        self._newest = newest
        self._times: dict[int, int | None] = {}

    async def of_job(self, record: JobRecord, moments: list[int]) -> tuple[list[E], bool]:
        """The entries of a job, and whether these are all.

        ``moments``: sorted times at which the job changed, which may be in the log.
        """
        first = await self._read(self._oldest - 1, 1)
        whole = self._oldest <= 1 or (bool(first) and first[0].at_ms <= record.enqueued_ms)
        low = await self._before(record.enqueued_ms)
        high = self._newest
        if record.state in FINISHED:
            high = min(await self._before((record.finished_ms or 0) + 1) + _NEAR, high)
        if high - low <= _STRETCH:
            return [entry.item for entry in await self._among(low, high - low, record.id)], whole
        found: dict[int, E] = {}
        seen, seen_ms = self._oldest - 1, -1
        for moment in moments:
            if moment < seen_ms:
                continue  # the previous read already covers this time
            start = max(await self._before(moment), seen)
            entries = await self._read(start, _STRETCH + _NEAR)
            seen, seen_ms = (entries[-1].position, entries[-1].at_ms) if entries else (start, moment)
            found |= {entry.position: entry.item for entry in entries if entry.job_id == record.id}
        return [found[position] for position in sorted(found)], False

    async def _among(self, after: int, limit: int, job_id: str) -> list[TimelineEntry[E]]:
        if limit <= 0:
            return []
        return [entry for entry in await self._read(after, limit) if entry.job_id == job_id]

    async def _before(self, at_ms: int) -> int:
        """A position before all entries from ``at_ms`` on, at most ``_NEAR`` entries too early."""
        low, high = self._oldest - 1, self._newest
        while high - low > _NEAR:
            middle = (low + high) // 2
            time_ms = await self._time_after(middle)
            if time_ms is not None and time_ms < at_ms:
                low = middle + 1
            else:
                high = middle
        return low

    async def _time_after(self, position: int) -> int | None:
        """The time of the entry after a position. Cached: searches for near times read the same entries."""
        if position not in self._times:
            found = await self._read(position, 1)
            self._times[position] = found[0].at_ms if found else None
        return self._times[position]


def _ends(record: JobRecord) -> list[int]:
    """When attempts of a job ended, according to its record."""
    times = [record.finished_ms, *(error.at_ms for error in record.errors[-_MOMENTS:])]
    return sorted({at_ms for at_ms in times if at_ms})


def _moments(record: JobRecord) -> list[int]:
    """When the job changed, according to its record."""
    times = [record.enqueued_ms, record.ready_ms, record.started_ms]
    return sorted({at_ms for at_ms in times if at_ms} | set(_ends(record)))


async def read_timeline(store: Store, record: JobRecord, mask: Mask) -> Timeline:
    """The job's attempts and events, oldest first."""
    (events, whole_events), (attempts, whole_history) = await asyncio.gather(
        _events(store, record), _attempts(store, record)
    )
    found = [_attempt_entry(one) for one in attempts]
    known = {(one.attempt, one.finished_ms) for one in attempts}
    found += [
        _from_error(error.attempt, error.at_ms, error.error_class)
        for error in record.errors
        if (error.attempt, error.at_ms) not in known
    ]
    messages = {error.at_ms: error.message for error in record.errors}
    for entry in found:
        entry.message = mask.text(messages.get(entry.finished_ms or -1, ""))
    found.sort(key=lambda entry: (entry.finished_ms or 0, entry.delivery))
    return Timeline(
        attempts=found,
        events=[event_entry(event, record.queue, mask) for event in events],
        complete=whole_events and whole_history,
    )


async def _events(store: Store, record: JobRecord) -> tuple[list[Event], bool]:
    queue = record.queue
    head = await store.execute(rq.ReadEvents(queue=queue, limit=1))

    async def read(after: int, limit: int) -> list[TimelineEntry[Event]]:
        page = await store.execute(rq.ReadEvents(queue=queue, after=max(after, 0), limit=limit))
        return [TimelineEntry(event.id, event.at_ms, event.job_id, event) for event in page.events]

    log = TimelineLog(read, max(head.oldest_id, 1), head.last_id)
    return await log.of_job(record, _moments(record))


async def _attempts(store: Store, record: JobRecord) -> tuple[list[AttemptRecord], bool]:
    queue = record.queue

    async def page_after(after: int, limit: int) -> rq.HistoryPage:
        return await store.execute(rq.ReadHistory(queue=queue, after=after, limit=limit))

    async def read(after: int, limit: int) -> list[TimelineEntry[AttemptRecord]]:
        page = await page_after(max(after, 0), limit)
        first = page.last - len(page.records) + 1
        return [
            TimelineEntry(first + n, one.finished_ms, one.job_id, one) for n, one in enumerate(page.records)
        ]

    try:
        head = await page_after(0, 1)
    except HistoryTrimmedError as exc:
        head = await page_after(exc.oldest - 1, 1)
    try:
        return await TimelineLog(read, max(head.oldest, 1), head.newest).of_job(record, _ends(record))
    except HistoryTrimmedError:
        return [], False  # trimmed meanwhile


#: Fields of an event that may hold values of the application.
_MASKED: dict[str, Callable[[Mask, str], str]] = {
    "message": Mask.text,
    "progress": Mask.json_text,
    "data": Mask.json_text,
}


def event_entry(event: Event, queue: str, mask: Mask) -> EventEntry:
    """An event as the API shows it."""
    data = {
        name: _MASKED[name](mask, value) if name in _MASKED and isinstance(value, str) else value
        for name, value in event.data.items()
    }
    return EventEntry(
        id=event.id,
        at_ms=event.at_ms,
        type=event.type.value,
        queue=queue,
        job_id=event.job_id,
        task=event.task,
        data=data,
    )


def _attempt_entry(one: AttemptRecord) -> AttemptEntry:
    return AttemptEntry(
        run=one.delivery if one.attempt else 0,
        attempt=one.attempt,
        delivery=one.delivery,
        run_id=one.run_id,
        worker=one.worker,
        ready_ms=one.ready_ms,
        started_ms=one.started_ms,
        finished_ms=one.finished_ms,
        wait_ms=one.wait_ms,
        duration_ms=one.duration_ms,
        outcome=one.outcome.value,
        error_class=one.error_class,
        message="",
        queue_time=_queue_time(one.queue_time),
    )


def _queue_time(time: QueueTime | None) -> QueueTimeEntry | None:
    if time is None:
        return None
    return QueueTimeEntry(
        scheduled_ms=time.scheduled_ms,
        parked_ms=time.parked_ms,
        blocked_ms=time.blocked_ms,
        in_line_ms=time.in_line_ms,
    )


def _from_error(attempt: int, at_ms: int, error_class: str) -> AttemptEntry:
    """An attempt of which only the error is known."""
    return AttemptEntry(
        run=0,
        attempt=attempt,
        delivery=0,
        run_id="",
        worker=None,
        ready_ms=None,
        started_ms=None,
        finished_ms=at_ms,
        wait_ms=None,
        duration_ms=None,
        outcome="retrying",
        error_class=error_class,
        message="",
        queue_time=None,
    )
