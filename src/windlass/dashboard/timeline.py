"""What happened to one job, from the event log and the history of its queue.

Both logs are read by position and hold what happened in order of time, so the job's part is found by
halving; then a bounded stretch is read. What is beyond the bound, or trimmed, is told as not complete.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from windlass.backend import requests as rq
from windlass.backend.store import Store
from windlass.core.job import AttemptRecord, Event, JobRecord
from windlass.core.states import FINISHED
from windlass.dashboard.masking import Mask
from windlass.dashboard.shapes.jobs import AttemptEntry, EventEntry, Timeline
from windlass.errors import HistoryTrimmedError

#: Entries of each log that are looked at, after the first of the job.
_SCAN = 10_000
_STEP = 1_000

#: The time of the first entry after a position; None when there is none.
TimeAt = Callable[[int], Awaitable[int | None]]


async def read_timeline(store: Store, record: JobRecord, mask: Mask) -> Timeline:
    """The job's attempts and events, oldest first."""
    events, whole_events = await _events(store, record)
    attempts, whole_history = await _attempts(store, record)
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
        events=[event_entry(event, record.queue) for event in events],
        complete=whole_events and whole_history,
    )


def event_entry(event: Event, queue: str) -> EventEntry:
    return EventEntry(
        id=event.id,
        at_ms=event.at_ms,
        type=event.type.value,
        queue=queue,
        job_id=event.job_id,
        task=event.task,
        data=event.data,
    )


def _attempt_entry(one: AttemptRecord) -> AttemptEntry:
    return AttemptEntry(
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
    )


def _from_error(attempt: int, at_ms: int, error_class: str) -> AttemptEntry:
    """An attempt of which only the error is left."""
    return AttemptEntry(
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
    )


async def _events(store: Store, record: JobRecord) -> tuple[list[Event], bool]:
    head = await store.execute(rq.ReadEvents(queue=record.queue, limit=1))

    async def time_at(after: int) -> int | None:
        page = await store.execute(rq.ReadEvents(queue=record.queue, after=after, limit=1))
        return page.events[0].at_ms if page.events else None

    after = await _first_from(record.enqueued_ms, head.oldest_id - 1, head.last_id, time_at)
    whole = bool(head.events) and head.events[0].at_ms <= record.enqueued_ms
    found: list[Event] = []
    until_ms = _end_of(record)
    for _ in range(_SCAN // _STEP):
        page = await store.execute(rq.ReadEvents(queue=record.queue, after=after, limit=_STEP))
        found += [event for event in page.events if event.job_id == record.id]
        if not page.events or page.events[-1].at_ms > until_ms:
            return found, whole
        after = page.events[-1].id
    return found, False


async def _attempts(store: Store, record: JobRecord) -> tuple[list[AttemptRecord], bool]:
    try:
        head = await store.execute(rq.ReadHistory(queue=record.queue, limit=1))
        oldest, newest = head.oldest, head.newest
    except HistoryTrimmedError as exc:
        head = await store.execute(rq.ReadHistory(queue=record.queue, after=exc.oldest - 1, limit=1))
        oldest, newest = head.oldest, head.newest

    async def time_at(after: int) -> int | None:
        page = await store.execute(rq.ReadHistory(queue=record.queue, after=after, limit=1))
        return page.records[0].finished_ms if page.records else None

    try:
        after = await _first_from(record.enqueued_ms, max(oldest - 1, 0), newest, time_at)
        whole = oldest <= 1 or (bool(head.records) and head.records[0].finished_ms <= record.enqueued_ms)
        found: list[AttemptRecord] = []
        until_ms = _end_of(record)
        for _ in range(_SCAN // _STEP):
            page = await store.execute(rq.ReadHistory(queue=record.queue, after=after, limit=_STEP))
            found += [one for one in page.records if one.job_id == record.id]
            if not page.records or page.records[-1].finished_ms > until_ms:
                return found, whole
            after = page.last
        return found, False
    except HistoryTrimmedError:
        return [], False  # trimmed while we looked


def _end_of(record: JobRecord) -> int:
    """After this time nothing is said about the job."""
    return record.finished_ms or 0 if record.state in FINISHED else 2**62


async def _first_from(at_ms: int, low: int, high: int, time_at: TimeAt) -> int:
    """The highest position after which everything from ``at_ms`` on stands."""
    while low < high:
        middle = (low + high) // 2
        found = await time_at(middle)
        if found is not None and found < at_ms:
            low = middle + 1
        else:
            high = middle
    return low
